//! The activity log's recording end.

use jiff::{SignedDuration, Timestamp};
use store::{ActivityRow, PRUNE_STEP, Store, StoreError};

use crate::Entry;
use crate::queue::{Log, QUEUE, Queue, Stats, Writer};

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
pub struct Recorder(Queue<ActivityRow>);

impl Recorder {
    /// Begins to write to `store`.
    #[must_use]
    pub fn start(store: Store, retention: Retention) -> (Self, Writer) {
        Self::with_queue(store, retention, QUEUE)
    }

    pub(crate) fn with_queue(store: Store, retention: Retention, size: usize) -> (Self, Writer) {
        let (queue, writer) = Queue::start(Table { store, retention }, size);
        (Self(queue), writer)
    }

    /// Records something that has just happened. Never waits.
    pub fn record(&self, entry: Entry) {
        self.0.push(entry.into_row(Timestamp::now()));
    }

    /// Returns once everything recorded so far can be read, or after a second.
    pub async fn flush(&self) {
        self.0.flush().await;
    }

    /// Numbers for whoever watches.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }
}

struct Table {
    store: Store,
    retention: Retention,
}

impl Log for Table {
    type Row = ActivityRow;

    const NAME: &'static str = "activity";

    async fn add(&mut self, rows: &[ActivityRow]) -> Result<(), StoreError> {
        self.store.activity_add(rows).await
    }

    async fn prune(&mut self) -> Result<bool, StoreError> {
        let age = SignedDuration::from_hours(i64::from(self.retention.days) * 24);
        let before = Timestamp::now().saturating_sub(age).unwrap_or(Timestamp::MIN);
        Ok(self.store.activity_prune(self.retention.rows, before).await? >= PRUNE_STEP)
    }
}
