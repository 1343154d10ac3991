//! A service under a private authority, a store of credentials, and guests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use broker::{Broker, Ca};
use bytes::Bytes;
use domain::{
    Attempt, Auth, AuthScheme, BoundSecret, Credentials, NetworkEvent, NetworkSink, NoValue, RequestAttempt,
    SandboxId, Secret, SecretId, SecretOptions, SecretPolicy, StandIn,
};
use egress::{Dial, DialError, Intercepted, Interceptor, Stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};
use uuid::Uuid;

pub(crate) const HOST: &str = "api.example.com";
pub(crate) const STAND_IN: &str = "ssrv_proxy_abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG";
pub(crate) const VALUE: &str = "real-value/with+signs=and%more";
/// Nothing here takes longer, also on a machine that is busy.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) fn full(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// Credentials, and what was recorded.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) all: Mutex<Vec<BoundSecret>>,
    pub(crate) rows: Mutex<Vec<NetworkEvent>>,
    pub(crate) values: AtomicUsize,
}

impl Credentials for Kept {
    fn bound(&self, sandbox: SandboxId) -> Arc<[BoundSecret]> {
        self.all.lock().unwrap().iter().filter(|one| one.sandbox == sandbox).cloned().collect()
    }

    fn find(&self, text: &str) -> Option<BoundSecret> {
        self.all.lock().unwrap().iter().find(|one| one.stand_in.as_str() == text).cloned()
    }

    fn value(&self, bound: &BoundSecret) -> Result<Secret, NoValue> {
        self.values.fetch_add(1, Ordering::Relaxed);
        let revoked = self.all.lock().unwrap().iter().any(|one| one.binding == bound.binding && one.revoked);
        if revoked { Err(NoValue::Revoked) } else { Ok(Secret::new(VALUE)) }
    }
}

impl NetworkSink for Kept {
    fn record(&self, event: NetworkEvent) {
        self.rows.lock().unwrap().push(event);
    }
}

/// A service: answers by path, over the protocols it is told to offer.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) roots: CertificateDer<'static>,
    pub(crate) connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Service {
    pub(crate) async fn start(alpn: &[&str]) -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let roots = ca.self_signed(&ca_key).unwrap().der().clone();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec![HOST.to_owned(), "*.example.org".to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![leaf.der().clone()], key)
                .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tcp.set_nodelay(true).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let acceptor = acceptor.clone();
                open.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
                    let served = AtomicU16::new(0);
                    let service = service_fn(move |request| {
                        let nth = served.fetch_add(1, Ordering::Relaxed);
                        async move { Ok::<_, Infallible>(answer(request, nth).await) }
                    });
                    let io = TokioIo::new(tls);
                    let _ended = if h2 {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(io, service)
                            .await
                            .is_ok()
                    } else {
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(io, service)
                            .with_upgrades()
                            .await
                            .is_ok()
                    };
                });
            }
        });
        Self { address, roots, connections, _tasks: tasks }
    }
}

async fn answer(mut request: Request<Incoming>, nth: u16) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let shown = |headers: &http::HeaderMap| {
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())))
            .collect::<String>()
    };
    let mut response = match path.as_str() {
        // The request as it arrived.
        "/echo" => {
            let line = format!("{} {}\n", request.method(), request.uri());
            let head = shown(request.headers());
            let body = request.into_body().collect().await.unwrap();
            let trailers = body.trailers().map(shown).unwrap_or_default();
            let size = body.to_bytes().len();
            Response::new(full(format!("{line}{head}size={size}\ntrailers={trailers}")))
        }
        // Whether the request carried the value, without repeating it.
        "/told" => {
            let all = request.headers().get_all(header::AUTHORIZATION).iter().count();
            let right =
                request.headers().get(header::AUTHORIZATION).is_some_and(|v| v == &format!("Bearer {VALUE}"));
            Response::new(full(format!("{all} {right}")))
        }
        "/hash" => {
            let mut body = request.into_body();
            let mut hash = Sha256::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.unwrap().into_data() {
                    hash.update(&data);
                }
            }
            Response::new(full(format!("{:x}", hash.finalize())))
        }
        "/bytes" => {
            let bytes: Vec<u8> = download();
            let mut response = Response::new(full(bytes));
            response.headers_mut().insert(header::CONTENT_TYPE, "application/octet-stream".parse().unwrap());
            response
        }
        "/events" => {
            let events = futures_util::stream::unfold(0, |n| async move {
                if n == 1 {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
                (n < 2).then(|| (Ok(Frame::data(Bytes::from(format!("data: {n}\n\n")))), n + 1))
            });
            let mut response = Response::new(BodyExt::boxed(StreamBody::new(Box::pin(SyncStream(
                Mutex::new(Box::pin(events)),
            )))));
            response.headers_mut().insert(header::CONTENT_TYPE, "text/event-stream".parse().unwrap());
            response
        }
        "/trailers" => {
            let frames = [
                Ok(Frame::data(Bytes::from("body"))),
                Ok(Frame::trailers(
                    [("x-end".parse().unwrap(), VALUE.parse().unwrap())].into_iter().collect(),
                )),
            ];
            let mut response =
                Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames))));
            response.headers_mut().insert(header::TRAILER, "x-end".parse().unwrap());
            response
        }
        // Repeats what it was given wherever it can.
        "/reflect" => {
            let got = request.headers().get(header::AUTHORIZATION).map(|v| v.to_str().unwrap().to_owned());
            let got = got.unwrap_or_else(|| VALUE.to_owned());
            let kind = request.uri().query().unwrap_or("text/plain").to_owned();
            let encoding = request.headers().get(header::ACCEPT_ENCODING).cloned();
            let mut response = Response::new(full(format!("before {got} after")));
            let headers = response.headers_mut();
            headers.insert("x-got", got.parse().unwrap());
            headers.insert(header::LOCATION, format!("https://x/?k={VALUE}").parse().unwrap());
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            if let Some(encoding) = encoding {
                headers.insert("x-asked", encoding);
            }
            response
        }
        "/refuse-upload" => {
            let mut response = Response::new(full("no"));
            *response.status_mut() = StatusCode::EXPECTATION_FAILED;
            response
        }
        "/socket" => {
            let upgrade = hyper::upgrade::on(&mut request);
            let told =
                request.headers().get(header::AUTHORIZATION).is_some_and(|v| v == &format!("Bearer {VALUE}"));
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.unwrap());
                let (mut read, mut write) = tokio::io::split(&mut io);
                let _ended = tokio::io::copy(&mut read, &mut write).await;
            });
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(header::UPGRADE, "websocket".parse().unwrap());
            response.headers_mut().insert(header::CONNECTION, "Upgrade".parse().unwrap());
            response.headers_mut().insert("x-told", told.to_string().parse().unwrap());
            response
        }
        "/close" => {
            let mut response = Response::new(full("closing"));
            response.headers_mut().insert(header::CONNECTION, "close".parse().unwrap());
            response
        }
        "/gzip" => {
            let mut response = Response::new(full(&b"\x1f\x8b\x08\x00 not text"[..]));
            response.headers_mut().insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
            response
        }
        _ => {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    };
    response.headers_mut().insert("x-nth", nth.into());
    response
}

/// What `/bytes` has.
pub(crate) fn download() -> Vec<u8> {
    (0..5_242_880_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect()
}

/// A stream that several threads may hold.
struct SyncStream<S>(Mutex<S>);

impl<S: futures_util::Stream + Unpin> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        std::pin::Pin::new(&mut *self.0.lock().unwrap()).poll_next(context)
    }
}

/// How the service is reached.
pub(crate) struct To(pub(crate) Result<SocketAddr, DialError>);

#[async_trait]
impl Dial for To {
    async fn dial(&self) -> Result<Box<dyn Stream>, DialError> {
        let tcp = TcpStream::connect(self.0?).await.map_err(|_| DialError::Failed("refused"))?;
        tcp.set_nodelay(true).unwrap();
        Ok(Box::new(tcp))
    }
}

/// A broker before a service.
pub(crate) struct Bench {
    pub(crate) broker: Arc<Broker>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) service: Service,
    pub(crate) sandbox: SandboxId,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn start(alpn: &[&str]) -> Self {
        let service = Service::start(alpn).await;
        let dir = tempfile::tempdir().unwrap();
        let kept = Arc::new(Kept::default());
        let (credentials, sink): (Arc<dyn Credentials>, Arc<dyn NetworkSink>) = (kept.clone(), kept.clone());
        let ca = Ca::open(dir.path()).unwrap();
        let broker =
            Arc::new(Broker::new(ca, std::slice::from_ref(&service.roots), credentials, sink).unwrap());
        let bench =
            Self { broker, kept, service, sandbox: SandboxId::new(), tasks: Mutex::default(), _dir: dir };
        bench.bind(STAND_IN, &[HOST], AuthScheme::Bearer, SecretOptions::default());
        bench
    }

    /// Binds a secret to the sandbox.
    pub(crate) fn bind(
        &self,
        stand_in: &str,
        hosts: &[&str],
        scheme: AuthScheme,
        options: SecretOptions,
    ) -> SecretId {
        let policy = SecretPolicy {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            auth: Auth::Same(scheme),
            options,
        };
        let secret = SecretId::new();
        let bound = BoundSecret {
            binding: Uuid::new_v4(),
            secret,
            sandbox: self.sandbox,
            stand_in: StandIn::new(stand_in),
            policy: Arc::new(policy),
            revoked: false,
        };
        let mut all = self.kept.all.lock().unwrap();
        all.retain(|one| one.stand_in.as_str() != stand_in);
        all.push(bound);
        secret
    }

    /// A guest's connection to the broker, before TLS.
    pub(crate) async fn connect(&self, host: &str, to: To) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let guest = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (inside, _) = listener.accept().await.unwrap();
        for one in [&guest, &inside] {
            one.set_nodelay(true).unwrap();
        }
        let visit = Intercepted {
            sandbox: self.sandbox,
            host: host.to_owned(),
            guest: Box::new(inside),
            dial: Arc::new(to),
        };
        let broker = Arc::clone(&self.broker);
        self.tasks.lock().unwrap().spawn(async move { broker.serve(visit).await });
        guest
    }

    /// A guest's connection with TLS, that trusts the broker's authority only.
    pub(crate) async fn tls(&self, alpn: &[&str]) -> client::TlsStream<TcpStream> {
        self.tls_to(HOST, HOST, alpn, To(Ok(self.service.address))).await
    }

    pub(crate) async fn tls_to(
        &self,
        host: &str,
        sni: &str,
        alpn: &[&str],
        to: To,
    ) -> client::TlsStream<TcpStream> {
        let tcp = self.connect(host, to).await;
        let ca = CertificateDer::from_pem_slice(self.broker.ca().pem().as_bytes()).unwrap();
        handshake(tcp, ca, sni, alpn).await.unwrap()
    }

    pub(crate) async fn http1(&self) -> http1::SendRequest<Body> {
        one(self.tls(&["http/1.1"]).await).await
    }

    pub(crate) async fn http2(&self) -> http2::SendRequest<Body> {
        two(self.tls(&["h2", "http/1.1"]).await).await
    }

    /// The rows so far, as requests.
    pub(crate) fn rows(&self) -> Vec<RequestAttempt> {
        let rows = self.kept.rows.lock().unwrap();
        assert!(rows.iter().all(|row| row.sandbox == self.sandbox));
        let requests = rows.iter().map(|row| match &row.what {
            Attempt::Request(request) => request.clone(),
            other => panic!("{other:?}"),
        });
        requests.collect()
    }
}

pub(crate) async fn handshake(
    tcp: TcpStream,
    root: CertificateDer<'static>,
    sni: &str,
    alpn: &[&str],
) -> std::io::Result<client::TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(sni.to_owned()).unwrap(), tcp).await
}

pub(crate) async fn one(tls: client::TlsStream<TcpStream>) -> http1::SendRequest<Body> {
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

pub(crate) async fn two(tls: client::TlsStream<TcpStream>) -> http2::SendRequest<Body> {
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) fn get(path: &str) -> http::request::Builder {
    Request::builder().uri(path).header("host", HOST).header("authorization", format!("Bearer {STAND_IN}"))
}

/// For HTTP/2, where the host stands in the target.
pub(crate) fn get2(path: &str) -> http::request::Builder {
    Request::builder()
        .uri(format!("https://{HOST}{path}"))
        .header("authorization", format!("Bearer {STAND_IN}"))
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let body = tokio::time::timeout(LONG, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

/// Fails when something there has the value in one of its forms.
pub(crate) fn clean(text: &str) {
    for form in [VALUE, "real-value%2Fwith", "cmVhbC12YWx1ZS93aXRo"] {
        assert!(!text.contains(form), "{text}");
    }
}
