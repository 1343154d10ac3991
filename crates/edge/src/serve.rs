//! The listener: one port that speaks TLS, plain HTTP and CONNECT, told apart by the first bytes. A tunnel leads to this
//! server's own TLS side without a second socket, and nowhere else.
//!
//! ```text
//! accept ─▶ place ─▶ first byte ─┬─ 0x16 ─▶ TLS ─▶ h2 | http/1.1 ─▶ service::handle
//!                                └─ else ─▶ http/1.1 ─┬─────────────▶ service::handle
//!                                                     └─ CONNECT own host:443 ─▶ TLS …
//! ```

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agents::Agents;
use crate::answer::{self, Body};
use crate::limits::{Clients, Limits, Place};
use crate::observe::Watched;
use crate::{Directory, Hosts, Observer, Traffic, service};

/// A client that opened a connection has something to say at once; this is for slow networks.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// A TLS handshake is two round trips.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request head must be complete, and a kept connection used again, within this. Longer than clients keep idle
/// connections (official SDKs 5 s, our own 50 s), so that they close first and no request meets a closing connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// An HTTP/2 connection without a valid token by now is asked to end; HTTP/1.1 has the bound above.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a refused connection to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// After an accept error (no descriptors left, mostly) others must finish first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long requests in flight may take after a stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);
/// Cut connections end at once; this is only a guard.
const CUT: Duration = Duration::from_secs(2);
/// A silent peer is asked whether it lives after this long.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Bounds on request heads: an SDK sends about 15 headers and 1 KiB.
const MAX_HEADERS: usize = 100;
const MAX_HEAD: usize = 32 * 1024;
const MAX_HEAD_LIST: u32 = 32 * 1024;
/// Buffer of one connection.
const CONNECTION_BUFFER: usize = 128 * 1024;
/// HTTP/2: streams of one connection, and the window of each for fast uploads.
const MAX_STREAMS: u32 = 200;
const STREAM_WINDOW: u32 = 1024 * 1024;

/// First byte of a TLS record that carries a handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// What an [`Edge`] is made of.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// Names it answers to.
    pub hosts: Hosts,
    /// Certificate and protocols, see [`crate::server_config`].
    pub tls: Arc<rustls::ServerConfig>,
    /// Origins whose pages may use `/files`, e.g. `http://127.0.0.1:8080`.
    pub cors_origins: Vec<String>,
    /// Caps.
    pub limits: Limits,
    /// Who is told of each request that is over.
    pub observer: Arc<dyn Observer>,
    /// Where traffic of previews is kept.
    pub traffic: Traffic,
}

/// The data plane's front door. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Edge(Arc<Shared>);

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All requests were answered.
    Clean,
    /// This many connections and sessions were cut.
    Cut(usize),
}

pub(crate) struct Shared {
    pub(crate) hosts: Hosts,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) directory: Arc<dyn Directory>,
    pub(crate) agents: Agents,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) traffic: Traffic,
    pub(crate) limits: Limits,
    clients: Arc<Clients>,
    connections: Arc<Semaphore>,
    tls: TlsAcceptor,
}

/// Everything one server has spawned, and how to end it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    pub(crate) tracker: TaskTracker,
    /// Finish what is in flight.
    pub(crate) drain: CancellationToken,
    /// Stop now.
    cut: CancellationToken,
}

/// One connection, tunnelled or not.
pub(crate) struct Connection {
    pub(crate) edge: Arc<Shared>,
    pub(crate) place: Arc<Place>,
    pub(crate) tasks: Tasks,
    /// Too many of this address: every request is answered with 429.
    pub(crate) refused: bool,
    pub(crate) peer: IpAddr,
    pub(crate) encrypted: bool,
    /// Counts towards all connections; a tunnel keeps the permit of the connection it came through.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Edge").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Edge {
    /// An edge in front of the sandboxes of `directory`.
    #[must_use]
    pub fn new(config: EdgeConfig, directory: Arc<dyn Directory>) -> Self {
        let EdgeConfig { hosts, tls, cors_origins, limits, observer, traffic } = config;
        Self(Arc::new(Shared {
            hosts,
            cors_origins,
            observer,
            traffic,
            limits,
            agents: Agents::new(Arc::clone(&directory), limits.per_sandbox),
            directory,
            clients: Arc::new(Clients::new(limits)),
            connections: Arc::new(Semaphore::new(limits.connections)),
            tls: TlsAcceptor::from(tls),
        }))
    }

    /// Serves until `shutdown` ends, then finishes what is in flight within 10 s and cuts the rest.
    ///
    /// # Cancel safety
    /// Dropping the future stops accepting; connections that are open end by themselves.
    pub async fn serve(&self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Drained {
        let tasks = Tasks::default();
        let mut shutdown = pin!(shutdown);
        let mut sweep = tokio::time::interval(Agents::SWEEP);
        loop {
            tokio::select! {
                // In order: a busy listener must not delay the stop.
                biased;
                () = &mut shutdown => break,
                _ = sweep.tick() => self.sweep().await,
                (stream, peer, permit) = self.accept(&listener) => {
                    let edge = Arc::clone(&self.0);
                    let cut = tasks.cut.clone();
                    let connection = serve_tcp(edge, tasks.clone(), stream, peer, permit);
                    tasks.tracker.spawn(async move {
                        tokio::select! {
                            () = connection => {}
                            () = cut.cancelled() => {}
                        }
                    });
                }
            }
        }
        drop(listener);
        tasks.drain.cancel();
        tasks.tracker.close();
        if tokio::time::timeout(DRAIN, tasks.tracker.wait()).await.is_ok() {
            return Drained::Clean;
        }
        let left = tasks.tracker.len();
        tasks.cut.cancel();
        let _ = tokio::time::timeout(CUT, tasks.tracker.wait()).await;
        Drained::Cut(left)
    }

    /// Forgets what nobody needs any more.
    async fn sweep(&self) {
        self.0.agents.sweep();
        for id in self.0.traffic.sandboxes() {
            if self.0.directory.state(id).await.is_none() {
                self.0.traffic.forget(id);
            }
        }
    }

    async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            if let Ok(permit) = Arc::clone(&self.0.connections).acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, peer)) => return (stream, peer, permit),
                    Err(error) => tracing::warn!(%error, "cannot accept a connection"),
                }
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn serve_tcp(
    edge: Arc<Shared>,
    tasks: Tasks,
    stream: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    let Some(place) = edge.clients.enter(peer.ip()) else { return };
    tune(&stream);
    let mut first = [0];
    let peek = tokio::time::timeout(FIRST_BYTE_TIMEOUT, async {
        let turn = place.turn().await;
        (turn, stream.peek(&mut first).await)
    });
    let Ok((turn, Ok(1))) = peek.await else { return };
    let encrypted = first[0] == TLS_HANDSHAKE;
    let connection = Arc::new(Connection {
        edge,
        place: Arc::new(place),
        tasks,
        refused: !turn,
        peer: peer.ip(),
        encrypted,
        _permit: Arc::new(permit),
    });
    let refused = connection.refused;
    let serve = async {
        if encrypted { serve_tls(connection, stream).await } else { serve_http1(connection, stream).await }
    };
    if refused {
        let _ = tokio::time::timeout(REFUSAL_TIMEOUT, serve).await;
    } else {
        serve.await;
    }
}

/// Small answers must leave at once, and a peer that vanished without a word must be noticed.
fn tune(stream: &TcpStream) {
    let tuned = stream.set_nodelay(true).and_then(|()| {
        rustix::net::sockopt::set_socket_keepalive(stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
        Ok(rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?)
    });
    if let Err(error) = tuned {
        tracing::debug!(%error, "socket options");
    }
}

async fn serve_tls<S>(connection: Arc<Connection>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = connection.edge.tls.accept(stream);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
            serve_http2(connection, stream).await;
        }
        Ok(Ok(stream)) => serve_http1(connection, stream).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve_http1<S>(connection: Arc<Connection>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let drain = connection.tasks.drain.clone();
    let service = service_fn(move |request| answer_request(Arc::clone(&connection), request));
    let server = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD)
        .max_buf_size(CONNECTION_BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut server = pin!(server);
    let result = tokio::select! {
        result = server.as_mut() => result,
        () = drain.cancelled() => {
            server.as_mut().graceful_shutdown();
            server.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

async fn serve_http2<S>(connection: Arc<Connection>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let tasks = connection.tasks.clone();
    let place = Arc::clone(&connection.place);
    let stranger = async move {
        tokio::time::sleep(STRANGER_TIMEOUT).await;
        if place.is_authenticated() {
            std::future::pending::<()>().await;
        }
    };
    let service = service_fn(move |request| answer_request(Arc::clone(&connection), request));
    let server = http2::Builder::new(Tracked(tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_LIST)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(4 * STREAM_WINDOW)
        .serve_connection(TokioIo::new(stream), service);
    let mut server = pin!(server);
    let result = tokio::select! {
        result = server.as_mut() => result,
        () = tasks.drain.cancelled() => {
            server.as_mut().graceful_shutdown();
            server.await
        }
        () = stranger => {
            server.as_mut().graceful_shutdown();
            server.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer_request(
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Watched>, Infallible> {
    Ok(service::handle(connection, request).await)
}

/// Runs HTTP/2 streams as tasks of the server.
#[derive(Clone)]
struct Tracked(Tasks);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let cut = self.0.cut.clone();
        self.0.tracker.spawn(async move {
            tokio::select! {
                _ = future => {}
                () = cut.cancelled() => {}
            }
        });
    }
}

impl Connection {
    /// `CONNECT`: a tunnel to the TLS side of this server, for the sandbox hosts only. Never an open proxy.
    pub(crate) fn connect(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let ours = request.uri().authority().is_some_and(|authority| {
            authority.port_u16() == Some(443)
                && !authority.as_str().contains('@')
                && self.edge.hosts.covers(authority.host())
        });
        if self.encrypted || !ours {
            return answer::and_close(answer::text(
                StatusCode::FORBIDDEN,
                "this proxy reaches the sandbox hosts of this server on port 443 and nothing else; set NO_PROXY for \
                 other hosts, or unset HTTPS_PROXY\n",
            ));
        }
        let inner = Arc::new(Self {
            edge: Arc::clone(&self.edge),
            place: Arc::clone(&self.place),
            tasks: self.tasks.clone(),
            refused: false,
            peer: self.peer,
            encrypted: true,
            _permit: Arc::clone(&self._permit),
        });
        let cut = self.tasks.cut.clone();
        // Boxed, because the type of a tunnel's future contains the type of this one.
        let tunnel: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let upgraded = tokio::time::timeout(HANDSHAKE_TIMEOUT, hyper::upgrade::on(request)).await;
            if let Ok(Ok(upgraded)) = upgraded {
                serve_tls(inner, TokioIo::new(upgraded)).await;
            }
        });
        self.tasks.tracker.spawn(async move {
            tokio::select! {
                () = tunnel => {}
                () = cut.cancelled() => {}
            }
        });
        answer::empty(StatusCode::OK)
    }
}
