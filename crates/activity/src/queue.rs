//! The way from something that happened to the database: a bounded queue that whoever records never waits for, and one
//! task that writes what is in it in batches and removes what is too old. When the queue is full, or the database fails,
//! rows are dropped and counted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use store::StoreError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Rows that wait to be written: seconds of the busiest host, some 4 MiB at most.
pub(crate) const QUEUE: usize = 8_192;
/// Rows of one transaction: some ten milliseconds of the write lock.
const BATCH: usize = 256;
/// How long the first row of a batch waits for others: one transaction per burst instead of one per row.
const LINGER: Duration = Duration::from_millis(100);
/// A reader waits this long for what was recorded before; a busy disk is no reason to fail a read.
const FLUSH: Duration = Duration::from_secs(1);
/// How often old rows are looked for while nothing happens.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Rows written after which old ones are looked for: a table outgrows its limit by no more than this.
const PRUNE_AFTER: usize = 1_000;
/// Between two steps of pruning others have their turn at the database.
const PRUNE_PAUSE: Duration = Duration::from_millis(50);
/// At the stop the queue is written out; a disk that takes longer does not keep the server from ending.
const STOP: Duration = Duration::from_secs(5);

/// A table that rows go to.
pub(crate) trait Log: Send + 'static {
    /// What is written.
    type Row: Send + Sync + 'static;

    /// How it is called in the server's log.
    const NAME: &'static str;

    /// Writes rows, all or none.
    fn add(&mut self, rows: &[Self::Row]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// One step; `true` when there may be more to remove.
    fn prune(&mut self) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// The recording end. Cheap to clone.
pub(crate) struct Queue<R>(Arc<Shared<R>>);

struct Shared<R> {
    queue: mpsc::Sender<Message<R>>,
    name: &'static str,
    written: AtomicU64,
    dropped: AtomicU64,
}

enum Message<R> {
    Row(Box<R>),
    Flush(oneshot::Sender<()>),
}

/// How a log does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Rows that wait.
    pub queued: usize,
    /// Rows written since the start.
    pub written: u64,
    /// Rows that could not be kept since the start: the queue was full, or the database failed.
    pub dropped: u64,
}

/// The task that writes.
#[derive(Debug)]
pub struct Writer {
    stop: CancellationToken,
    task: JoinHandle<()>,
    name: &'static str,
}

impl<R> Clone for Queue<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> fmt::Debug for Queue<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<R: Send + Sync + 'static> Queue<R> {
    /// Begins to write to `log`.
    pub(crate) fn start<L: Log<Row = R>>(log: L, size: usize) -> (Self, Writer) {
        let (queue, inbox) = mpsc::channel(size);
        let (written, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { queue, name: L::NAME, written, dropped });
        let stop = CancellationToken::new();
        let work = Work { log, inbox, stop: stop.clone(), shared: Arc::clone(&shared), failing: false };
        (Self(shared), Writer { stop, task: tokio::spawn(work.run()), name: L::NAME })
    }

    /// Takes a row; `false` when it had to be dropped. Never waits.
    pub(crate) fn push(&self, row: R) -> bool {
        let taken = self.0.queue.try_send(Message::Row(Box::new(row))).is_ok();
        if !taken {
            self.drop_one();
        }
        taken
    }

    /// Counts a row that is not taken.
    pub(crate) fn drop_one(&self) {
        if self.0.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                log = self.0.name,
                "the log cannot keep up; rows are dropped (/metrics counts them)"
            );
        }
    }

    /// Returns once everything recorded so far can be read, or after a second.
    pub(crate) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flush = async {
            if self.0.queue.send(Message::Flush(done)).await.is_ok() {
                let _writer_ended = written.await;
            }
        };
        let _busy = tokio::time::timeout(FLUSH, flush).await;
    }

    /// Numbers for whoever watches.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            queued: self.0.queue.max_capacity() - self.0.queue.capacity(),
            written: self.0.written.load(Ordering::Relaxed),
            dropped: self.0.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Writer {
    /// Writes what is queued and ends; gives up after 5 s.
    pub async fn stop(self) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(STOP, self.task).await.is_err() {
            abort.abort();
            tracing::warn!(log = self.name, "the last rows of the log could not be written");
        }
    }
}

struct Work<L: Log> {
    log: L,
    inbox: mpsc::Receiver<Message<L::Row>>,
    stop: CancellationToken,
    shared: Arc<Shared<L::Row>>,
    /// The last write failed: say so once, not ten times a second.
    failing: bool,
}

impl<L: Log> Work<L> {
    async fn run(mut self) {
        let mut prune_at = Instant::now();
        let mut unpruned = 0;
        loop {
            let message = tokio::select! {
                message = self.inbox.recv() => message,
                () = tokio::time::sleep_until(prune_at) => {
                    let more = self.prune().await;
                    prune_at = Instant::now() + if more { PRUNE_PAUSE } else { PRUNE_EVERY };
                    continue;
                }
                () = self.stop.cancelled() => break,
            };
            let Some(message) = message else { return };
            unpruned += self.batch(message).await;
            if unpruned >= PRUNE_AFTER {
                unpruned = 0;
                prune_at = Instant::now();
            }
        }
        self.inbox.close();
        while let Some(message) = self.inbox.recv().await {
            self.batch(message).await;
        }
    }

    /// Writes this message and those that come soon after it.
    async fn batch(&mut self, first: Message<L::Row>) -> usize {
        let (mut rows, mut waiting) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        let until = Instant::now() + LINGER;
        loop {
            match next {
                Some(Message::Row(row)) => rows.push(*row),
                Some(Message::Flush(done)) => waiting.push(done),
                None => break,
            }
            if rows.len() >= BATCH {
                break;
            }
            next = if waiting.is_empty() && !self.stop.is_cancelled() {
                tokio::select! {
                    message = self.inbox.recv() => message,
                    () = tokio::time::sleep_until(until) => None,
                    () = self.stop.cancelled() => None,
                }
            } else {
                self.inbox.try_recv().ok()
            };
        }
        self.write(&rows).await;
        for done in waiting {
            let _reader_left = done.send(());
        }
        rows.len()
    }

    async fn write(&mut self, rows: &[L::Row]) {
        if rows.is_empty() {
            return;
        }
        let count = rows.len() as u64;
        match self.log.add(rows).await {
            Ok(()) => {
                self.failing = false;
                self.shared.written.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.shared.dropped.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut self.failing, true) {
                    let cause = &error as &dyn std::error::Error;
                    tracing::error!(cause, log = L::NAME, "cannot write the log");
                }
            }
        }
    }

    async fn prune(&mut self) -> bool {
        self.log.prune().await.unwrap_or_else(|error| {
            let cause = &error as &dyn std::error::Error;
            tracing::warn!(cause, log = L::NAME, "cannot remove old rows");
            false
        })
    }
}
