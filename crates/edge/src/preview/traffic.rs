//! What happens at published ports, for their owner: counters, the latest requests, and the operator's caps. Kept in
//! memory and bounded; nothing of it is the truth about anything.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::{PreviewPort, SandboxId};
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::limits::lock;
use crate::observe::Outcome;

/// Ports that are remembered at once; the one nobody has visited for the longest time makes room.
const MAX_PORTS: usize = 1_024;
/// Latest requests of one port that are kept.
const MAX_VISITS: usize = 100;
/// Requests that a guest is given before it has taken up one of them. As many as a browser gives a server of its own: the
/// queues of development servers are made for that (five connections in Python), and one that overflows costs seconds.
const MAX_NEW: usize = 6;
/// Bytes of a path that are kept.
const MAX_PATH: usize = 200;
/// Bytes of a method that are kept.
const MAX_METHOD: usize = 16;

/// Traffic of all published ports. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<Ports>>);

type Ports = HashMap<(SandboxId, PreviewPort), Arc<Port>>;

/// What has happened at a port since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortTraffic {
    /// Requests that were let in.
    pub requests: u64,
    /// Requests that were not: no token, a cap, a sandbox that does not run.
    pub refused: u64,
    /// Requests and sessions that are open now.
    pub open: u64,
    /// Bytes of bodies and sessions from visitors.
    pub bytes_in: u64,
    /// Bytes of bodies and sessions to visitors.
    pub bytes_out: u64,
    /// When the last request came.
    pub last: Option<Timestamp>,
}

/// One request that was let in, after its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// What the log calls it.
    pub request: Uuid,
    /// When it ended.
    pub at: Timestamp,
    /// Its method, shortened.
    pub method: String,
    /// Its path without the query, shortened.
    pub path: String,
    /// HTTP status; 0 when the visitor left before there was one.
    pub status: u16,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes from the visitor.
    pub bytes_in: u64,
    /// Bytes to the visitor.
    pub bytes_out: u64,
    /// From its head to its end.
    pub took: Duration,
    /// Who came.
    pub client: IpAddr,
}

/// One port.
#[derive(Debug)]
pub(crate) struct Port {
    requests: AtomicU64,
    refused: AtomicU64,
    open: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Milliseconds since 1970.
    last: AtomicU64,
    visits: Mutex<VecDeque<Visit>>,
    slots: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    rate: Mutex<Bucket>,
}

/// Requests that may still come now.
#[derive(Debug)]
struct Bucket {
    left: f64,
    since: Instant,
}

impl Traffic {
    /// What has happened at a port.
    #[must_use]
    pub fn of(&self, id: SandboxId, port: PreviewPort) -> PortTraffic {
        let Some(port) = lock(&self.0).get(&(id, port)).cloned() else { return PortTraffic::default() };
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let last = i64::try_from(read(&port.last)).ok().filter(|ms| *ms > 0);
        PortTraffic {
            requests: read(&port.requests),
            refused: read(&port.refused),
            open: read(&port.open),
            bytes_in: read(&port.bytes_in),
            bytes_out: read(&port.bytes_out),
            last: last.and_then(|ms| Timestamp::from_millisecond(ms).ok()),
        }
    }

    /// The latest requests of a port, newest first.
    #[must_use]
    pub fn visits(&self, id: SandboxId, port: PreviewPort) -> Vec<Visit> {
        let Some(port) = lock(&self.0).get(&(id, port)).cloned() else { return Vec::new() };
        let visits = lock(&port.visits);
        visits.iter().rev().cloned().collect()
    }

    pub(crate) fn port(&self, id: SandboxId, port: PreviewPort, slots: usize) -> Arc<Port> {
        let mut ports = lock(&self.0);
        if let Some(known) = ports.get(&(id, port)) {
            return Arc::clone(known);
        }
        if ports.len() >= MAX_PORTS {
            // What is in use stays, however long ago it began.
            let idle = ports.iter().filter(|(_, port)| Arc::strong_count(port) == 1);
            let oldest = idle.min_by_key(|(_, port)| port.last.load(Ordering::Relaxed)).map(|(key, _)| *key);
            oldest.map(|key| ports.remove(&key));
        }
        let made = Arc::new(Port::new(slots));
        ports.insert((id, port), Arc::clone(&made));
        made
    }

    /// Sandboxes with remembered ports.
    pub(crate) fn sandboxes(&self) -> Vec<SandboxId> {
        let mut ids: Vec<_> = lock(&self.0).keys().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Forgets a sandbox that is gone.
    pub(crate) fn forget(&self, gone: SandboxId) {
        lock(&self.0).retain(|(id, _), _| *id != gone);
    }
}

impl Port {
    fn new(slots: usize) -> Self {
        Self {
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            open: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            last: AtomicU64::new(0),
            visits: Mutex::default(),
            slots: Arc::new(Semaphore::new(slots)),
            turns: Arc::new(Semaphore::new(MAX_NEW)),
            rate: Mutex::new(Bucket { left: f64::INFINITY, since: Instant::now() }),
        }
    }

    /// A request has come.
    pub(crate) fn came(&self) {
        let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
        self.last.store(now, Ordering::Relaxed);
    }

    /// The right to one exchange; `None` when too many are open.
    pub(crate) fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Waits until the guest may be asked for one more thing; given back as soon as it has taken this one up.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Whether one more request keeps to so many a second; a second's worth may come at once.
    pub(crate) fn within(&self, per_second: u32) -> bool {
        let mut bucket = lock(&self.rate);
        let most = f64::from(per_second);
        let now = Instant::now();
        let since = now.duration_since(bucket.since).as_secs_f64();
        bucket.left = (bucket.left + since * most).min(most);
        bucket.since = now;
        let pass = bucket.left >= 1.0;
        if pass {
            bucket.left -= 1.0;
        }
        pass
    }

    pub(crate) fn opened(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn gave(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A request that was let in has ended.
    pub(crate) fn closed(&self, visit: Visit) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let mut visits = lock(&self.visits);
        if visits.len() >= MAX_VISITS {
            visits.pop_front();
        }
        visits.push_back(visit);
    }
}

/// A path as it is kept: without its query, shortened, printable.
pub(crate) fn shown_path(path: &str) -> String {
    path.chars().filter(|c| !c.is_control()).take(MAX_PATH).collect()
}

/// A method as it is kept.
pub(crate) fn shown_method(method: &http::Method) -> String {
    method.as_str().chars().take(MAX_METHOD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_oldest_goes() {
        let traffic = Traffic::default();
        let port = PreviewPort::new(3000).unwrap();
        let first = SandboxId::new();
        let held = traffic.port(first, port, 1);
        for _ in 0..MAX_PORTS + 10 {
            traffic.port(SandboxId::new(), port, 1).came();
        }
        assert_eq!(lock(&traffic.0).len(), MAX_PORTS);
        assert!(Arc::ptr_eq(&held, &traffic.port(first, port, 1)), "what is in use stays");
        for _ in 0..MAX_VISITS + 10 {
            held.opened();
            held.closed(Visit {
                request: Uuid::nil(),
                at: Timestamp::UNIX_EPOCH,
                method: String::new(),
                path: String::new(),
                status: 200,
                outcome: Outcome::Answered,
                bytes_in: 0,
                bytes_out: 0,
                took: Duration::ZERO,
                client: IpAddr::from([127, 0, 0, 1]),
            });
        }
        assert_eq!(traffic.visits(first, port).len(), MAX_VISITS);
        assert_eq!(traffic.of(first, port).open, 0);
        traffic.forget(first);
        assert_eq!(traffic.of(first, port), PortTraffic::default());
    }

    #[test]
    fn a_rate_lets_a_second_through_at_once() {
        let port = Port::new(1);
        let passed = (0..50).filter(|_| port.within(10)).count();
        assert!((10..12).contains(&passed), "{passed}");
    }

    #[test]
    fn exchanges_are_counted() {
        let port = Port::new(2);
        let (one, two) = (port.enter(), port.enter());
        assert!(one.is_some() && two.is_some() && port.enter().is_none());
        drop(one);
        assert!(port.enter().is_some());
    }
}
