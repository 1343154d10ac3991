//! One edge on a port of its own, sandboxes whose agents are scripts on Unix sockets, and plain clients.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{PreviewAccess, PreviewPort, Published, SandboxId, SandboxState};
use edge::{
    Admission, ByteStream, Ca, DialError, Directory, Drained, Edge, EdgeConfig, Event, Hosts, Limits,
    Observer, PreviewAdmission, Traffic,
};
use http::{Request, Response};
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Nothing here takes long; longer is a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const HOST: &str = "sandbox.superserve.ai";

pub(crate) type Body = BoxBody<Bytes, Infallible>;

pub(crate) fn body(text: impl Into<Bytes>) -> Body {
    BoxBody::new(Full::new(text.into()))
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) token: String,
    pub(crate) socket: PathBuf,
    pub(crate) state: watch::Sender<SandboxState>,
    /// Streams opened to its agent so far.
    pub(crate) opened: AtomicUsize,
    /// The host does not give a stream while this is held.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// Published ports; whoever waits for a change looks again after each.
    pub(crate) ports: watch::Sender<HashMap<u16, Published>>,
}

impl Sandbox {
    /// Publishes a port whose server is the sandbox's agent, or takes it back.
    pub(crate) fn publish(&self, port: u16, access: Option<PreviewAccess>, generation: u64) {
        self.ports.send_modify(|ports| match access {
            Some(access) => drop(ports.insert(port, Published { access, generation })),
            None => drop(ports.remove(&port)),
        });
    }

    /// What opens a private port of this generation; `end` is `never`, `expired` or a second.
    pub(crate) fn preview_token(&self, port: u16, generation: u64, end: &str) -> String {
        format!("spv1-{}-{port}-{generation}-{end}", self.id.to_string().replace('-', ""))
    }

    pub(crate) fn preview_host(&self, port: u16) -> String {
        format!("{port}-{}.{HOST}", self.id)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sandboxes(Mutex<HashMap<SandboxId, Arc<Sandbox>>>);

impl Sandboxes {
    fn get(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        self.0.lock().unwrap().get(&id).cloned()
    }
}

/// Requests that ended, in their order.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<VecDeque<Event>>);

impl Observer for Events {
    fn data_plane(&self, event: Event) {
        self.0.lock().unwrap().push_back(event);
    }
}

#[async_trait]
impl Directory for Sandboxes {
    async fn state(&self, id: SandboxId) -> Option<SandboxState> {
        self.get(id).map(|sandbox| *sandbox.state.borrow())
    }

    async fn inactive(&self, id: SandboxId) {
        if let Some(sandbox) = self.get(id) {
            let _ = sandbox.state.subscribe().wait_for(|state| *state != SandboxState::Active).await;
        }
    }

    async fn admit(&self, id: SandboxId, token: &str) -> Admission {
        match self.get(id) {
            Some(sandbox) if sandbox.token == token => Admission::Granted,
            _ => Admission::Denied,
        }
    }

    async fn agent(&self, id: SandboxId) -> std::io::Result<Box<dyn ByteStream>> {
        let sandbox = self.get(id).ok_or(std::io::ErrorKind::NotFound)?;
        sandbox.opened.fetch_add(1, Ordering::Relaxed);
        let _open = sandbox.gate.lock().await;
        Ok(Box::new(UnixStream::connect(&sandbox.socket).await?))
    }

    async fn preview(&self, id: SandboxId, port: PreviewPort) -> Option<Published> {
        self.get(id)?.ports.borrow().get(&port.get()).copied()
    }

    async fn admit_preview(
        &self,
        id: SandboxId,
        port: PreviewPort,
        published: Published,
        token: &str,
    ) -> PreviewAdmission {
        let Some(sandbox) = self.get(id) else { return PreviewAdmission::Denied };
        let good = |end: &str| sandbox.preview_token(port.get(), published.generation, end);
        if token == good("expired") {
            return PreviewAdmission::Expired;
        }
        let end = token.rsplit('-').next().unwrap_or_default();
        match end.parse::<i64>() {
            _ if token != good(end) => PreviewAdmission::Denied,
            Ok(end) => PreviewAdmission::Granted(Some(jiff::Timestamp::from_second(end).unwrap())),
            Err(_) => PreviewAdmission::Granted(None),
        }
    }

    async fn preview_changed(&self, id: SandboxId, port: PreviewPort, published: Published) {
        if let Some(sandbox) = self.get(id) {
            let mut ports = sandbox.ports.subscribe();
            let _ = ports.wait_for(|ports| ports.get(&port.get()) != Some(&published)).await;
        }
    }

    async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<Box<dyn ByteStream>, DialError> {
        // A port ending in 9 is one that nothing listens on.
        if port.get() % 10 == 9 {
            return Err(DialError::NotListening);
        }
        self.agent(id).await.map_err(DialError::Failed)
    }
}

pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) ca: Arc<Ca>,
    pub(crate) dir: tempfile::TempDir,
    sandboxes: Arc<Sandboxes>,
    events: Arc<Events>,
    pub(crate) traffic: Traffic,
    stop: CancellationToken,
    server: Option<JoinHandle<Drained>>,
    agents: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Limits::default()).await
    }

    pub(crate) async fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hosts = Hosts::default();
        let ca = Arc::new(Ca::open(dir.path(), &hosts).unwrap());
        let sandboxes = Arc::new(Sandboxes::default());
        let events = Arc::new(Events::default());
        let traffic = Traffic::default();
        let config = EdgeConfig {
            tls: edge::server_config(Arc::clone(&ca), &hosts).unwrap(),
            hosts,
            cors_origins: vec!["https://console.example".to_owned()],
            limits,
            observer: Arc::clone(&events) as Arc<dyn Observer>,
            traffic: traffic.clone(),
        };
        let edge = Edge::new(config, Arc::clone(&sandboxes) as Arc<dyn Directory>);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move { edge.serve(listener, stopped).await });
        let (server, agents) = (Some(server), Mutex::default());
        Self { address, ca, dir, sandboxes, events, traffic, stop, server, agents }
    }

    /// The next request that ended.
    pub(crate) async fn ended(&self) -> Event {
        let event = async {
            loop {
                let next = self.events.0.lock().unwrap().pop_front();
                match next {
                    Some(event) => return event,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        within("the end of a request", event).await
    }

    pub(crate) async fn stop(&mut self) -> Drained {
        self.stop.cancel();
        self.server.take().unwrap().await.unwrap()
    }

    /// An active sandbox whose agent's connections are given to `script` as raw streams.
    pub(crate) fn raw_sandbox<F>(&self, script: impl Fn(UnixStream) -> F + Send + 'static) -> Arc<Sandbox>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let sandbox = self.sandbox_at(None);
        let listener = UnixListener::bind(&sandbox.socket).unwrap();
        let agent = tokio::spawn(async move {
            let mut streams = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                streams.spawn(script(stream));
            }
        });
        self.agents.lock().unwrap().push(AbortOnDropHandle::new(agent));
        sandbox
    }

    /// An active sandbox whose agent answers with `script`.
    pub(crate) fn sandbox<F>(
        &self,
        script: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    ) -> Arc<Sandbox>
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        self.raw_sandbox(move |stream| {
            let script = script.clone();
            async move {
                let service = hyper::service::service_fn(move |request| {
                    let answer = script(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
            }
        })
    }

    /// An active sandbox with an agent on a socket made elsewhere, or to be made.
    pub(crate) fn sandbox_at(&self, socket: Option<PathBuf>) -> Arc<Sandbox> {
        let id = SandboxId::new();
        let socket = socket.unwrap_or_else(|| self.dir.path().join(format!("{id}.sock")));
        let sandbox = Arc::new(Sandbox {
            id,
            token: format!("token-of-{id}"),
            socket,
            state: watch::Sender::new(SandboxState::Active),
            opened: AtomicUsize::new(0),
            gate: tokio::sync::Mutex::new(()),
            ports: watch::Sender::default(),
        });
        self.sandboxes.0.lock().unwrap().insert(id, Arc::clone(&sandbox));
        sandbox
    }

    pub(crate) async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes over plain TCP and reads all that comes back until the connection ends.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.tcp().await;
        stream.write_all(request.as_ref()).await.unwrap();
        read_all(stream).await
    }

    /// A request on the shared host over plain HTTP.
    pub(crate) async fn send(&self, sandbox: &Sandbox, method: &str, target: &str, rest: &str) -> Answer {
        self.raw(request(sandbox, method, target, rest)).await
    }

    pub(crate) fn connector(&self, alpn: &[&str]) -> TlsConnector {
        connector(self.ca.pem(), alpn)
    }

    pub(crate) async fn tls(&self, name: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        self.connector(&["http/1.1"]).connect(name, self.tcp().await).await.unwrap()
    }
}

pub(crate) fn connector(ca_pem: &str, alpn: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// A request with all a sandbox wants, for the shared host; `rest` are further header lines, then the body after an
/// empty line.
pub(crate) fn request(sandbox: &Sandbox, method: &str, target: &str, rest: &str) -> String {
    let rest = if rest.contains("\r\n\r\n") { rest.to_owned() } else { format!("{rest}\r\n") };
    format!(
        "{method} {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX-Superserve-Sandbox-Id: {}\r\n\
         X-Access-Token: {}\r\n{rest}",
        sandbox.id, sandbox.token
    )
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn has(&self, line: &str) -> bool {
        self.head.lines().any(|l| l.eq_ignore_ascii_case(line))
    }
}

pub(crate) async fn read_all(mut stream: impl AsyncRead + Unpin) -> Answer {
    let mut bytes = Vec::new();
    // A server that closes without a TLS farewell or with a reset ends the answer too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("no answer in time");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

pub(crate) async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: String) -> Answer {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    read_all(stream).await
}

/// Reads up to and including the empty line after a head.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("no head in time");
    String::from_utf8(head).unwrap()
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} took too long"))
}
