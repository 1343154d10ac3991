//! The requests of one opened connection, one by one: whose host, which stand-ins, what the service said.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use domain::{Attempt, RequestAttempt, SecretId};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::swap::{self, Refusal, Used};
use super::{H2, HTTP1, Service, Way};
use crate::dial::{self, NotDialled};
use crate::name::Name;
use crate::refusal;

type Body = BoxBody<Bytes, hyper::Error>;

/// Requests of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 128;

pub(super) struct Exchange {
    way: Way,
    is_h2: bool,
    /// What to send the next request over.
    link: tokio::sync::Mutex<Option<Link>>,
    /// Why the service was not reached when the connection began.
    not: Option<NotDialled>,
    upgraded: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
    tasks: TaskTracker,
    over: CancellationToken,
}

/// A connection to the service, and the task that drives it.
struct Link {
    sender: Sender,
    _driver: JoinSet<()>,
}

enum Sender {
    One(http1::SendRequest<Incoming>),
    Many(http2::SendRequest<Incoming>),
}

/// Why there is no answer of the service.
enum Failure {
    Refused(Refusal),
    Unreachable(&'static str),
}

impl Exchange {
    pub(super) async fn new(way: Way, service: Result<Service, NotDialled>, is_h2: bool) -> Arc<Self> {
        let over = CancellationToken::new();
        let (link, not) = match service {
            Ok(service) => (Link::open(service, is_h2, &over).await.ok(), None),
            Err(not) => (None, Some(not)),
        };
        let link = tokio::sync::Mutex::new(link);
        let (upgraded, tasks) = (Mutex::new(None), TaskTracker::new());
        Arc::new(Self { way, is_h2, link, not, upgraded, tasks, over })
    }

    pub(super) async fn serve(self: Arc<Self>, guest: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let _ends_what_it_began = self.over.clone().drop_guard();
        let answer = service_fn(|request| {
            let exchange = Arc::clone(&self);
            async move { Ok::<_, Infallible>(exchange.answer(request).await) }
        });
        let guest = TokioIo::new(guest);
        if self.is_h2 {
            let owned = Owned { tasks: self.tasks.clone(), over: self.over.clone() };
            let mut server = hyper::server::conn::http2::Builder::new(owned);
            server.max_concurrent_streams(MAX_STREAMS).auto_date_header(false);
            let _the_guest_left = server.serve_connection(guest, answer).await;
            return;
        }
        let mut server = hyper::server::conn::http1::Builder::new();
        server.half_close(true).preserve_header_case(true).auto_date_header(false);
        let _the_guest_left = server.serve_connection(guest, answer).with_upgrades().await;
        let upgraded = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((guest, service)) = upgraded
            && let (Ok(guest), Ok(service)) = tokio::join!(guest, service)
        {
            let (mut guest, mut service) = (TokioIo::new(guest), TokioIo::new(service));
            let _reset = tokio::io::copy_bidirectional(&mut guest, &mut service).await;
        }
    }

    /// Answers one request, and records it when a stand-in was in it.
    async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        let begun = Instant::now();
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let prepared = self.prepare(&mut request);
        let (used, sent) = match prepared {
            Ok(used) => {
                let sent = self.send(request, &used).await;
                (used, sent)
            }
            Err(refusal) => (Vec::new(), Err(Failure::Refused(refusal))),
        };
        let (response, upstream_status, refused) = match sent {
            Ok(response) => {
                let status = response.status().as_u16();
                (response, Some(status), None)
            }
            Err(Failure::Refused(refusal)) => (self.explain(refusal), None, Some(refusal)),
            Err(Failure::Unreachable(why)) => {
                tracing::debug!(host = %self.way.host, why, "a service cannot be reached");
                let refusal = Refusal::new(StatusCode::BAD_GATEWAY, "upstream_unreachable");
                (self.explain(refusal), None, Some(refusal))
            }
        };
        let secrets: Vec<SecretId> = match refused.and_then(|refusal| refusal.secret) {
            Some(secret) => vec![secret],
            None => used.iter().map(|used| used.secret).collect(),
        };
        for secret in secrets {
            self.way.shared.report(
                &self.way.sandbox,
                Attempt::Request(RequestAttempt {
                    secret: Some(secret),
                    method: method.chars().take(domain::MAX_LOGGED_METHOD).collect(),
                    host: self.way.host.to_string(),
                    path: path.chars().take(domain::MAX_LOGGED_PATH).collect(),
                    status: response.status().as_u16(),
                    upstream_status,
                    latency: begun.elapsed(),
                    error: refused.map(|refusal| refusal.reason.to_owned()),
                }),
            );
        }
        response
    }

    /// Everything that is decided before anything is sent.
    fn prepare(&self, request: &mut Request<Incoming>) -> Result<Vec<Used>, Refusal> {
        let forbidden = |reason| Refusal::new(StatusCode::FORBIDDEN, reason);
        // A tunnel would lead where nobody looks; another host than the one that was allowed and is dialled, too.
        if request.method() == Method::CONNECT || !self.is_for_host(request) {
            return Err(forbidden("host_not_allowed"));
        }
        let (shared, sandbox, host) = (&self.way.shared, &self.way.sandbox, &self.way.host);
        if !dial::judge(shared, &sandbox.rules(), Some(host), *self.way.to.ip()).permitted {
            return Err(forbidden("egress_blocked"));
        }
        swap::swap(request.headers_mut(), host, sandbox.id, &*self.way.broker.credentials)
    }

    /// Whether every place that names a host names the one of this connection.
    fn is_for_host(&self, request: &Request<Incoming>) -> bool {
        let is_ours = |authority: &[u8]| {
            let port_ok = match authority.iter().position(|b| *b == b':') {
                Some(colon) => &authority[colon..] == b":443",
                None => true,
            };
            port_ok && Name::of_authority(authority).as_ref() == Some(&self.way.host)
        };
        let hosts: Vec<_> = request.headers().get_all(HOST).into_iter().collect();
        let authority = request.uri().authority();
        authority.is_none_or(|authority| is_ours(authority.as_str().as_bytes()))
            && hosts.iter().all(|host| is_ours(host.as_bytes()))
            && hosts.len() <= 1
            && (authority.is_some() || hosts.len() == 1)
    }

    async fn send(&self, mut request: Request<Incoming>, used: &[Used]) -> Result<Response<Body>, Failure> {
        let guest = request.extensions_mut().remove::<OnUpgrade>();
        if !self.is_h2 {
            *request.uri_mut() = origin_form(request.uri());
            if request.headers().get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"h2c")) {
                request.headers_mut().remove(UPGRADE);
            }
            if request.version() == Version::HTTP_10 {
                *request.version_mut() = Version::HTTP_11;
                request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        for _ in 0..2 {
            let mut link = self.link.lock().await;
            let usable = match link.as_mut().map(|link| &mut link.sender) {
                Some(Sender::One(sender)) => sender.ready().await.is_ok(),
                Some(Sender::Many(sender)) => sender.ready().await.is_ok(),
                None => false,
            };
            if !usable {
                *link = Some(self.connect().await?);
            }
            let sent = match link.as_mut().map(|link| &mut link.sender) {
                // One request after the other: the next one comes when this one has been answered.
                Some(Sender::One(sender)) => sender.try_send_request(request).await,
                Some(Sender::Many(sender)) => {
                    let mut sender = sender.clone();
                    drop(link);
                    sender.try_send_request(request).await
                }
                None => return Err(Failure::Unreachable("no connection")),
            };
            match sent {
                Ok(response) => return Ok(self.pass_on(response, guest, used)),
                Err(mut error) => match error.take_message() {
                    // The connection had been closed before anything was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(Failure::Unreachable("the service ended the connection")),
                },
            }
        }
        Err(Failure::Unreachable("the service ends every connection"))
    }

    async fn connect(&self) -> Result<Link, Failure> {
        let failure = |not: NotDialled| match not {
            NotDialled::Blocked(_) => Failure::Refused(Refusal::new(StatusCode::FORBIDDEN, "egress_blocked")),
            NotDialled::Failed(_, why) => Failure::Unreachable(why),
        };
        // What did not work when the connection began is not tried for each request.
        if let Some(not) = self.not {
            return Err(failure(not));
        }
        let protocol = if self.is_h2 { H2 } else { HTTP1 };
        let service = self.way.open(vec![protocol.to_vec()]).await.map_err(failure)?;
        let chosen = service.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        if self.is_h2 && chosen.as_deref() != Some(H2) {
            return Err(Failure::Unreachable("the service speaks another protocol than before"));
        }
        Link::open(service, self.is_h2, &self.over)
            .await
            .map_err(|_| Failure::Unreachable("the service ended the connection"))
    }

    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        guest: Option<OnUpgrade>,
        used: &[Used],
    ) -> Response<Body> {
        swap::scrub(response.headers_mut(), used);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(service) = response.extensions_mut().remove::<OnUpgrade>()
            && let Some(guest) = guest
        {
            *self.upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some((guest, service));
        }
        response.map(BodyExt::boxed)
    }

    fn explain(&self, refusal: Refusal) -> Response<Body> {
        let host = &self.way.host;
        let text = match refusal.reason {
            "credential_host_mismatch" => format!(
                "This request carries a stand-in for a secret that may not be used at {host}. Use it at the hosts of that secret."
            ),
            "credential_revoked" => {
                "The secret of this stand-in was deleted or detached from this sandbox. Attach a secret, or leave the stand-in out.".to_owned()
            }
            "host_not_allowed" => format!("This connection is for {host}: requests for other hosts need a connection of their own."),
            "egress_blocked" => format!("The sandbox's network rules do not permit {host}. Add it to allow_out to permit it."),
            "upstream_unreachable" => format!("{host} cannot be reached, or its certificate is not one that is trusted here."),
            _ => format!("The credential for {host} cannot be put in. The operator's log may have the cause."),
        };
        let text = Full::new(Bytes::from(format!("Superserve refused this request: {text}\n")));
        let mut response = Response::new(text.map_err(|never| match never {}).boxed());
        *response.status_mut() = refusal.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(refusal::HEADER, HeaderValue::from_static("true"));
        headers.insert(refusal::REASON_HEADER, HeaderValue::from_static(refusal.reason));
        if !self.is_h2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Link {
    async fn open(service: Service, is_h2: bool, over: &CancellationToken) -> Result<Self, hyper::Error> {
        let mut driver = JoinSet::new();
        if is_h2 {
            let owned = Owned { tasks: TaskTracker::new(), over: over.clone() };
            let (sender, connection) = http2::handshake(owned, TokioIo::new(service)).await?;
            driver.spawn(async move {
                let _ended = connection.await;
            });
            return Ok(Self { sender: Sender::Many(sender), _driver: driver });
        }
        let mut client = http1::Builder::new();
        client.preserve_header_case(true);
        let (sender, connection) = client.handshake(TokioIo::new(service)).await?;
        driver.spawn(async move {
            let _ended = connection.with_upgrades().await;
        });
        Ok(Self { sender: Sender::One(sender), _driver: driver })
    }
}

/// Runs what HTTP/2 begins, until the connection is over.
#[derive(Debug, Clone)]
struct Owned {
    tasks: TaskTracker,
    over: CancellationToken,
}

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Owned {
    fn execute(&self, work: F) {
        let over = self.over.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                _ = work => {}
                () = over.cancelled() => {}
            }
        });
    }
}

/// The target as the service itself expects it.
fn origin_form(uri: &Uri) -> Uri {
    match uri.path_and_query() {
        Some(path) if uri.authority().is_some() => Uri::from(path.clone()),
        _ => uri.clone(),
    }
}
