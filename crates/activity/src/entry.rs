//! One thing that happened, before it is a row.

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, SecretId, TeamId, TemplateId};
use jiff::Timestamp;
use serde_json::{Map, Value};
use store::ActivityRow;
use uuid::Uuid;

use crate::Action;

/// Who did it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Actor {
    /// Whoever has this API key.
    Key {
        /// Its id.
        id: Uuid,
        /// Its name at the time.
        name: Arc<str>,
    },
    /// Whoever has the sandbox's data-plane token.
    Token,
    /// Somebody without a valid token.
    Stranger,
    /// The platform by itself: a clock, a restart, a machine that ended.
    Platform,
    /// Somebody with access to the server's state directory.
    Operator,
}

impl Actor {
    fn kind(&self) -> &'static str {
        match self {
            Self::Key { .. } => "key",
            Self::Token => "token",
            Self::Stranger => "stranger",
            Self::Platform => "platform",
            Self::Operator => "operator",
        }
    }
}

/// On whose behalf an operation runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose sandboxes it is about.
    pub team: TeamId,
    /// Who asked.
    pub actor: Actor,
    /// The request that asked, as the log calls it.
    pub request: Option<Uuid>,
}

impl From<TeamId> for Caller {
    /// The platform itself.
    fn from(team: TeamId) -> Self {
        Self { team, actor: Actor::Platform, request: None }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What.
    pub action: Action,
    /// Who, and for whom.
    pub by: Caller,
    /// To which sandbox, and what it was called.
    pub sandbox: Option<(SandboxId, String)>,
    /// To or from which template.
    pub template: Option<TemplateId>,
    /// With which secret, and what it was called.
    pub secret: Option<(SecretId, String)>,
    /// A code, when it failed. Not a message: messages repeat what callers wrote.
    pub error: Option<&'static str>,
    /// How long it took.
    pub took: Option<Duration>,
    /// Small facts.
    pub facts: Vec<(&'static str, Value)>,
}

impl Entry {
    /// An entry with nothing but what and who.
    #[must_use]
    pub fn new(action: Action, by: Caller) -> Self {
        Self {
            action,
            by,
            sandbox: None,
            template: None,
            secret: None,
            error: None,
            took: None,
            facts: Vec::new(),
        }
    }

    /// The row to write.
    #[must_use]
    pub fn into_row(self, now: Timestamp) -> ActivityRow {
        let mut metadata: Map<String, Value> =
            self.facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        metadata.insert("actor_type".to_owned(), self.by.actor.kind().into());
        if let Some(request) = self.by.request {
            metadata.insert("request_id".to_owned(), request.to_string().into());
        }
        let actor = match self.by.actor {
            Actor::Key { id, name } => {
                metadata.insert("actor_name".to_owned(), name.as_ref().into());
                Some(id)
            }
            Actor::Token | Actor::Stranger | Actor::Platform | Actor::Operator => None,
        };
        let (sandbox, sandbox_name) = self.sandbox.unzip();
        let (secret, secret_name) = self.secret.unzip();
        ActivityRow {
            id: Uuid::new_v4(),
            team: self.by.team,
            actor,
            category: self.action.category().to_owned(),
            action: self.action.name().to_owned(),
            error: self.error.map(str::to_owned),
            sandbox,
            sandbox_name,
            template: self.template,
            secret,
            secret_name,
            duration_ms: self.took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            metadata,
            created_at: now,
        }
    }
}
