//! Plain HTTP to a name that is permitted. One connection may carry requests for several hosts, so each is judged by itself
//! and goes to where its own host is. Heads are read and written anew, which leaves no two ways to read them; bodies,
//! upgrades and everything else pass through.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use bytes::Bytes;
use domain::MatchRule;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder as ClientBuilder, SendRequest};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use std::net::SocketAddrV4;
use tokio::task::JoinSet;

use crate::connection::Visit;
use crate::dial::{self, Dialled, NotDialled};
use crate::gateway::Shared;
use crate::metered::Metered;
use crate::name::Name;
use crate::refusal;
use crate::relay;
use crate::sandboxes::Sandbox;
use crate::sniff;

type Body = BoxBody<Bytes, hyper::Error>;

/// One connection of a guest.
struct Exchange {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    to: SocketAddrV4,
    service: tokio::sync::Mutex<Option<Service>>,
    /// Both ends of a connection that has become something else.
    upgraded: Mutex<Option<(hyper::upgrade::OnUpgrade, hyper::upgrade::OnUpgrade)>>,
}

/// Where the last request went, which the next one may use.
struct Service {
    host: Option<Name>,
    sender: SendRequest<Incoming>,
    /// Ends with it.
    _connection: JoinSet<()>,
}

/// Why a request has no answer of a service.
enum Refused {
    By(MatchRule),
    Failed(&'static str),
}

/// Serves the requests of a connection until it ends. The first one's service has been dialled already.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    sandbox: &Arc<Sandbox>,
    guest: Metered,
    to: SocketAddrV4,
    first: (Option<Name>, Dialled),
) {
    let (host, dialled) = first;
    let Ok(service) = Service::open(host, dialled).await else { return };
    let exchange = Arc::new(Exchange {
        shared: Arc::clone(shared),
        sandbox: Arc::clone(sandbox),
        to,
        service: tokio::sync::Mutex::new(Some(service)),
        upgraded: Mutex::new(None),
    });
    let answer = service_fn(|request| {
        let exchange = Arc::clone(&exchange);
        async move { Ok::<_, Infallible>(exchange.answer(request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.half_close(true).preserve_header_case(true).auto_date_header(false);
    let _the_guest_left = server.serve_connection(TokioIo::new(guest), answer).with_upgrades().await;
    let upgraded = exchange.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((guest, service)) = upgraded
        && let (Ok(guest), Ok(service)) = tokio::join!(guest, service)
    {
        let (mut guest, mut service) = (TokioIo::new(guest), TokioIo::new(service));
        let _reset = tokio::io::copy_bidirectional(&mut guest, &mut service).await;
    }
}

impl Service {
    async fn open(host: Option<Name>, dialled: Dialled) -> Result<Self, hyper::Error> {
        // Its last request is to arrive, even when the guest has gone meanwhile.
        relay::close_when_dropped(&dialled.service);
        let mut client = ClientBuilder::new();
        client.preserve_header_case(true);
        let (sender, connection) = client.handshake(TokioIo::new(dialled.service)).await?;
        let mut owned = JoinSet::new();
        owned.spawn(async move {
            let _ended = connection.with_upgrades().await;
        });
        Ok(Self { host, sender, _connection: owned })
    }
}

impl Exchange {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let host = host_of(&request);
        // A tunnel would lead where nobody looks.
        let refused = if request.method() == Method::CONNECT {
            Refused::By(MatchRule::Domain)
        } else {
            match self.forward(request, host.as_ref()).await {
                Ok(response) => return response,
                Err(refused) => refused,
            }
        };
        match refused {
            Refused::By(rule) => {
                Visit::of(host.clone(), self.to).end(&self.shared, &self.sandbox, NotDialled::Blocked(rule));
                let text = refusal::text(&self.sandbox.rules(), host.as_ref(), self.to, rule);
                explain(StatusCode::FORBIDDEN, refusal::REASON, text)
            }
            Refused::Failed(why) => {
                let shown = host.map_or_else(|| self.to.ip().to_string(), |host| host.to_string());
                let text = format!("Superserve could not pass this request on to {shown}: {why}.\n");
                explain(StatusCode::BAD_GATEWAY, "upstream_unreachable", text)
            }
        }
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        host: Option<&Name>,
    ) -> Result<Response<Body>, Refused> {
        let guest = request.extensions_mut().remove::<hyper::upgrade::OnUpgrade>();
        *request.uri_mut() = origin_form(request.uri());
        // HTTP/2 in plain text would carry requests for other hosts past this place.
        let in_clear =
            |to: &HeaderValue| to.as_bytes().to_ascii_lowercase().windows(3).any(|part| part == b"h2c");
        if request.headers().get_all(UPGRADE).iter().any(in_clear) {
            request.headers_mut().remove(UPGRADE);
        }
        if request.version() == Version::HTTP_10 {
            *request.version_mut() = Version::HTTP_11;
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // One request after the other: hyper gives the next one when this one has been answered.
        let mut service = self.service.lock().await;
        let mut used =
            service.take().filter(|service| service.host.as_ref() == host && self.still_permitted(host));
        for _ in 0..2 {
            let mut current = match used.take() {
                Some(current) => current,
                None => self.dial(host).await?,
            };
            if current.sender.ready().await.is_err() {
                continue;
            }
            match current.sender.try_send_request(request).await {
                Ok(response) => {
                    *service = Some(current);
                    return Ok(self.pass_on(response, guest));
                }
                Err(mut error) => match error.take_message() {
                    // It had been closed before anything was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(Refused::Failed("the service ended the connection")),
                },
            }
        }
        Err(Refused::Failed("the service ends every connection"))
    }

    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        guest: Option<hyper::upgrade::OnUpgrade>,
    ) -> Response<Body> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(service) = response.extensions_mut().remove::<hyper::upgrade::OnUpgrade>()
            && let Some(guest) = guest
        {
            *self.upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some((guest, service));
        }
        response.map(BodyExt::boxed)
    }

    fn still_permitted(&self, host: Option<&Name>) -> bool {
        dial::judge(&self.shared, &self.sandbox.rules(), host, *self.to.ip()).permitted
    }

    async fn dial(&self, host: Option<&Name>) -> Result<Service, Refused> {
        let dialled =
            dial::dial(&self.shared, &self.sandbox, host, self.to).await.map_err(|why| match why {
                NotDialled::Blocked(rule) => Refused::By(rule),
                NotDialled::Failed(_, why) => Refused::Failed(why),
            })?;
        let service = Service::open(host.cloned(), dialled).await;
        service.map_err(|_| Refused::Failed("the service ended the connection"))
    }
}

/// The one host a request is for.
fn host_of(request: &Request<Incoming>) -> Option<Name> {
    let hosts = request.headers().get_all(HOST).into_iter().map(HeaderValue::as_bytes);
    sniff::http::host(request.method().as_str(), &request.uri().to_string(), hosts)
}

/// The target as the service itself expects it.
fn origin_form(uri: &Uri) -> Uri {
    match uri.path_and_query() {
        Some(path) if uri.authority().is_some() => Uri::from(path.clone()),
        _ => uri.clone(),
    }
}

fn explain(status: StatusCode, reason: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(refusal::HEADER, HeaderValue::from_static("true"));
    headers.insert(refusal::REASON_HEADER, HeaderValue::from_static(reason));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
