//! The network log's recording end. Guests decide how much is recorded here, so no sandbox gets the whole queue: one that
//! floods it loses rows of its own, not those of others, and a flood of look-ups does not cost it its connections.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use domain::{Attempt, NetworkEvent, NetworkKind, NetworkSink, SandboxId, SecretId};
use jiff::Timestamp;
use store::{NetworkRetention, PRUNE_STEP, Store, StoreError};

use crate::queue::{Log, QUEUE, Queue, Stats, Writer};

/// One sandbox's part of the queue.
const SHARE: usize = 4;
/// The part of look-ups and refused packets of one sandbox.
const EXTRA_SHARE: usize = 16;

/// Takes events of the gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NetworkLog {
    queue: Queue<NetworkEvent>,
    waiting: Waiting,
    size: usize,
}

/// What waits in the queue, by sandbox: all of it, and what is shown only when asked for.
type Waiting = Arc<Mutex<HashMap<SandboxId, (usize, usize)>>>;

impl NetworkLog {
    /// Begins to write to `store`.
    #[must_use]
    pub fn start(store: Store, retention: NetworkRetention) -> (Self, Writer) {
        Self::with_queue(store, retention, QUEUE)
    }

    pub(crate) fn with_queue(store: Store, retention: NetworkRetention, size: usize) -> (Self, Writer) {
        let waiting = Waiting::default();
        let table = Table {
            store,
            retention,
            waiting: Arc::clone(&waiting),
            written: HashSet::new(),
            used: HashSet::new(),
            due: Vec::new(),
            started: false,
        };
        let (queue, writer) = Queue::start(table, size);
        (Self { queue, waiting, size }, writer)
    }

    /// Returns once everything recorded so far can be read, or after a second.
    pub async fn flush(&self) {
        self.queue.flush().await;
    }

    /// Numbers for whoever watches.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.queue.stats()
    }
}

impl NetworkSink for NetworkLog {
    fn record(&self, event: NetworkEvent) {
        let extra = usize::from(is_extra(&event));
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, extras) = waiting.get(&event.sandbox).copied().unwrap_or_default();
        if all >= self.size / SHARE || (extra == 1 && extras >= self.size / EXTRA_SHARE) {
            return self.queue.drop_one();
        }
        let sandbox = event.sandbox;
        // Counted under the lock, so that the writer cannot take it out before.
        if self.queue.push(event) {
            waiting.insert(sandbox, (all + 1, extras + extra));
        }
    }
}

fn is_extra(event: &NetworkEvent) -> bool {
    NetworkKind::EXTRA.contains(&event.what.kind())
}

/// Rows that may be too many.
#[derive(Clone, Copy)]
enum Due {
    Log(SandboxId, [NetworkKind; 2]),
    Audit(SecretId),
}

struct Table {
    store: Store,
    retention: NetworkRetention,
    waiting: Waiting,
    /// Who got rows since old ones were last looked for.
    written: HashSet<SandboxId>,
    /// Which secrets were used since then.
    used: HashSet<SecretId>,
    /// Whose old rows are to be removed next.
    due: Vec<Due>,
    /// Everybody has been looked at once, since the setting may be another than it was.
    started: bool,
}

impl Log for Table {
    type Row = NetworkEvent;

    const NAME: &'static str = "network";

    async fn add(&mut self, events: &[NetworkEvent]) -> Result<(), StoreError> {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            for event in events {
                if let Some((all, extras)) = waiting.get_mut(&event.sandbox) {
                    *all = all.saturating_sub(1);
                    *extras = extras.saturating_sub(usize::from(is_extra(event)));
                    if *all == 0 {
                        waiting.remove(&event.sandbox);
                    }
                }
                self.written.insert(event.sandbox);
                if let Attempt::Request(request) = &event.what {
                    self.used.extend(request.secret);
                }
            }
        }
        self.store.network_log_add(events).await
    }

    async fn prune(&mut self) -> Result<bool, StoreError> {
        let keep = self.retention.rows;
        if let Some(due) = self.due.last().copied() {
            let removed = match due {
                Due::Log(sandbox, kinds) => self.store.network_log_prune(sandbox, &kinds, keep).await?,
                Due::Audit(secret) => self.store.secret_audit_prune(secret, keep).await?,
            };
            if removed < PRUNE_STEP {
                self.due.pop();
            }
            return Ok(true);
        }
        let before = self.retention.since(Timestamp::now());
        let removed = [
            self.store.network_log_prune_old(before).await?,
            self.store.secret_audit_prune_old(before).await?,
        ];
        if removed.iter().any(|removed| *removed >= PRUNE_STEP) {
            return Ok(true);
        }
        for kinds in [NetworkKind::PUBLISHED, NetworkKind::EXTRA] {
            let ids = if self.started {
                self.written.iter().copied().collect()
            } else {
                self.store.network_log_crowded(&kinds, keep).await?
            };
            self.due.extend(ids.into_iter().map(|id| Due::Log(id, kinds)));
        }
        self.due.extend(self.used.drain().map(Due::Audit));
        self.started = true;
        self.written.clear();
        Ok(!self.due.is_empty())
    }
}
