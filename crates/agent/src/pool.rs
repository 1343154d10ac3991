//! A few small threads for calls that block. They are made at start-up; more come only in the place of those that wait for
//! a file system that does not answer, such as a FUSE mount whose server stands still, since nothing can end such a call.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::sys::identity::{self, Identity};

/// File work needs little stack; the largest buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// A job is a system call or a few: past this its file system has stopped, and whoever waits is told so.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<(Option<Arc<Identity>>, Job)>>,
    ready: Condvar,
}

/// Threads that take jobs in order.
#[derive(Clone)]
pub(crate) struct Pool {
    name: &'static str,
    queue: Arc<Queue>,
    /// Threads that may still be made in the place of stuck ones.
    spare: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads: usize, spare: usize) -> io::Result<Self> {
        let pool = Self { name, queue: Arc::default(), spare: Arc::new(AtomicUsize::new(spare)) };
        (0..threads).try_for_each(|_| pool.start_thread())?;
        Ok(pool)
    }

    fn start_thread(&self) -> io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let thread = std::thread::Builder::new().name(self.name.to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || work(&queue)).map(drop)
    }

    /// Runs a job as the agent. Dropping the future leaves the job running.
    ///
    /// # Errors
    /// `ETIMEDOUT` when it takes too long; it is left running, too.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.wait(None, job, false).await
    }

    /// The same, but a job that has not begun when nobody waits for it any more is dropped instead.
    pub(crate) async fn run_wanted<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.wait(None, job, true).await
    }

    /// Runs a job with the rights of `who` over files; otherwise as [`Pool::run`].
    pub(crate) async fn run_as<T: Send + 'static>(
        &self,
        who: &Arc<Identity>,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.wait(Some(who), job, false).await
    }

    async fn wait<T: Send + 'static>(
        &self,
        who: Option<&Arc<Identity>>,
        job: impl FnOnce() -> io::Result<T> + Send + 'static,
        only_wanted: bool,
    ) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        self.leave(who, move || {
            if only_wanted && sender.is_closed() {
                return;
            }
            begins.store(true, Ordering::Release);
            drop(sender.send(job()));
        });
        let Ok(done) = tokio::time::timeout(ANSWER_LIMIT, receiver).await else {
            // A job that never had its turn waits behind others, each with somebody who sees to a thread for it.
            if begun.load(Ordering::Acquire) {
                self.replace_thread();
            }
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        };
        done.unwrap_or_else(|_| Err(lost()))
    }

    fn replace_thread(&self) {
        let less = |spare: usize| spare.checked_sub(1);
        if self.spare.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
            && let Err(error) = self.start_thread()
        {
            crate::log(format_args!("no thread in the place of one that waits: {error}"));
        }
    }

    /// Leaves a job to be done, e.g. on the way out of a request.
    pub(crate) fn leave(&self, who: Option<&Arc<Identity>>, job: impl FnOnce() + Send + 'static) {
        let job = (who.cloned(), Box::new(job) as Job);
        self.queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_begun() {
        let pool = Pool::new("test", 1, 0).unwrap();
        let (go, gate) = mpsc::channel::<()>();
        pool.leave(None, move || gate.recv().unwrap());
        let place = Arc::new(());
        let ran = Arc::new(AtomicUsize::new(0));
        let job = || {
            let (place, ran) = (Arc::clone(&place), Arc::clone(&ran));
            move || {
                let _place = place;
                ran.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let soon = Duration::from_millis(1);
        assert!(tokio::time::timeout(soon, pool.run_wanted(job())).await.is_err());
        assert!(tokio::time::timeout(soon, pool.run(job())).await.is_err());
        // Both are held until their turn, which one of them does not take.
        assert_eq!(Arc::strong_count(&place), 3);
        go.send(()).unwrap();
        pool.run_wanted(|| Ok(())).await.unwrap();
        assert_eq!((Arc::strong_count(&place), ran.load(Ordering::SeqCst)), (1, 1));
    }
}
