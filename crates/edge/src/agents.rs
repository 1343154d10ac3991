//! Connections to guest agents: opened through the directory, kept for a moment for the next request, and closed at once
//! when a request is given up, because the agent ends a command when its connection closes. A connection is never
//! reused unless both the request and the response on it were complete.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::SandboxId;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::Directory;
use crate::limits::lock;
use crate::relay::RequestBody;

/// Opening a stream is local work of the host; longer means that something hangs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A kept connection is idle when it is put back; the driver task needs one turn to notice.
const READY_TIMEOUT: Duration = Duration::from_millis(100);
/// Kept connections are for bursts of requests. Short, so that the agent never closes first, and so that a connection
/// does not live through a pause that anybody notices.
const IDLE: Duration = Duration::from_secs(5);
/// Most kept connections of one sandbox.
const MAX_IDLE: usize = 8;
/// The guest writes the response head: bounds on it.
const MAX_RESPONSE_HEADERS: usize = 64;
const MAX_RESPONSE_HEAD: usize = 32 * 1024;
/// Buffer of one direction of one relayed exchange.
const RELAY_BUFFER: usize = 128 * 1024;

/// All sandboxes with requests in flight or kept connections.
#[derive(Debug)]
pub(crate) struct Agents {
    directory: Arc<dyn Directory>,
    per_sandbox: usize,
    known: Mutex<HashMap<SandboxId, Arc<Agent>>>,
}

#[derive(Debug)]
struct Agent {
    slots: Arc<Semaphore>,
    idle: Mutex<Vec<(Instant, Link)>>,
}

/// One HTTP connection to an agent; dropping it closes it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sender: SendRequest<RequestBody>,
    _driver: AbortOnDropHandle<()>,
}

/// The right to one exchange with a sandbox.
#[derive(Debug)]
pub(crate) struct Slot {
    id: SandboxId,
    agent: Arc<Agent>,
    _permit: OwnedSemaphorePermit,
}

/// A connection in use. Dropped early, the connection closes.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) link: Link,
    slot: Slot,
    request_done: Arc<AtomicBool>,
}

impl Agents {
    pub(crate) fn new(directory: Arc<dyn Directory>, per_sandbox: usize) -> Self {
        Self { directory, per_sandbox, known: Mutex::default() }
    }

    /// A place among the exchanges of this sandbox; `None` when it has too many.
    pub(crate) fn enter(&self, id: SandboxId) -> Option<Slot> {
        let agent = Arc::clone(lock(&self.known).entry(id).or_insert_with(|| {
            Arc::new(Agent { slots: Arc::new(Semaphore::new(self.per_sandbox)), idle: Mutex::default() })
        }));
        let permit = Arc::clone(&agent.slots).try_acquire_owned().ok()?;
        Some(Slot { id, agent, _permit: permit })
    }

    /// Closes the kept connections of a sandbox that does not run.
    pub(crate) fn forget(&self, id: SandboxId) {
        let agent = lock(&self.known).remove(&id);
        if let Some(agent) = agent {
            lock(&agent.idle).clear();
        }
    }

    /// Closes connections that were idle for too long, and forgets sandboxes without any.
    pub(crate) fn sweep(&self) {
        lock(&self.known).retain(|_, agent| {
            let mut idle = lock(&agent.idle);
            idle.retain(|(since, _)| since.elapsed() < IDLE);
            !idle.is_empty() || Arc::strong_count(agent) > 1
        });
    }

    /// How often to [`sweep`](Self::sweep).
    pub(crate) const SWEEP: Duration = IDLE;

    /// A kept connection, if there is a good one.
    pub(crate) async fn kept(&self, slot: &Slot) -> Option<Link> {
        loop {
            let (since, mut link) = lock(&slot.agent.idle).pop()?;
            if since.elapsed() < IDLE
                && !link.sender.is_closed()
                && matches!(tokio::time::timeout(READY_TIMEOUT, link.sender.ready()).await, Ok(Ok(())))
            {
                return Some(link);
            }
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self, slot: &Slot) -> io::Result<Link> {
        let open = async {
            let stream = self.directory.agent(slot.id).await?;
            let (sender, connection) = http1::Builder::new()
                .max_headers(MAX_RESPONSE_HEADERS)
                .max_header_size(MAX_RESPONSE_HEAD)
                .max_buf_size(RELAY_BUFFER)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)?;
            let driver = tokio::spawn(async move {
                // Errors reach the exchange that is in flight; without one nobody is interested.
                let _ = connection.with_upgrades().await;
            });
            Ok(Link { sender, _driver: AbortOnDropHandle::new(driver) })
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, open).await {
            Ok(link) => link,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the agent did not accept in time")),
        }
    }
}

impl Lease {
    pub(crate) fn new(link: Link, slot: Slot, request_done: Arc<AtomicBool>) -> Self {
        Self { link, slot, request_done }
    }

    /// The response was read to its end: keeps the connection, unless the request was not sent to its end.
    pub(crate) fn complete(self) {
        if !self.request_done.load(Ordering::Acquire) || self.link.sender.is_closed() {
            return;
        }
        let mut idle = lock(&self.slot.agent.idle);
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), self.link));
        }
    }
}
