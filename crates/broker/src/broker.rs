//! The broker, and one connection from its ClientHello to its end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Credentials, NetworkSink, SandboxId};
use egress::{Intercepted, Interceptor};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ca::Ca;
use crate::head;
use crate::session::Session;
use crate::tasks::Tasks;
use crate::tls::{self, Protocol, Tls};
use crate::upstream::{CONNECTION_WINDOW, MAX_HEADERS, SEND_BUFFER, STREAM_WINDOW, Upstream};

/// Connections of one sandbox at once; each may hold some megabytes.
const MAX_CONNECTIONS: usize = 256;
/// Largest head of a request. Services accept 8 to 64 KiB.
const MAX_HEAD: usize = 128 * 1024;
/// Requests of one HTTP/2 connection at once, as most services have it.
const MAX_STREAMS: u32 = 128;
/// Between two requests, and until a head is whole. Services close earlier; this is for guests that forget connections.
const IDLE: Duration = Duration::from_secs(600);

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A certificate that should be trusted is none.
    #[error("a certificate that services are to be trusted by cannot be used: {0}")]
    Trust(#[from] rustls::Error),
}

/// Opens TLS towards the hosts of bound secrets.
pub struct Broker {
    ca: Ca,
    tls: Arc<Tls>,
    credentials: Arc<dyn Credentials>,
    sink: Arc<dyn NetworkSink>,
    open: Arc<Mutex<HashMap<SandboxId, usize>>>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Broker {
    /// Services are trusted by the host's public roots, and by the `extra` ones.
    ///
    /// # Errors
    /// One of the extra certificates is none.
    pub fn new(
        ca: Ca,
        extra: &[CertificateDer<'static>],
        credentials: Arc<dyn Credentials>,
        sink: Arc<dyn NetworkSink>,
    ) -> Result<Self, BrokerError> {
        Ok(Self { ca, tls: Arc::new(Tls::new(extra)?), credentials, sink, open: Arc::default() })
    }

    /// The authority that sandboxes with secrets must trust.
    #[must_use]
    pub fn ca(&self) -> &Ca {
        &self.ca
    }
}

#[async_trait]
impl Interceptor for Broker {
    fn concerns(&self, sandbox: SandboxId) -> bool {
        !self.credentials.bound(sandbox).is_empty()
    }

    fn wants(&self, sandbox: SandboxId, host: &str) -> bool {
        self.credentials.bound(sandbox).iter().any(|bound| bound.policy.covers(host))
    }

    async fn serve(&self, visit: Intercepted) {
        let Some(_place) = Place::take(&self.open, visit.sandbox) else { return };
        let tasks = Tasks { tracker: TaskTracker::new(), over: CancellationToken::new() };
        let _ends_with_this = tasks.over.clone().drop_guard();
        let Some(started) = tls::hello(visit.guest).await else { return };
        let offer = {
            let hello = started.client_hello();
            // What was judged is the name the gateway has read.
            if !hello.server_name().is_some_and(|name| head::same_host(name, &visit.host)) {
                return;
            }
            tls::offered(&hello)
        };
        let Ok(leaf) = self.ca.leaf(&visit.host).inspect_err(|error| {
            tracing::error!(%error, "cannot sign for a host");
        }) else {
            return;
        };
        let opened =
            Upstream::open(Arc::clone(&self.tls), visit.host.clone(), visit.dial, tasks.clone(), offer).await;
        let (upstream, protocol) = opened;
        let Some(stream) = self.tls.accept(started, leaf, protocol).await else { return };
        let session = Arc::new(Session {
            sandbox: visit.sandbox,
            host: visit.host,
            protocol,
            upstream,
            credentials: Arc::clone(&self.credentials),
            sink: Arc::clone(&self.sink),
            tunnels: Tasks { tracker: TaskTracker::new(), over: tasks.over.clone() },
        });
        let tunnels = session.tunnels.tracker.clone();
        let service = service_fn(move |request| {
            let session = Arc::clone(&session);
            async move { Ok::<_, Infallible>(session.answer(request).await) }
        });
        let io = TokioIo::new(stream);
        // How a connection ends is its guest's business.
        let _ended = match protocol {
            Protocol::Http1 => {
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(IDLE)
                    .preserve_header_case(true)
                    .auto_date_header(false)
                    .max_headers(MAX_HEADERS)
                    .max_header_size(MAX_HEAD)
                    .serve_connection(io, service)
                    .with_upgrades()
                    .await
            }
            Protocol::Http2 => {
                http2::Builder::new(tasks.clone())
                    .timer(TokioTimer::new())
                    .auto_date_header(false)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .max_concurrent_streams(MAX_STREAMS)
                    .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
                    .serve_connection(io, service)
                    .await
            }
        };
        tunnels.close();
        tunnels.wait().await;
    }
}

/// One of the connections a sandbox may have.
struct Place {
    open: Arc<Mutex<HashMap<SandboxId, usize>>>,
    sandbox: SandboxId,
}

impl Place {
    fn take(open: &Arc<Mutex<HashMap<SandboxId, usize>>>, sandbox: SandboxId) -> Option<Self> {
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(sandbox).or_default();
        if *count >= MAX_CONNECTIONS {
            return None;
        }
        *count += 1;
        Some(Self { open: Arc::clone(open), sandbox })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.sandbox);
            }
        }
    }
}
