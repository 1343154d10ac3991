//! Operations on one sandbox, one after the other, each to its end. A caller that goes away does not stop what it began:
//! half an operation, with its other half still running on some thread, is what the next one could not mend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{Problem, SandboxId};
use tokio_util::task::TaskTracker;

type Turn = Arc<tokio::sync::Mutex<()>>;

#[derive(Debug, Default)]
pub(crate) struct Turns {
    busy: Arc<Mutex<HashMap<SandboxId, Turn>>>,
    tasks: TaskTracker,
}

impl Turns {
    /// Runs `work` when earlier work for this sandbox is done.
    ///
    /// # Cancel safety
    /// The work goes on without its caller.
    pub(crate) async fn take<T: Send + 'static>(
        &self,
        id: SandboxId,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = Arc::clone(locked(&self.busy).entry(id).or_default());
        let busy = Arc::clone(&self.busy);
        let task = self.tasks.spawn(async move {
            let mine = turn.lock_owned().await;
            let result = work.await;
            let mut busy = locked(&busy);
            // Two are the map and this turn; more are somebody waiting.
            if busy.get(&id).is_some_and(|turn| Arc::strong_count(turn) == 2) {
                busy.remove(&id);
            }
            drop(mine);
            result
        });
        task.await.map_err(|error| Problem::internal("an operation on the sandbox ended early", error))?
    }

    /// Waits until no work is under way.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

fn locked(busy: &Mutex<HashMap<SandboxId, Turn>>) -> MutexGuard<'_, HashMap<SandboxId, Turn>> {
    // The map is whole after each statement that changes it.
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn one_after_the_other_and_without_a_caller() {
        let turns = Turns::default();
        let id = SandboxId::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str, delay: u64| {
            let order = Arc::clone(&order);
            async move {
                tokio::time::sleep(Duration::from_millis(delay)).await;
                order.lock().unwrap().push(what);
                Ok(())
            }
        };
        let cancelled =
            tokio::time::timeout(Duration::from_millis(1), turns.take(id, note("slow", 50))).await;
        assert!(cancelled.is_err());
        let (second, other) =
            tokio::join!(turns.take(id, note("second", 0)), turns.take(SandboxId::new(), note("other", 0)));
        second.and(other).unwrap();
        assert_eq!(*order.lock().unwrap(), ["other", "slow", "second"]);
        assert!(locked(&turns.busy).is_empty());
        turns.finish().await;
    }
}
