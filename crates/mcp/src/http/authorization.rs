//! OAuth beside keys, where an authorization server exists (`spec/mcp.md` §B.8). This endpoint is its protected resource: it
//! tells clients without a token where to get one, and has every token exchanged for what calls the platform. A client's
//! token never travels on.

use std::fmt::Debug;
use std::sync::Arc;

use domain::Secret;
use futures_util::future::BoxFuture;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue};

use super::refusal::Refusal;

/// The authorization server, as this endpoint sees it.
#[derive(Debug, Clone)]
pub struct Authorization {
    /// What all its tokens begin with; anything else is a key.
    pub prefix: &'static str,
    /// URL of the protected-resource metadata.
    pub metadata_url: String,
    /// What a client has to ask for.
    pub scope: &'static str,
    /// Opens its tokens.
    pub exchange: Arc<dyn Exchange>,
}

/// Opens access tokens.
pub trait Exchange: Send + Sync + Debug {
    /// What a token calls the platform with.
    fn exchange<'a>(&'a self, token: &'a Secret) -> BoxFuture<'a, Result<Secret, NoExchange>>;
}

/// Why a token calls nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoExchange {
    /// It is no access token, or one that has ended, or one for another audience.
    Invalid,
    /// That cannot be said now.
    Unavailable,
}

impl Authorization {
    /// The key for a bearer token.
    pub(super) async fn key(&self, bearer: Secret) -> Result<Secret, Refusal> {
        if !bearer.expose_secret().starts_with(self.prefix) {
            return Ok(bearer);
        }
        self.exchange.exchange(&bearer).await.map_err(|no| match no {
            NoExchange::Invalid => Refusal::InvalidToken,
            NoExchange::Unavailable => Refusal::Internal,
        })
    }

    /// Adds to a challenge where tokens come from.
    pub(super) fn add_challenge(&self, headers: &mut HeaderMap) {
        let Some(challenge) = headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()) else {
            return;
        };
        let (url, scope) = (&self.metadata_url, self.scope);
        let challenge = format!(r#"{challenge}, resource_metadata="{url}", scope="{scope}""#);
        if let Ok(value) = HeaderValue::try_from(challenge) {
            headers.insert(WWW_AUTHENTICATE, value);
        }
    }
}
