//! One request: the checks of `spec/data-plane.md` §2 in their order, then the relay. It never waits for a sandbox to
//! start and never resumes one.

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SandboxState};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tracing::Instrument;

use crate::Admission;
use crate::answer::{self, Body};
use crate::headers::{self, Token};
use crate::hosts::Target;
use crate::observe::{Kind, Watch, Watched};
use crate::preview;
use crate::relay::{self, Admitted};
use crate::serve::Connection;

/// Names the request in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How much of a refused request's body is read, and for how long: most uploads are smaller, and few clients slower.
const DISCARD_BYTES: usize = 64 * 1024 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds a browser may remember a preflight.
const PREFLIGHT_MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Answers one request. Its end is logged and counted by its [`Watch`]: without path, query, headers and bodies, which
/// may be private.
pub(crate) async fn handle(connection: Arc<Connection>, mut request: Request<Incoming>) -> Response<Watched> {
    if connection.refused {
        let refusal = answer::and_close(answer::too_many("too many connections from this address"));
        return refusal.map(Watched::unwatched);
    }
    if request.method() == Method::CONNECT {
        return connection.connect(request).map(Watched::unwatched);
    }
    let websocket = headers::is_websocket(request.method(), request.version(), request.headers());
    let kind = Kind::of(request.method(), request.uri().path(), websocket);
    let watch = Watch::new(&connection.edge.observer, kind);
    let span = tracing::info_span!("request", id = %watch.request);
    request.extensions_mut().insert(Arc::clone(&watch));
    let origin = allowed_origin(&connection, &request);
    let mut unsent = Some(request);
    let mut response = route(&connection, &mut unsent, &watch, origin.is_some()).instrument(span).await;
    if let Some(refused) = unsent
        && !read_out(refused).await
    {
        response = answer::and_close(response);
    }
    if let Some(origin) = origin.filter(|_| !watch.is_preview()) {
        let cors = response.headers_mut();
        cors.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        cors.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Content-Disposition"));
        cors.insert(header::VARY, HeaderValue::from_static("Origin"));
    }
    // A server in a sandbox says for itself what it wants to say.
    if !matches!(response.body(), Body::Preview(_))
        && let Ok(id) = HeaderValue::from_str(&watch.request.to_string())
    {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let (parts, body) = response.into_parts();
    let body = Watched::new(parts.status, body, watch);
    Response::from_parts(parts, body)
}

/// Takes what the client of a refused request still sends, as far as is sensible, and says whether that is all of it. A
/// client that is sending would see a reset connection instead of the refusal, or use the connection again just when it
/// closes.
async fn read_out(refused: Request<Incoming>) -> bool {
    // Who waits for leave to send has sent nothing; HTTP/2 ends a stream without its connection.
    if refused.headers().contains_key(header::EXPECT) || refused.version() == Version::HTTP_2 {
        return true;
    }
    let mut body = Limited::new(refused.into_body(), DISCARD_BYTES);
    let all = async {
        while let Some(piece) = body.frame().await {
            if piece.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DISCARD_TIMEOUT, all).await.unwrap_or(false)
}

/// Takes the request when it goes on to a guest, and leaves it when it is refused.
async fn route(
    connection: &Arc<Connection>,
    unsent: &mut Option<Request<Incoming>>,
    watch: &Arc<Watch>,
    cors: bool,
) -> Response<Body> {
    let edge = &connection.edge;
    let Some(request) = unsent.as_ref() else { return answer::text(StatusCode::BAD_REQUEST, "no request") };
    let target = match authority(request).map(|authority| edge.hosts.parse(authority)) {
        None => return answer::text(StatusCode::BAD_REQUEST, "exactly one Host header is expected"),
        Some(Err(reason)) => return answer::bad_host(reason),
        Some(Ok(target)) => target,
    };
    let id = match target {
        Target::Sandbox(id) | Target::Preview(_, id) => id,
        Target::Shared => match named(request) {
            Ok(id) => id,
            Err(reason) => return answer::text(StatusCode::BAD_REQUEST, reason),
        },
    };
    let state = match id {
        Some(id) => edge.directory.state(id).await.map(|state| (id, state)),
        None => None,
    };
    let Some((id, state)) = state.filter(|(_, state)| *state != SandboxState::Deleted) else {
        return match target {
            Target::Preview(..) => answer::text(StatusCode::NOT_FOUND, "sandbox not found"),
            Target::Shared | Target::Sandbox(_) => answer::no_sandbox(),
        };
    };
    watch.is_for(id);
    if let Target::Preview(port, _) = target {
        return preview::route(connection, unsent, watch, preview::Place { id, port, state }).await;
    }
    let path = request.uri().path();
    if !wire::data_plane::exposed(path) {
        return answer::text(StatusCode::NOT_FOUND, "not found");
    }
    if path == "/terminal" && foreign_origin(connection, request) {
        return answer::text(StatusCode::FORBIDDEN, "pages of this origin may not open terminals");
    }
    if cors && is_preflight(request) {
        return preflight();
    }
    let websocket = headers::is_websocket(request.method(), request.version(), request.headers());
    let token = match headers::token(request.headers(), websocket) {
        Token::Missing => return answer::text(StatusCode::UNAUTHORIZED, "missing X-Access-Token header"),
        Token::Malformed => None,
        Token::Given(token) => Some(token),
    };
    let admission = match token {
        Some(token) => edge.directory.admit(id, token).await,
        None => Admission::Denied,
    };
    if admission == Admission::Denied {
        return answer::text(StatusCode::UNAUTHORIZED, "invalid access token");
    }
    connection.place.authenticated();
    watch.admitted();
    forward(connection, unsent, id, state, websocket).await
}

async fn forward(
    connection: &Arc<Connection>,
    unsent: &mut Option<Request<Incoming>>,
    id: SandboxId,
    state: SandboxState,
    websocket: bool,
) -> Response<Body> {
    let edge = &connection.edge;
    if state != SandboxState::Active {
        edge.agents.forget(id);
        return answer::not_running(state);
    }
    let (Some(slot), Some(request)) = (edge.agents.enter(id), unsent.take()) else {
        return answer::too_many("too many concurrent requests for this sandbox");
    };
    let admitted = Admitted { id, slot, websocket, request };
    relay::relay(&edge.agents, &edge.directory, &connection.tasks, admitted).await
}

/// The one authority of a request: its target's in absolute form and HTTP/2, else the `Host` header.
fn authority(request: &Request<Incoming>) -> Option<&str> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return None;
    }
    match request.uri().authority() {
        Some(authority) => Some(authority.host()),
        None => host?.to_str().ok(),
    }
}

/// The sandbox the header names on the shared host; `None` when no sandbox can have this id.
fn named(request: &Request<Incoming>) -> Result<Option<SandboxId>, &'static str> {
    let mut ids = request.headers().get_all(wire::data_plane::SANDBOX_ID_HEADER).iter();
    match (ids.next(), ids.next()) {
        (Some(id), None) => Ok(id.to_str().ok().and_then(|id| id.to_ascii_lowercase().parse().ok())),
        (None, _) => Err("missing X-Superserve-Sandbox-Id header"),
        (Some(_), Some(_)) => Err("more than one X-Superserve-Sandbox-Id header"),
    }
}

/// Cross-origin use is for files, from configured origins (§6.3).
fn allowed_origin(connection: &Connection, request: &Request<Incoming>) -> Option<HeaderValue> {
    let origin = request.headers().get(header::ORIGIN)?;
    let allowed = connection.edge.cors_origins.iter().any(|own| own.as_bytes() == origin.as_bytes());
    (allowed && request.uri().path() == "/files").then(|| origin.clone())
}

/// A terminal gives everything away to whoever has its token, so a page needs its origin on the list as well (§8).
/// Clients that are no browsers send none.
fn foreign_origin(connection: &Connection, request: &Request<Incoming>) -> bool {
    let allowed = |origin: &HeaderValue| {
        connection.edge.cors_origins.iter().any(|own| own.as_bytes() == origin.as_bytes())
    };
    !request.headers().get_all(header::ORIGIN).iter().all(allowed)
}

fn is_preflight(request: &Request<Incoming>) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight() -> Response<Body> {
    let mut response = answer::empty(StatusCode::NO_CONTENT);
    let allow = response.headers_mut();
    allow.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST"));
    allow.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type, Range, X-Access-Token, X-Superserve-Sandbox-Id"),
    );
    allow.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE);
    response
}
