//! Previews: a web server inside a sandbox, seen from outside (`spec/data-plane.md` §9). The order of the checks is part
//! of the contract: a port that is not published is not there, whatever else is true.
//!
//! ```text
//! host ─▶ sandbox? 404 ─▶ published? 404 ─▶ private: preflight 204, token? 401 ─▶ running? 503 ─▶ caps 429, 413
//!                                                     └ link ─▶ cookie + redirect         └─▶ dial 502 ─▶ relay
//! ```

mod body;
mod carrier;
mod heads;
mod page;
mod relay;
mod traffic;

use std::sync::Arc;

use domain::{PreviewAccess, PreviewPort, Published, SandboxId, SandboxState};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;

use crate::PreviewAdmission;
use crate::answer::{self, Body};
use crate::headers;
use crate::observe::Watch;
use crate::serve::Connection;

pub(crate) use body::AnswerBody;
pub(crate) use traffic::{Port, shown_method, shown_path};
pub use traffic::{PortTraffic, Traffic, Visit};

/// Methods a page of a permitted origin may use (§9, step 3).
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
/// Longest list of headers a page may ask to send.
const MAX_ASKED_HEADERS: usize = 1_024;

/// Where a request wants to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) id: SandboxId,
    pub(crate) port: PreviewPort,
    pub(crate) state: SandboxState,
}

/// Answers a request for a port of a sandbox that exists. Takes it when it goes on to the guest.
pub(crate) async fn route(
    connection: &Arc<Connection>,
    unsent: &mut Option<Request<Incoming>>,
    watch: &Arc<Watch>,
    place: Place,
) -> Response<Body> {
    let edge = &connection.edge;
    let Place { id, port, state } = place;
    let Some(request) = unsent.as_ref() else { return answer::text(StatusCode::BAD_REQUEST, "no request") };
    let visitor = request.headers();
    let published = edge.directory.preview(id, port).await;
    let traffic = published.map(|_| edge.traffic.port(id, port, edge.limits.per_preview_port));
    watch.previews(request, connection.peer, traffic.clone());
    let (Some(published), Some(traffic)) = (published, traffic) else {
        return page::not_published(visitor, port);
    };
    traffic.came();
    let Some(host) = host_text(request) else {
        return answer::text(StatusCode::BAD_REQUEST, "exactly one Host header is expected");
    };
    let local = !connection.encrypted && is_local(&host);
    let tokens = carrier::tokens(request.uri().path_and_query(), visitor, local);
    let websocket = headers::is_websocket(request.method(), request.version(), visitor);
    if published.access == PreviewAccess::Private {
        if let Some(origin) = permitted_preflight(connection, request) {
            return preflight(&origin, visitor);
        }
        let ask = async |text: &String| edge.directory.admit_preview(id, port, published, text).await;
        let mut worth = PreviewAdmission::Denied;
        // The address may have several, of which an earlier one may have ended.
        let mut good = None;
        for text in &tokens.query {
            let found = ask(text).await;
            if good.is_none() && matches!(found, PreviewAdmission::Granted(_)) {
                good = Some(text);
            }
            worth = worth.or(found);
        }
        let by_link =
            matches!(worth, PreviewAdmission::Granted(_)) && request.method() == Method::GET && !websocket;
        if !by_link {
            for text in &tokens.elsewhere {
                worth = worth.or(ask(text).await);
            }
        }
        let ends = match worth {
            PreviewAdmission::Granted(ends) => ends,
            PreviewAdmission::Expired => return page::expired(visitor),
            PreviewAdmission::Denied => return page::private(visitor),
        };
        connection.place.authenticated();
        watch.admitted();
        if by_link && let (Some(token), Some(clean)) = (good, &tokens.clean) {
            return enter(token, clean, ends, local);
        }
    }
    // Whoever finds a public port is as welcome as somebody with a token.
    connection.place.authenticated();
    if state != SandboxState::Active {
        return page::not_running(visitor, state);
    }
    if edge.limits.preview_requests_per_second.is_some_and(|most| !traffic.within(most)) {
        return page::too_many(visitor, "more requests a second than this preview permits");
    }
    let most_bytes = edge.limits.preview_body_bytes;
    if most_bytes.is_some_and(|most| claimed_length(visitor).is_some_and(|length| length > most)) {
        return page::too_large(visitor);
    }
    let Some(slot) = traffic.enter() else {
        return page::too_many(visitor, "too many requests for this preview are open");
    };
    let target = match &tokens.clean {
        Some(clean) => clean.parse(),
        None => Ok(request.uri().path_and_query().cloned().unwrap_or_else(|| "/".parse().expect("a path"))),
    };
    let (Ok(target), Some(request)) = (target, unsent.take()) else {
        return answer::text(StatusCode::BAD_REQUEST, "malformed request target");
    };
    let visit = relay::Visit {
        place,
        published,
        host,
        target,
        websocket,
        slot,
        traffic,
        watch: Arc::clone(watch),
        most_bytes,
    };
    relay::relay(connection, visit, request).await
}

/// A good link: its token becomes a cookie of this one host, and the address that holds it goes out of sight.
fn enter(token: &str, clean: &str, ends: Option<Timestamp>, local: bool) -> Response<Body> {
    let seconds = ends.map(|ends| ends.as_second().saturating_sub(Timestamp::now().as_second()).max(0));
    let age = seconds.map(|seconds| format!("; Max-Age={seconds}")).unwrap_or_default();
    let cookie = if local {
        // Without TLS browsers take no `Secure` cookie, not all of them even on this machine.
        format!("{}={token}; Path=/; HttpOnly; SameSite=Lax{age}", carrier::PLAIN_COOKIE)
    } else {
        format!("{}={token}; Path=/; Secure; HttpOnly; SameSite=None; Partitioned{age}", carrier::COOKIE)
    };
    // Relative, so that it is right behind any proxy; a path that begins like a host must not become one.
    let location = if clean.starts_with("//") { format!("/.{clean}") } else { clean.to_owned() };
    let mut response = answer::empty(StatusCode::FOUND);
    let (Ok(mut cookie), Ok(location)) = (HeaderValue::from_str(&cookie), HeaderValue::from_str(&location))
    else {
        return answer::text(StatusCode::BAD_REQUEST, "malformed request target");
    };
    cookie.set_sensitive(true);
    let head = response.headers_mut();
    head.insert(header::LOCATION, location);
    head.insert(header::SET_COOKIE, cookie);
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The origin of a preflight that may be answered here.
fn permitted_preflight(connection: &Connection, request: &Request<Incoming>) -> Option<HeaderValue> {
    let asks = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let origin = request.headers().get(header::ORIGIN).filter(|_| asks)?;
    let own = connection.edge.cors_origins.iter().any(|own| own.as_bytes() == origin.as_bytes());
    own.then(|| origin.clone())
}

fn preflight(origin: &HeaderValue, visitor: &HeaderMap) -> Response<Body> {
    let mut response = answer::empty(StatusCode::NO_CONTENT);
    let head = response.headers_mut();
    head.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    head.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    head.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // The page's own guest decides on them; only names can be asked for.
    let names = |value: &&HeaderValue| {
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte);
        value.len() <= MAX_ASKED_HEADERS && value.as_bytes().iter().all(fits)
    };
    if let Some(asked) = visitor.get(header::ACCESS_CONTROL_REQUEST_HEADERS).filter(names) {
        head.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    head.insert(header::VARY, HeaderValue::from_static("Origin"));
    response
}

/// `Host` as the visitor wrote it, or the authority that stands for it.
fn host_text(request: &Request<Incoming>) -> Option<HeaderValue> {
    match request.uri().authority() {
        Some(authority) if authority.as_str().contains('@') => None,
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => request.headers().get(header::HOST).cloned(),
    }
}

/// Whether a name is one that browsers look for on their own machine only.
fn is_local(host: &HeaderValue) -> bool {
    let host = host.to_str().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host.trim_end_matches('.').to_ascii_lowercase().ends_with(".localhost")
}

fn claimed_length(visitor: &HeaderMap) -> Option<u64> {
    visitor.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl PreviewAdmission {
    /// The better one of two.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Granted(_), _) | (Self::Expired, Self::Denied) => self,
            _ => other,
        }
    }
}

/// Until a port is not published like this any more, or its sandbox does not run.
async fn over(directory: Arc<dyn crate::Directory>, place: Place, published: Published) {
    tokio::select! {
        () = directory.inactive(place.id) => {}
        () = directory.preview_changed(place.id, place.port, published) => {}
    }
}
