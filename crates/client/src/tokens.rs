//! Data-plane tokens by sandbox, bounded in number and time, and the locks that let one refresh serve everyone who
//! waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use domain::Secret;

/// Sandboxes remembered at once; the oldest goes first.
const CAPACITY: usize = 256;
/// The reference service lets a token live for one to two hours (`spec/data-plane.md` §2).
const LIFETIME: Duration = Duration::from_secs(50 * 60);

#[derive(Default)]
pub(crate) struct Tokens {
    known: Mutex<HashMap<String, Known>>,
    refreshes: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

struct Known {
    token: Secret,
    since: Instant,
}

impl Tokens {
    pub(crate) fn get(&self, id: &str) -> Option<Secret> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).filter(|known| known.since.elapsed() < LIFETIME).map(|known| known.token.clone())
    }

    pub(crate) fn store(&self, id: &str, token: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CAPACITY && !known.contains_key(id) {
            let oldest = known.iter().min_by_key(|(_, known)| known.since).map(|(id, _)| id.clone());
            oldest.and_then(|id| known.remove(&id));
        }
        known.insert(id.to_owned(), Known { token: Secret::new(token), since: Instant::now() });
    }

    pub(crate) fn forget(&self, id: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The lock under which the token of this sandbox is refreshed.
    pub(crate) fn refresh_lock(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut refreshes = self.refreshes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = refreshes.get(id).and_then(Weak::upgrade) {
            return lock;
        }
        // Only locks in use are worth keeping, so the map is as large as the number of calls under way.
        refreshes.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        refreshes.insert(id.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_shared() {
        let tokens = Tokens::default();
        for n in 0..CAPACITY + 10 {
            tokens.store(&n.to_string(), "t");
        }
        assert_eq!(tokens.known.lock().unwrap().len(), CAPACITY);
        assert!(tokens.get("0").is_none(), "the oldest went first");
        assert!(tokens.get(&(CAPACITY + 9).to_string()).is_some());

        let lock = tokens.refresh_lock("a");
        assert!(Arc::ptr_eq(&lock, &tokens.refresh_lock("a")));
        drop(lock);
        drop(tokens.refresh_lock("b"));
        drop(tokens.refresh_lock("c"));
        assert_eq!(tokens.refreshes.lock().unwrap().len(), 1, "unused locks are dropped");
    }
}
