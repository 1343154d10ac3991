//! MCP over HTTP (`spec/mcp.md` §B): Streamable HTTP without sessions. Every POST carries one message and its own key, and
//! nothing is kept between two of them but connections and tokens under a hash of the key.
//!
//! ```text
//! path ─▶ method ─▶ Host, Origin ─▶ key ─▶ size, types ─▶ place ─▶ body ─▶ JSON ─▶ protocol headers ─▶ one call ─▶ answer
//! ```
//!
//! The library's own HTTP server is not used: its refusals are plain text and some have other statuses, it checks after
//! reading the body, and it can neither hold a head back nor count memory. Its service loop runs each message.
//!
//! Whoever serves the router bounds heads, connections and the time a peer may leave what was written unread.

mod access;
mod admission;
mod answer;
mod authorization;
mod bearer;
mod body;
mod cancel;
mod config;
mod keys;
mod oneshot;
mod refusal;
mod revision;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use client::ClientError;
use domain::Secret;
use http::header::{CACHE_CONTROL, EXPECT, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use http_body::Body as _;
use serde_json::Value;

use self::admission::{Admission, Place};
use self::answer::Timing;
pub use self::authorization::{Authorization, Exchange, NoExchange};
use self::cancel::Cancellations;
pub use self::config::{HttpConfig, Limits};
use self::keys::Keys;
use self::refusal::{ProtocolError, Refusal};
use self::revision::Era;
use crate::server::{Server, Shared};
use crate::tools::{self, Tool};

/// How long creates of cancelled calls may still learn the id they have to log.
const BACKGROUND_GRACE: Duration = Duration::from_secs(5);

/// The endpoint; clones are the same one.
#[derive(Debug, Clone)]
pub struct HttpServer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: HttpConfig,
    tools: &'static [&'static Tool],
    keys: Keys,
    admission: Arc<Admission>,
    cancellations: Arc<Cancellations>,
    shared: Shared,
}

impl HttpServer {
    /// Does no I/O.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] when the base URL cannot be used.
    pub fn new(config: HttpConfig) -> Result<Self, ClientError> {
        Self::with_tools(config, tools::ALL)
    }

    fn with_tools(config: HttpConfig, tools: &'static [&'static Tool]) -> Result<Self, ClientError> {
        let keys = Keys::new(&config)?;
        let admission = Arc::new(Admission::new(config.limits));
        let shared = Shared { structured_images: config.structured_images, ..Shared::default() };
        let cancellations = Arc::default();
        Ok(Self { inner: Arc::new(Inner { config, tools, keys, admission, cancellations, shared }) })
    }

    /// A server of its own: the endpoint at `/` and `/mcp`, and `/health`.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle).with_state(self.clone())
    }

    /// The endpoint at `/mcp`, and `rest` everywhere else.
    pub fn mounted_over(&self, rest: Router) -> Router {
        Router::new()
            .route("/mcp", any(handle))
            .route("/mcp/", any(handle))
            .fallback_service(rest)
            .with_state(self.clone())
    }

    /// Waits, not for long, for what outlives cancelled calls. To be called when nothing is served any more.
    pub async fn close(&self) {
        let background = &self.inner.shared.background;
        background.close();
        if tokio::time::timeout(BACKGROUND_GRACE, background.wait()).await.is_err() {
            tracing::warn!("a cancelled sandbox_create is still under way; look for it in sandbox_list");
        }
    }
}

async fn handle(State(server): State<HttpServer>, request: Request) -> Response {
    let inner = &server.inner;
    let (parts, body) = request.into_parts();
    let mut response = inner.respond(&parts, body).await;
    let unauthorized = response.status() == StatusCode::UNAUTHORIZED;
    let headers = response.headers_mut();
    if let Some(authorization) = inner.config.authorization.as_ref().filter(|_| unauthorized) {
        authorization.add_challenge(headers);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    inner.config.access.add_cors(&parts.headers, headers);
    response
}

/// What may be said about a request before its body is read.
enum Head {
    Health,
    Preflight,
    Call(Secret),
}

impl Inner {
    async fn respond(&self, parts: &Parts, body: Body) -> Response {
        match self.check_head(parts) {
            Ok(Head::Health) => health(),
            Ok(Head::Preflight) => self.config.access.preflight(&parts.headers),
            Ok(Head::Call(bearer)) => match self.key(bearer).await {
                Ok(key) => self.call(parts, body, &key).await,
                Err(refusal) => self.refuse_unread(refusal, parts, body),
            },
            Err(refusal) => self.refuse_unread(refusal, parts, body),
        }
    }

    fn check_head(&self, parts: &Parts) -> Result<Head, Refusal> {
        match parts.uri.path() {
            "/health" if matches!(parts.method, Method::GET | Method::HEAD) => return Ok(Head::Health),
            "/" | "/mcp" | "/mcp/" => {}
            _ => return Err(Refusal::UnknownPath),
        }
        let access = &self.config.access;
        let preflight = parts.method == Method::OPTIONS && access.cors();
        if parts.method != Method::POST && !preflight {
            return Err(Refusal::Method);
        }
        access.check(parts)?;
        if preflight {
            return Ok(Head::Preflight);
        }
        bearer::token(&parts.headers).map(Head::Call)
    }

    async fn key(&self, bearer: Secret) -> Result<Secret, Refusal> {
        match &self.config.authorization {
            Some(authorization) => authorization.key(bearer).await,
            None => Ok(bearer),
        }
    }

    async fn call(&self, parts: &Parts, body: Body, key: &Secret) -> Response {
        let too_large = body.size_hint().lower() > body::MAX_BYTES;
        let checked = if too_large { Err(Refusal::TooLarge) } else { refusal::check_types(&parts.headers) };
        if let Err(refusal) = checked {
            return self.refuse_unread(refusal, parts, body);
        }
        let hash = keys::hash(key);
        let Some(present) = self.admission.arrive(hash) else {
            return self.refuse_unread(Refusal::Overload, parts, body);
        };
        let limits = &self.config.limits;
        // A small message is read before it waits, because notifications wait for nothing: one may be what frees a place.
        let (message, place) = if body::is_small(&body) {
            let message = match body::read(body, |_| true, limits).await {
                Ok(bytes) => body::parse(&bytes),
                Err((refusal, rest)) => return self.refuse_unread(refusal, parts, rest),
            };
            if let Ok(message) = &message
                && message.get("id").is_none()
            {
                return self.notified(parts, message, hash);
            }
            (message, present.enter().await)
        } else {
            let Some(mut place) = present.enter().await else {
                return self.refuse_unread(Refusal::Overload, parts, body);
            };
            match body::read(body, |bytes| place.reserve(bytes), limits).await {
                Ok(bytes) => (body::parse(&bytes), Some(place)),
                Err((refusal, rest)) => return self.refuse_unread(refusal, parts, rest),
            }
        };
        match (message, place) {
            (Err(refusal), _) => refusal.into_response(),
            (Ok(_), None) => Refusal::Overload.into_response(),
            (Ok(message), Some(_)) if message.get("id").is_none() => self.notified(parts, &message, hash),
            (Ok(message), Some(place)) => self.dispatch(parts, message, key, hash, place).await,
        }
    }

    /// Takes a message that has no answer.
    fn notified(&self, parts: &Parts, message: &Value, hash: keys::Hash) -> Response {
        match revision::check(&parts.headers, message) {
            Ok(era) => {
                if self.cancels(era) && message["method"] == "notifications/cancelled" {
                    self.cancellations.cancel(hash, &parts.headers, message.get("params"));
                }
                // Other notifications have no effect.
                StatusCode::ACCEPTED.into_response()
            }
            Err(error) => error.into_response(),
        }
    }

    /// Whether a notification may end a call. The newest revision cancels by closing the stream, and by nothing else.
    fn cancels(&self, era: Era) -> bool {
        self.config.cancel_by_notification && era == Era::Handshake
    }

    async fn dispatch(
        &self,
        parts: &Parts,
        message: Value,
        key: &Secret,
        hash: keys::Hash,
        mut place: Place,
    ) -> Response {
        let era = match revision::check(&parts.headers, &message) {
            Ok(era) => era,
            Err(error) => return error.into_response(),
        };
        let id = message["id"].clone();
        let Some(method) = message.get("method").and_then(Value::as_str) else {
            // Answers answer nothing, because this server asks nothing.
            return StatusCode::ACCEPTED.into_response();
        };
        let entry = (self.cancels(era) && method == "tools/call")
            .then(|| self.cancellations.enter(hash, &parts.headers, &id));
        let tool = message["params"]["name"].as_str().unwrap_or_default();
        if !place.reserve_soon(tools::result_bytes(self.tools, tool)).await {
            return Refusal::Overload.into_response();
        }
        let Ok(message) = serde_json::from_value(message) else {
            return ProtocolError::invalid_request(Some(id)).into_response();
        };
        let Ok(client) = self.keys.client(key, hash) else { return Refusal::UnusableKey.into_response() };
        let server = Server::new(client, self.tools, self.shared.clone());
        let timing = Timing::from(&self.config.limits);
        let running = oneshot::Running::start(server, message, entry);
        answer::answer(running, era, id, timing, place).await
    }

    /// Answers at once. What the client is still sending is thrown away meanwhile, because many clients see a reset
    /// connection instead of the answer when nobody takes their data.
    fn refuse_unread(&self, refusal: Refusal, parts: &Parts, body: Body) -> Response {
        // A client that asks first has sent nothing, and reading would tell it to go on.
        if !body.is_end_stream() && !parts.headers.contains_key(EXPECT) {
            self.shared.background.spawn(body::discard(body));
        }
        refusal.into_response()
    }
}

fn health() -> Response {
    let body =
        serde_json::json!({"status": "ok", "server": "superserve", "version": env!("CARGO_PKG_VERSION")});
    axum::Json(body).into_response()
}

#[cfg(test)]
mod tests;
