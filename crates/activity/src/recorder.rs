//! The way from an entry to the database: a bounded queue that whoever records never waits for, and one task that
//! writes what is in it in batches and removes what is too old. When the queue is full, entries are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::{ActivityRow, PRUNE_STEP, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Entry;

/// Entries that wait to be written: seconds of the busiest host, some 4 MiB at most.
const QUEUE: usize = 8_192;
/// Rows of one transaction: some ten milliseconds of the write lock.
const BATCH: usize = 256;
/// How long the first row of a batch waits for others: one transaction per burst instead of one per row.
const LINGER: Duration = Duration::from_millis(100);
/// A reader waits this long for what was recorded before; a busy disk is no reason to fail a read.
const FLUSH: Duration = Duration::from_secs(1);
/// How often old rows are looked for while nothing happens.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Rows written after which old ones are looked for: the table outgrows its limit by no more than this.
const PRUNE_AFTER: usize = 1_000;
/// Between two steps of pruning others have their turn at the database.
const PRUNE_PAUSE: Duration = Duration::from_millis(50);
/// At the stop the queue is written out; a disk that takes longer does not keep the server from ending.
const STOP: Duration = Duration::from_secs(5);

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Newest rows.
    pub rows: u32,
    /// Oldest age, days.
    pub days: u32,
}

/// Takes entries. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<Message>,
    written: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Row(Box<ActivityRow>),
    Flush(oneshot::Sender<()>),
}

/// How the recorder does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Entries that wait.
    pub queued: usize,
    /// Rows written since the start.
    pub written: u64,
    /// Entries that could not be kept since the start: the queue was full, or the database failed.
    pub dropped: u64,
}

/// The task that writes.
#[derive(Debug)]
pub struct Writer {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Recorder {
    /// Begins to write to `store`.
    #[must_use]
    pub fn start(store: Store, retention: Retention) -> (Self, Writer) {
        Self::with_queue(store, retention, QUEUE)
    }

    pub(crate) fn with_queue(store: Store, retention: Retention, size: usize) -> (Self, Writer) {
        let (queue, inbox) = mpsc::channel(size);
        let shared = Arc::new(Shared { queue, written: AtomicU64::new(0), dropped: AtomicU64::new(0) });
        let stop = CancellationToken::new();
        let work =
            Work { store, retention, inbox, stop: stop.clone(), shared: Arc::clone(&shared), failing: false };
        (Self(shared), Writer { stop, task: tokio::spawn(work.run()) })
    }

    /// Records something that has just happened. Never waits.
    pub fn record(&self, entry: Entry) {
        let row = Message::Row(Box::new(entry.into_row(Timestamp::now())));
        if self.0.queue.try_send(row).is_err() && self.0.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                "the activity log cannot keep up; entries are dropped (activity_dropped in /metrics counts)"
            );
        }
    }

    /// Returns once everything recorded so far can be read, or after a second.
    pub async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flush = async {
            if self.0.queue.send(Message::Flush(done)).await.is_ok() {
                let _writer_ended = written.await;
            }
        };
        let _busy = tokio::time::timeout(FLUSH, flush).await;
    }

    /// Numbers for whoever watches.
    #[must_use]
    pub fn stats(&self) -> Stats {
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
            tracing::warn!("the last entries of the activity log could not be written");
        }
    }
}

struct Work {
    store: Store,
    retention: Retention,
    inbox: mpsc::Receiver<Message>,
    stop: CancellationToken,
    shared: Arc<Shared>,
    /// The last write failed: say so once, not ten times a second.
    failing: bool,
}

impl Work {
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
    async fn batch(&mut self, first: Message) -> usize {
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

    async fn write(&mut self, rows: &[ActivityRow]) {
        if rows.is_empty() {
            return;
        }
        let count = rows.len() as u64;
        match self.store.activity_add(rows).await {
            Ok(()) => {
                self.failing = false;
                self.shared.written.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.shared.dropped.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut self.failing, true) {
                    let cause = &error as &dyn std::error::Error;
                    tracing::error!(cause, "cannot write the activity log");
                }
            }
        }
    }

    /// One step; `true` when there may be more to remove.
    async fn prune(&mut self) -> bool {
        let age = SignedDuration::from_hours(i64::from(self.retention.days) * 24);
        let before = Timestamp::now().saturating_sub(age).unwrap_or(Timestamp::MIN);
        match self.store.activity_prune(self.retention.rows, before).await {
            Ok(removed) => removed >= PRUNE_STEP,
            Err(error) => {
                tracing::warn!(cause = &error as &dyn std::error::Error, "cannot remove old activity");
                false
            }
        }
    }
}
