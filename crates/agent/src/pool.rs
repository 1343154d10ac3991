//! A few threads for calls that block. They are made at start-up, because under a process limit none could be made
//! later, and they are small.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::sys::identity::{self, Identity};

/// File work needs little stack; the largest buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<(Option<Arc<Identity>>, Job)>>,
    ready: Condvar,
}

/// Threads that take jobs in order.
#[derive(Clone)]
pub(crate) struct Pool {
    queue: Arc<Queue>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(name: &str, threads: usize) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(name.to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || work(&queue))?;
        }
        Ok(Self { queue })
    }

    /// Runs a job as the agent. Dropping the future leaves the job running.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.push(None, Box::new(move || drop(sender.send(job()))));
        receiver.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Runs a job with the rights of `who` over files.
    pub(crate) async fn run_as<T: Send + 'static>(
        &self,
        who: &Arc<Identity>,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.push(Some(Arc::clone(who)), Box::new(move || drop(sender.send(job()))));
        receiver.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Leaves a job to be done, e.g. on the way out of a request.
    pub(crate) fn leave(&self, who: Option<&Arc<Identity>>, job: impl FnOnce() + Send + 'static) {
        self.push(who.cloned(), Box::new(job));
    }

    fn push(&self, who: Option<Arc<Identity>>, job: Job) {
        self.queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back((who, job));
        self.queue.ready.notify_one();
    }
}

/// The job was dropped because its identity could not be assumed.
fn lost() -> io::Error {
    io::Error::from(io::ErrorKind::PermissionDenied)
}

fn work(queue: &Queue) {
    let agent = Arc::new(Identity { uid: 0, gid: 0, groups: vec![0] });
    let mut current: Option<Arc<Identity>> = None;
    loop {
        let (who, job) = {
            let mut jobs = queue.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match jobs.pop_front() {
                    Some(job) => break job,
                    None => jobs = queue.ready.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        let wanted = match (who, &current) {
            (Some(who), _) => Some(who),
            // As the agent: either never changed, or changed back.
            (None, None) => None,
            (None, Some(_)) => Some(Arc::clone(&agent)),
        };
        if let Some(wanted) = wanted.filter(|wanted| current.as_ref() != Some(wanted)) {
            current = Some(Arc::clone(&wanted));
            if identity::assume(&wanted).is_err() {
                // Never act with the wrong rights: dropping the job tells its owner. The next one tries again.
                current = Some(Arc::new(Identity { uid: u32::MAX, gid: u32::MAX, groups: Vec::new() }));
                continue;
            }
        }
        job();
    }
}
