//! The server: what it knows, its routes, and what holds for all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use domain::Secret;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL,
    HOST, ORIGIN, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use store::{Store, StoreError};

use crate::consent::Consent;
use crate::delegation::Delegation;
use crate::limiter::Limiter;
use crate::observe::{Event, Observer};
use crate::token::{Kind, Mint};
use crate::url::{LOOPBACK_NAMES, PublicUrl, authority};
use crate::{authorize, metadata, register, revoke, token_endpoint};

// At the root, because some hosted clients go there whatever the metadata say (anthropics/claude-ai-mcp#846).
pub(crate) const AUTHORIZE: &str = "/authorize";
pub(crate) const TOKEN: &str = "/token";
pub(crate) const REGISTER: &str = "/register";
pub(crate) const REVOKE: &str = "/revoke";
/// The only thing there is to grant.
pub(crate) const SCOPE: &str = "mcp";
/// What some clients ask for when they want to renew their tokens; all may.
pub(crate) const OFFLINE: &str = "offline_access";

/// Registrations per address: a hosted client registers for many of its users from few addresses.
const REGISTRATIONS: (u32, Duration) = (30, Duration::from_secs(600));
/// Wrong keys per address. Keys have 192 random bits; this only keeps guessers out of the log.
const WRONG_KEYS: (u32, Duration) = (10, Duration::from_secs(600));

/// What the operator decides.
#[derive(Debug, Clone)]
pub struct OauthConfig {
    /// Under which URL the server is reached.
    pub url: PublicUrl,
    /// Where it listens: its own names there are accepted as well.
    pub listen: SocketAddr,
    /// Browser origins whose pages may be clients.
    pub origins: Vec<String>,
    /// From this all codes and tokens are derived.
    pub token_key: [u8; 32],
}

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// The authorization server; clones are the same one.
#[derive(Debug, Clone)]
pub struct Server {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) url: PublicUrl,
    listen: SocketAddr,
    origins: Vec<String>,
    pub(crate) mint: Mint,
    pub(crate) consent: Consent,
    pub(crate) delegation: Delegation,
    pub(crate) store: Store,
    pub(crate) registrations: Limiter,
    pub(crate) wrong_keys: Limiter,
    pub(crate) clock: Clock,
    observer: Arc<dyn Observer>,
}

/// The time; tests move it.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    #[cfg(test)]
    pub(crate) ahead_seconds: std::sync::atomic::AtomicI64,
}

impl Clock {
    #[cfg(not(test))]
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    #[cfg(test)]
    pub(crate) fn now(&self) -> Timestamp {
        let ahead = self.ahead_seconds.load(std::sync::atomic::Ordering::Relaxed);
        Timestamp::now() + jiff::SignedDuration::from_secs(ahead)
    }
}

impl Inner {
    /// The audience of every token.
    pub(crate) fn resource(&self) -> String {
        format!("{}/mcp", self.url.origin())
    }

    /// Whether this is a name of the one resource there is: its own, or that of the whole server (`spec/mcp.md` §J.24).
    pub(crate) fn is_resource(&self, named: &str) -> bool {
        let named = named.strip_suffix('/').unwrap_or(named);
        named == self.resource() || named == self.url.origin()
    }

    pub(crate) fn tell(&self, event: Event) {
        match &event {
            Event::Granted(subject) | Event::Refreshed(subject) | Event::Ended(subject, _) => {
                tracing::info!(event = event.as_str(), client = %subject.client, grant = %subject.grant, "oauth");
            }
            // Anybody can make these happen, as often as they like.
            _ => tracing::debug!(event = event.as_str(), "oauth"),
        }
        self.observer.oauth(event);
    }

    /// A page that rebinds its name to this address still sends its own name.
    fn host_allowed(&self, parts: &Parts) -> bool {
        let named: Vec<&str> = match parts.uri.authority() {
            Some(authority) => vec![authority.as_str()],
            None => {
                parts.headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default()).collect()
            }
        };
        let [named] = named[..] else { return false };
        let Some(host) = authority(&named.to_ascii_lowercase()) else { return false };
        let local = self.listen.ip().is_loopback() && LOOPBACK_NAMES.contains(&host.as_str());
        local || host == self.url.host()
    }
}

impl Inner {
    /// The page of another origin that asks, if it may. The consent page is nobody's but its own.
    fn listed_page(&self, parts: &Parts) -> Option<HeaderValue> {
        let origin = parts.headers.get(ORIGIN).filter(|_| parts.uri.path() != AUTHORIZE)?;
        self.origins.iter().any(|listed| listed.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }
}

impl Server {
    /// Does no I/O.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub fn new(config: OauthConfig, store: Store, observer: Arc<dyn Observer>) -> Result<Self, StartError> {
        let OauthConfig { url, listen, origins, token_key } = config;
        let audience = format!("{}/mcp", url.origin());
        let inner = Inner {
            listen,
            origins,
            mint: Mint::new(token_key, &audience),
            consent: Consent::new().map_err(StartError::Random)?,
            delegation: Delegation::new(store.clone()).map_err(StartError::Random)?,
            store,
            registrations: Limiter::new(REGISTRATIONS.0, REGISTRATIONS.1),
            wrong_keys: Limiter::new(WRONG_KEYS.0, WRONG_KEYS.1),
            clock: Clock::default(),
            observer,
            url,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// For the control plane, which has to know what the MCP endpoint calls it with.
    #[must_use]
    pub fn delegation(&self) -> Delegation {
        self.inner.delegation.clone()
    }

    /// Where a client that was refused finds out where to go.
    #[must_use]
    pub fn resource_metadata_url(&self) -> String {
        format!("{}{}", self.inner.url.origin(), metadata::RESOURCE_MCP)
    }

    /// What a client has to ask for.
    #[must_use]
    pub fn scope(&self) -> &'static str {
        SCOPE
    }

    /// What an access token calls the control plane with; `None` when it does not open the MCP endpoint.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn exchange(&self, token: &Secret) -> Result<Option<Secret>, StoreError> {
        let inner = &self.inner;
        let now = inner.clock.now();
        let opened = inner.mint.open(token.expose_secret(), Kind::Access).filter(|token| !token.expired(now));
        let found = match opened {
            Some(token) => inner.store.oauth_grant_find(token.grant, now).await?.filter(|found| {
                let newest = found.grant.generation;
                // The one before may still be on its way in calls that began before the client renewed it.
                (token.generation == newest || token.generation.checked_add(1) == Some(newest))
                    && found.grant.resource == inner.resource()
            }),
            None => None,
        };
        if found.is_none() {
            inner.tell(Event::TokenRefused);
        }
        Ok(found.map(|found| inner.delegation.credential(found.grant.id)))
    }

    /// The routes of this server, and `rest` everywhere else.
    pub fn mounted_over(&self, rest: Router) -> Router {
        Router::new()
            .route(metadata::SERVER, get(metadata::server))
            .route(metadata::RESOURCE, get(metadata::resource_root))
            .route(metadata::RESOURCE_MCP, get(metadata::resource))
            .route(AUTHORIZE, get(authorize::show).post(authorize::decide))
            .route(TOKEN, post(token_endpoint::token))
            .route(REGISTER, post(register::register))
            .route(REVOKE, post(revoke::revoke))
            .route_layer(from_fn_with_state(self.clone(), guarded))
            .fallback_service(rest)
            .with_state(self.clone())
    }
}

/// What holds for every route: the right host, and headers that keep answers out of caches, frames and other types.
async fn guarded(State(server): State<Server>, request: Request, next: Next) -> Response {
    let inner = &server.inner;
    let (parts, body) = request.into_parts();
    let page = inner.listed_page(&parts);
    let mut response = if !inner.host_allowed(&parts) {
        let text = "This host is not allowed. A proxy has to pass the Host header on, and the operator names it in oauth_url.\n";
        (StatusCode::FORBIDDEN, text).into_response()
    } else if page.is_some() && parts.method == Method::OPTIONS {
        let allowed = [
            (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST")),
            (
                ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static("content-type, accept, mcp-protocol-version"),
            ),
        ];
        (StatusCode::NO_CONTENT, allowed).into_response()
    } else {
        next.run(Request::from_parts(parts, body)).await
    };
    let headers = response.headers_mut();
    if !inner.origins.is_empty() {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    if let Some(origin) = page {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    // Not `no-referrer`, with which browsers hide the origin of our own form.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    if inner.url.https() {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    response
}
