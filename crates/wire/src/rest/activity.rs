//! §12: the activity log of the account.

use serde::{Deserialize, Serialize};

/// One row of `GET /activity`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// UUID.
    pub id: String,
    /// The sandbox it is about; it may be gone.
    pub sandbox_id: Option<String>,
    /// The template it is about, or that the sandbox was made from.
    pub template_id: Option<String>,
    /// The API key that asked for it; `metadata.actor_type` says who did when no key did.
    pub actor_id: Option<String>,
    /// `sandbox`, `template`, `secret`, `exec`, `file`, `session`, `token`, `key`.
    pub category: String,
    /// What happened.
    pub action: String,
    /// `success` or `error`.
    pub status: Option<String>,
    /// The sandbox's name at the time.
    pub sandbox_name: Option<String>,
    /// UUID.
    pub secret_id: Option<String>,
    /// The secret's name at the time.
    pub secret_name: Option<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// A code, when it failed.
    pub error: Option<String>,
    /// Small facts about it.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// RFC 3339; when it was over.
    pub created_at: String,
}
