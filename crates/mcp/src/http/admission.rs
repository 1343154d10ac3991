//! How much runs at once: calls, and bytes that they hold. Calls beyond it wait for a while, and because their bodies have not been
//! read they hold next to nothing meanwhile; what is refused is refused for want of bytes, or of time. No key may take everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::config::Limits;
use super::keys::Hash;

/// One key may hold three quarters of everything.
const fn share(all: usize) -> usize {
    all / 4 * 3
}

#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    /// Requests that are here, waiting or not.
    present: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    keys: HashMap<Hash, OfKey>,
}

#[derive(Debug)]
struct OfKey {
    calls: Arc<Semaphore>,
    bytes: usize,
    /// Requests, waiting or not; without any the key is forgotten.
    present: usize,
}

/// A request that is here.
#[derive(Debug)]
pub(super) struct Present {
    admission: Arc<Admission>,
    key: Hash,
    bytes: usize,
    _permit: OwnedSemaphorePermit,
}

/// The right to run one call; dropped, it is given back.
#[derive(Debug)]
pub(super) struct Place {
    present: Present,
    _of_key: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            present: Arc::new(Semaphore::new(limits.calls + limits.waiting)),
            calls: Arc::new(Semaphore::new(limits.calls)),
            taken: Mutex::default(),
        }
    }

    /// Counts a request; `None` when too many are here.
    pub(super) fn arrive(self: &Arc<Self>, key: Hash) -> Option<Present> {
        let permit = Arc::clone(&self.present).try_acquire_owned().ok()?;
        let most = share(self.limits.calls);
        let mut taken = self.taken();
        let of_key = taken.keys.entry(key).or_insert_with(|| OfKey {
            calls: Arc::new(Semaphore::new(most)),
            bytes: 0,
            present: 0,
        });
        of_key.present += 1;
        Some(Present { admission: Arc::clone(self), key, bytes: 0, _permit: permit })
    }

    /// Whether everything has been given back.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let taken = self.taken();
        let places =
            [(&self.calls, self.limits.calls), (&self.present, self.limits.calls + self.limits.waiting)];
        taken.keys.is_empty()
            && taken.bytes == 0
            && places.iter().all(|(of, all)| of.available_permits() == *all)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Waits for a place, first come first served: among those of the key, then among all. `None` when it takes too long.
    pub(super) async fn enter(self) -> Option<Place> {
        let admission = &self.admission;
        let of_key = admission.taken().keys.get(&self.key).map(|of_key| Arc::clone(&of_key.calls))?;
        let places = async {
            // The order keeps a key's own queue from standing in the way of others.
            let of_key = of_key.acquire_owned().await.ok()?;
            let of_all = Arc::clone(&admission.calls).acquire_owned().await.ok()?;
            Some((of_key, of_all))
        };
        let (of_key, of_all) = timeout(admission.limits.wait, places).await.ok()??;
        Some(Place { present: self, _of_key: of_key, _of_all: of_all })
    }
}

impl Place {
    /// Counts bytes that the call is about to hold; false when there is no room.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let present = &mut self.present;
        let limit = present.admission.limits.bytes;
        let mut taken = present.admission.taken();
        let all = taken.bytes + bytes;
        let Some(of_key) = taken.keys.get_mut(&present.key) else { return false };
        if all > limit || of_key.bytes + bytes > share(limit) {
            return false;
        }
        of_key.bytes += bytes;
        taken.bytes = all;
        present.bytes += bytes;
        true
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut taken = self.admission.taken();
        taken.bytes -= self.bytes;
        if let Some(of_key) = taken.keys.get_mut(&self.key) {
            of_key.bytes -= self.bytes;
            of_key.present -= 1;
            if of_key.present == 0 {
                taken.keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn admission() -> Arc<Admission> {
        let wait = Duration::from_secs(10);
        Arc::new(Admission::new(Limits { calls: 8, waiting: 4, wait, bytes: 400, ..Limits::default() }))
    }

    async fn places(admission: &Arc<Admission>, key: Hash, count: usize) -> Vec<Place> {
        let mut places = Vec::new();
        for _ in 0..count {
            places.push(admission.arrive(key).unwrap().enter().await.unwrap());
        }
        places
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_leaves_room_for_others_and_everything_is_given_back() {
        let admission = admission();
        let (a, b) = ([1; 32], [2; 32]);
        let mut of_a = places(&admission, a, 6).await;
        assert!(admission.arrive(a).unwrap().enter().await.is_none(), "not within the time");
        assert!(of_a[0].reserve(300) && !of_a[1].reserve(1));
        let mut of_b = places(&admission, b, 2).await;
        assert!(admission.arrive(b).unwrap().enter().await.is_none());
        assert!(of_b[0].reserve(100) && !of_b[0].reserve(1));
        of_a.clear();
        assert!(of_b[1].reserve(200) && !of_b[1].reserve(1));
        drop(of_b);
        assert!(admission.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_and_in_order() {
        let admission = admission();
        let key = [1; 32];
        let mut running = places(&admission, key, 6).await;
        let mut waiting: Vec<_> =
            (0..6).map(|_| tokio::spawn(admission.arrive(key).unwrap().enter())).collect();
        assert!(admission.arrive(key).is_none() && admission.arrive([2; 32]).is_none(), "all are here");
        tokio::task::yield_now().await;
        running.pop();
        let first = waiting.remove(0).await.unwrap();
        assert!(first.is_some());
        // One that goes away while it waits leaves its turn to the next.
        waiting.remove(0).abort();
        running.pop();
        assert!(waiting.remove(0).await.unwrap().is_some());
        drop((first, running));
        for waiting in waiting {
            assert!(waiting.await.unwrap().is_some());
        }
        assert!(admission.is_idle());
    }
}
