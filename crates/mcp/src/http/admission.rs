//! How much runs at once: calls, and bytes that they hold. What does not fit is refused at once, because a queue would hold
//! memory too. No key may take everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::config::Limits;
use super::keys::Hash;

/// One key may hold three quarters of everything.
const fn share(all: usize) -> usize {
    all / 4 * 3
}

#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: Load,
    keys: HashMap<Hash, Load>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Load {
    calls: usize,
    bytes: usize,
}

/// The right to run one call; dropped, it is given back.
#[derive(Debug)]
pub(super) struct Place {
    admission: Arc<Admission>,
    key: Hash,
    bytes: usize,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    /// A place without bytes, unless all are taken.
    pub(super) fn enter(self: &Arc<Self>, key: Hash) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = taken.keys.get(&key).map_or(0, |load| load.calls);
        if taken.all.calls >= self.limits.calls || of_key >= share(self.limits.calls) {
            return None;
        }
        taken.all.calls += 1;
        taken.keys.entry(key).or_default().calls += 1;
        Some(Place { admission: Arc::clone(self), key, bytes: 0 })
    }
}

impl Place {
    /// Counts bytes that the call is about to hold; false when there is no room.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let limit = self.admission.limits.bytes;
        let mut taken = self.admission.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = taken.all.bytes + bytes;
        let of_key = taken.keys.entry(self.key).or_default();
        if all > limit || of_key.bytes + bytes > share(limit) {
            return false;
        }
        of_key.bytes += bytes;
        taken.all.bytes = all;
        self.bytes += bytes;
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all.calls -= 1;
        taken.all.bytes -= self.bytes;
        if let Some(of_key) = taken.keys.get_mut(&self.key) {
            of_key.calls -= 1;
            of_key.bytes -= self.bytes;
            if of_key.calls == 0 {
                taken.keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_leaves_room_for_others_and_everything_is_given_back() {
        let limits = Limits { calls: 8, bytes: 400, ..Limits::default() };
        let admission = Arc::new(Admission::new(limits));
        let (a, b) = ([1; 32], [2; 32]);
        let mut places: Vec<Place> = (0..6).map(|_| admission.enter(a).unwrap()).collect();
        assert!(admission.enter(a).is_none());
        assert!(places[0].reserve(300) && !places[1].reserve(1));
        let mut others: Vec<Place> = (0..2).map(|_| admission.enter(b).unwrap()).collect();
        assert!(admission.enter(b).is_none());
        assert!(others[0].reserve(100) && !others[0].reserve(1));
        places.clear();
        assert!(others[1].reserve(200) && !others[1].reserve(1));
        drop(others);
        let taken = admission.taken.lock().unwrap();
        assert!(taken.keys.is_empty() && taken.all.calls == 0 && taken.all.bytes == 0);
    }
}
