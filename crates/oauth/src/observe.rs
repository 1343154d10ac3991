//! What happened, for whoever counts and keeps a log of it. No event has anything that a client chose.

use std::fmt::Debug;
use std::sync::Arc;

use domain::TeamId;
use store::OauthGrant;
use uuid::Uuid;

/// Whose authority it is about, and whose client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The key's team.
    pub team: TeamId,
    /// The key.
    pub key: Uuid,
    /// The key's name.
    pub key_name: Arc<str>,
    /// The client's id.
    pub client: Uuid,
    /// The grant.
    pub grant: Uuid,
}

impl From<&OauthGrant> for Subject {
    fn from(found: &OauthGrant) -> Self {
        Self {
            team: found.key.team,
            key: found.key.id,
            key_name: found.key.name.as_str().into(),
            client: found.grant.client,
            grant: found.grant.id,
        }
    }
}

/// Why a grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The client revoked one of its tokens.
    Client,
    /// A code came a second time, or came with what did not belong to it.
    Code,
    /// A refresh token came a second time.
    Refresh,
}

impl Reason {
    /// A short word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Code => "code_misused",
            Self::Refresh => "refresh_token_reused",
        }
    }
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client got an id.
    Registered,
    /// Somebody was asked too often.
    Limited,
    /// A text that is no working key was typed into the page.
    WrongKey,
    /// The holder of the page said no.
    Denied,
    /// The MCP endpoint was sent a token that does not open it.
    TokenRefused,
    /// A client redeemed a code.
    Granted(Subject),
    /// A client renewed its tokens.
    Refreshed(Subject),
    /// A grant ended before its time.
    Ended(Subject, Reason),
}

impl Event {
    /// A short word from a fixed list.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Limited => "limited",
            Self::WrongKey => "wrong_key",
            Self::Denied => "denied",
            Self::TokenRefused => "token_refused",
            Self::Granted(_) => "granted",
            Self::Refreshed(_) => "refreshed",
            Self::Ended(..) => "ended",
        }
    }
}

/// Implemented where everything is wired together. It must not wait.
pub trait Observer: Send + Sync + Debug {
    /// Something happened.
    fn oauth(&self, event: Event);
}
