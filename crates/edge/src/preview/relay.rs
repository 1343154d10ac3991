//! One exchange between a visitor and a server in a sandbox, over a connection of its own, streamed both ways. Nothing is
//! ever repeated: the guest may have seen it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::Published;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::body::{AnswerBody, Room, Upload};
use super::heads::{self, Origin};
use super::{Place, Port, over, page};
use crate::DialError;
use crate::answer::{self, Body};
use crate::limits::lock;
use crate::observe::Watch;
use crate::relay::{EXCHANGE_CAP, session};
use crate::serve::Connection;

/// The guest writes the head of the answer: bounds on it, which real applications with many cookies keep to.
const MAX_HEADERS: usize = 256;
const MAX_HEAD: usize = 128 * 1024;
/// A guest that has not answered by now has taken the request up and thinks: others need not wait for it.
const THINKING: Duration = Duration::from_millis(100);
/// Buffer of one direction.
const BUFFER: usize = 128 * 1024;

/// A request that passed all checks.
pub(super) struct Visit {
    pub(super) place: Place,
    pub(super) published: Published,
    pub(super) host: HeaderValue,
    pub(super) target: PathAndQuery,
    pub(super) websocket: bool,
    pub(super) slot: OwnedSemaphorePermit,
    pub(super) traffic: Arc<Port>,
    pub(super) watch: Arc<Watch>,
    pub(super) most_bytes: Option<u64>,
}

/// Sends the request to the guest and its answer back.
pub(super) async fn relay(
    connection: &Arc<Connection>,
    visit: Visit,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let Visit { place, published, host, target, websocket, slot, traffic, watch, most_bytes } = visit;
    let visitor = request.headers().clone();
    let directory = &connection.edge.directory;
    let mut over: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(over(Arc::clone(directory), place, published));
    watch.opened();
    let dial = async {
        let turn = traffic.turn().await;
        Ok((directory.dial(place.id, place.port).await?, turn))
    };
    let stream = tokio::select! {
        stream = dial => stream,
        () = &mut over => Err(DialError::NotRunning),
    };
    let (stream, turn) = match stream {
        Ok(opened) => opened,
        Err(DialError::NotListening) => return page::nothing_listens(&visitor, place.port),
        Err(DialError::NotRunning) => return stopped(connection, &visitor, place).await,
        Err(DialError::Failed(error)) => {
            tracing::warn!(sandbox = %place.id, port = %place.port, %error, "cannot reach a port");
            return page::bad_answer(&visitor, place.port, "the port did not accept a connection");
        }
    };
    watch.sent();
    let handshake = http1::Builder::new()
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD)
        .max_buf_size(BUFFER)
        .handshake(TokioIo::new(stream));
    let Ok((mut sender, driver)) = handshake.await else {
        return page::bad_answer(&visitor, place.port, "the port closed the connection");
    };
    let link = AbortOnDropHandle::new(tokio::spawn(async move {
        // Errors reach the exchange; nobody else is interested.
        let _ = driver.with_upgrades().await;
    }));
    let upgrade = websocket.then(|| hyper::upgrade::on(&mut request));
    let origin = Origin { peer: connection.peer, host: &host, encrypted: connection.encrypted };
    let request = to_guest(request, target, origin, websocket, &watch, Room(most_bytes));
    let thinking = async {
        tokio::time::sleep(THINKING).await;
        drop(turn);
        std::future::pending::<Infallible>().await
    };
    let answered = tokio::select! {
        never = thinking => match never {},
        answered = sender.send_request(request) => answered,
        () = &mut over => return stopped(connection, &visitor, place).await,
        () = tokio::time::sleep(EXCHANGE_CAP) => {
            return page::bad_answer(&visitor, place.port, "the request took too long");
        }
    };
    let mut response = match answered {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(sandbox = %place.id, port = %place.port, %error, "no usable answer from a port");
            return page::bad_answer(
                &visitor,
                place.port,
                "the server in the sandbox did not answer in HTTP",
            );
        }
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        watch.answered();
        let too_large = |most| response.body().size_hint().exact().is_some_and(|length| length > most);
        if most_bytes.is_some_and(too_large) {
            return page::too_large(&visitor);
        }
        let (mut parts, inner) = response.into_parts();
        heads::to_visitor(&mut parts.headers, false);
        let body = AnswerBody::new(inner, over, Room(most_bytes), link, slot);
        // A length is passed on only where it is the one that ends the body, or where there is none (HEAD, 304).
        if body.size_hint().exact().is_none() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        let mut relayed = Response::new(Body::Preview(body));
        *relayed.status_mut() = parts.status;
        *relayed.headers_mut() = parts.headers;
        return relayed;
    }
    let Some(upgrade) =
        upgrade.filter(|_| heads::has_token(response.headers(), &header::UPGRADE, "websocket"))
    else {
        return page::bad_answer(&visitor, place.port, "the server changed to a protocol nobody asked for");
    };
    watch.answered();
    let guest = hyper::upgrade::on(&mut response);
    let session = session(upgrade, guest, over, connection.tasks.clone(), Some(watch));
    connection.tasks.tracker.spawn(async move {
        session.await;
        drop((link, slot));
    });
    let mut head = std::mem::take(response.headers_mut());
    heads::to_visitor(&mut head, true);
    let mut switching = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
    *switching.headers_mut() = head;
    switching
}

fn to_guest(
    request: Request<Incoming>,
    target: PathAndQuery,
    origin: Origin<'_>,
    websocket: bool,
    watch: &Arc<Watch>,
    room: Room,
) -> Request<Upload> {
    let (parts, incoming) = request.into_parts();
    let mut headers = heads::to_guest(&parts.headers, origin, websocket);
    // Old servers want a length even of nothing.
    if incoming.is_end_stream() && !matches!(parts.method, Method::GET | Method::HEAD) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let waits = heads::has_token(&headers, &header::EXPECT, "100-continue") && !incoming.is_end_stream();
    let (go, wanted) = oneshot::channel();
    let mut request = Request::new(Upload::new(incoming, Arc::clone(watch), waits.then_some(wanted), room));
    *request.method_mut() = parts.method;
    *request.uri_mut() = Uri::from(target);
    *request.headers_mut() = headers;
    if waits {
        let go = Mutex::new(Some(go));
        hyper::ext::on_informational(&mut request, move |informed| {
            if informed.status() == StatusCode::CONTINUE
                && let Some(go) = lock(&go).take()
            {
                // The body may have been given up.
                let _ = go.send(());
            }
        });
    }
    request
}

/// The sandbox or the publication went while the request was on its way.
async fn stopped(connection: &Connection, visitor: &http::HeaderMap, place: Place) -> Response<Body> {
    let directory = &connection.edge.directory;
    match directory.state(place.id).await {
        Some(state) if directory.preview(place.id, place.port).await.is_some() => {
            if state == domain::SandboxState::Active {
                return page::bad_answer(
                    visitor,
                    place.port,
                    "the port was published anew while the request ran",
                );
            }
            page::not_running(visitor, state)
        }
        _ => page::not_published(visitor, place.port),
    }
}
