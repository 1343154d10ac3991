//! How much runs at once: calls, and bytes that they hold. Calls beyond it wait for a while; because only small bodies have been read
//! by then they hold next to nothing meanwhile. No key may take everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::config::Limits;
use super::keys::Hash;

const KIB: usize = 1024;

/// One key may hold three quarters of everything.
const fn share(all: usize) -> usize {
    all / 4 * 3
}

#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    /// Requests that are here, waiting or not.
    present: Arc<Semaphore>,
    all: Room,
    keys: Mutex<HashMap<Hash, OfKey>>,
}

/// Places for calls, and KiB for what they hold.
#[derive(Debug, Clone)]
struct Room {
    calls: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

#[derive(Debug)]
struct OfKey {
    room: Room,
    /// Requests, waiting or not; without any the key is forgotten.
    present: usize,
}

/// A request that is here.
#[derive(Debug)]
pub(super) struct Present {
    admission: Arc<Admission>,
    key: Hash,
    of_key: Room,
    _permit: OwnedSemaphorePermit,
}

/// The right to run one call; dropped, it is given back.
#[derive(Debug)]
pub(super) struct Place {
    present: Present,
    held: Vec<OwnedSemaphorePermit>,
}

impl Room {
    fn new(calls: usize, bytes: usize) -> Self {
        Self { calls: Arc::new(Semaphore::new(calls)), memory: Arc::new(Semaphore::new(bytes / KIB)) }
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX)
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            present: Arc::new(Semaphore::new(limits.calls + limits.waiting)),
            all: Room::new(limits.calls, limits.bytes),
            keys: Mutex::default(),
        }
    }

    /// Counts a request; `None` when too many are here.
    pub(super) fn arrive(self: &Arc<Self>, key: Hash) -> Option<Present> {
        let permit = Arc::clone(&self.present).try_acquire_owned().ok()?;
        let new = || Room::new(share(self.limits.calls), share(self.limits.bytes));
        let mut keys = self.keys();
        let of_key = keys.entry(key).or_insert_with(|| OfKey { room: new(), present: 0 });
        of_key.present += 1;
        Some(Present { admission: Arc::clone(self), key, of_key: of_key.room.clone(), _permit: permit })
    }

    /// Whether everything has been given back.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let places = |of: &Semaphore, all: usize| of.available_permits() == all;
        self.keys().is_empty()
            && places(&self.present, self.limits.calls + self.limits.waiting)
            && places(&self.all.calls, self.limits.calls)
            && places(&self.all.memory, self.limits.bytes / KIB)
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Hash, OfKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Waits for a place, first come first served: among those of the key, then among all. `None` when it takes too long.
    pub(super) async fn enter(self) -> Option<Place> {
        let all = Arc::clone(&self.admission.all.calls);
        let held = self.both(Arc::clone(&self.of_key.calls), all, 1).await?;
        Some(Place { present: self, held })
    }

    /// The order keeps a key's own queue from standing in the way of others.
    async fn both(
        &self,
        of_key: Arc<Semaphore>,
        of_all: Arc<Semaphore>,
        count: u32,
    ) -> Option<Vec<OwnedSemaphorePermit>> {
        let both = async {
            let of_key = of_key.acquire_many_owned(count).await.ok()?;
            let of_all = of_all.acquire_many_owned(count).await.ok()?;
            Some(vec![of_key, of_all])
        };
        timeout(self.admission.limits.wait, both).await.ok()?
    }
}

impl Place {
    /// Counts bytes that the call is about to hold; false when there is no room.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let rooms = [&self.present.of_key, &self.present.admission.all];
        let permits = rooms.map(|room| Arc::clone(&room.memory).try_acquire_many_owned(kib(bytes)));
        let [Ok(of_key), Ok(of_all)] = permits else { return false };
        self.held.extend([of_key, of_all]);
        true
    }

    /// The same, but waits for others to give theirs back; false when it takes too long or can never be.
    pub(super) async fn reserve_soon(&mut self, bytes: usize) -> bool {
        if bytes > share(self.present.admission.limits.bytes) {
            return false;
        }
        let (of_key, of_all) = (&self.present.of_key.memory, &self.present.admission.all.memory);
        let Some(held) = self.present.both(Arc::clone(of_key), Arc::clone(of_all), kib(bytes)).await else {
            return false;
        };
        self.held.extend(held);
        true
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut keys = self.admission.keys();
        if let Some(of_key) = keys.get_mut(&self.key) {
            of_key.present -= 1;
            if of_key.present == 0 {
                keys.remove(&self.key);
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
        Arc::new(Admission::new(Limits { calls: 8, waiting: 4, wait, bytes: 400 * KIB, ..Limits::default() }))
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
        assert!(of_a[0].reserve(300 * KIB) && !of_a[1].reserve(1));
        let mut of_b = places(&admission, b, 2).await;
        assert!(admission.arrive(b).unwrap().enter().await.is_none());
        assert!(of_b[0].reserve(100 * KIB) && !of_b[0].reserve(1) && !of_b[0].reserve_soon(1).await);
        of_a.clear();
        assert!(of_b[1].reserve(199 * KIB + 1) && !of_b[1].reserve(1) && !of_b[1].reserve_soon(1).await);
        assert!(!of_b[0].reserve_soon(301 * KIB).await);
        drop(of_b);
        assert!(admission.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_waited_for_too() {
        let admission = admission();
        let mut places = places(&admission, [1; 32], 2).await;
        let mut second = places.pop().unwrap();
        assert!(places[0].reserve(250 * KIB));
        let waiting = tokio::spawn(async move { second.reserve_soon(100 * KIB).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        places.clear();
        assert!(waiting.await.unwrap());
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
