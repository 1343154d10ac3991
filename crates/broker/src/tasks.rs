//! The tasks of one connection: they end with it.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runs tasks until the connection is over.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    pub(crate) tracker: TaskTracker,
    pub(crate) over: CancellationToken,
}

impl Tasks {
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(self.over.clone().run_until_cancelled_owned(work));
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, work: F) {
        self.spawn(work);
    }
}
