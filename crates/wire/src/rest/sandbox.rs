//! §3 to §6: the sandbox object and the bodies of its calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::double_option;

/// `network` in requests and answers; `null` lists count as empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkLists {
    /// IPv4 addresses, CIDRs and domain patterns that are always permitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// IPv4 addresses and CIDRs that are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// An addition of this platform: nothing but `allow_out` can be reached, and other names do not resolve. Left out of
    /// a change it stays as it is, so that a client that does not know it opens nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Body of `POST /sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// 1 to 64 bytes.
    pub name: String,
    /// Template name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_template: Option<String>,
    /// Saved snapshot id; exclusive with `from_template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// Seconds of active time before it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// Seconds of paused time before it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete_seconds: Option<i64>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Plain environment variables; never echoed back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Egress rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkLists>,
    /// Environment variable to secret name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, String>>,
    /// `public` or `private`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_access: Option<String>,
    /// `domain::Engine` by name, instead of what the template or the server says. An addition to the published API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
}

/// Body of `PATCH /sandboxes/{id}`: only what is present changes; `null` clears a clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchSandbox {
    /// Replaces both lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkLists>,
    /// Replaces all tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Seconds, or `null` for never.
    #[serde(default, with = "double_option", skip_serializing_if = "Option::is_none")]
    pub auto_delete_seconds: Option<Option<i64>>,
    /// Seconds, or `null` for never.
    #[serde(default, with = "double_option", skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<Option<i64>>,
    /// `public` or `private`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_access: Option<String>,
}

/// One row of `GET /sandboxes`: carries neither token nor bindings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxListItem {
    /// Lowercase UUID.
    pub id: String,
    /// Not unique.
    pub name: String,
    /// `domain::SandboxState` by name.
    pub status: String,
    /// Processors.
    pub vcpu_count: u32,
    /// MiB.
    pub memory_mib: u32,
    /// RFC 3339.
    pub created_at: String,
    /// `{}` when none.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Default of ports published later.
    #[serde(default = "legacy_public")]
    pub preview_access: String,
    /// Latest pause checkpoint, opaque.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The saved snapshot it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_snapshot_id: Option<String>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete_seconds: Option<u32>,
    /// RFC 3339; only while paused with a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_delete_at: Option<String>,
    /// Only when rules are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkLists>,
    /// What it runs on. An addition to the published API; the hosted service does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
}

/// `SandboxListItem::preview_access` of servers that do not send it (§3).
pub(super) fn legacy_public() -> String {
    "legacy_public".to_owned()
}

/// Answer of create, get and activate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// What the list shows too.
    #[serde(flatten)]
    pub item: SandboxListItem,
    /// Data-plane token; a secret.
    pub access_token: String,
    /// Secrets bound to environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretBinding>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox")
            .field("item", &self.item)
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}

/// One row of `Sandbox::secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretBinding {
    /// Environment variable.
    pub env_key: String,
    /// Secret name.
    pub secret_name: String,
    /// The secret was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// Answer of `POST …/resume`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Lowercase UUID.
    pub id: String,
    /// `active`.
    pub status: String,
    /// Data-plane token; a secret.
    pub access_token: String,
}

impl std::fmt::Debug for Resumed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resumed").field("id", &self.id).field("status", &self.status).finish_non_exhaustive()
    }
}

/// 202 answer of `POST …/pause`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseAccepted {
    /// `pausing`.
    pub status: String,
}

/// Answer of `GET /sandboxes/{id}/files` (§6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryListing {
    /// One level, sorted by name.
    pub entries: Vec<DirectoryEntry>,
    /// More entries exist than are shown (data plane only).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One row of a directory listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// Base name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Whether it is a directory; a symbolic link is none.
    pub is_dir: bool,
    /// Bytes.
    pub size: u64,
    /// Seconds since 1970; 0 when unknown.
    pub modified_unix: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_tells_null_from_absent() {
        let patch: PatchSandbox = serde_json::from_str(r#"{"timeout_seconds":null}"#).unwrap();
        assert_eq!(patch.timeout_seconds, Some(None));
        assert_eq!(patch.auto_delete_seconds, None);
        assert_eq!(serde_json::to_string(&patch).unwrap(), r#"{"timeout_seconds":null}"#);
        assert!(serde_json::from_str::<PatchSandbox>(r#"{"nonsense":1}"#).is_err());
    }

    #[test]
    fn python_sends_null_lists() {
        let create: CreateSandbox =
            serde_json::from_str(r#"{"name":"a","network":{"allow_out":null,"deny_out":null}}"#).unwrap();
        assert_eq!(create.network, Some(NetworkLists::default()));
    }

    #[test]
    fn tokens_do_not_print() {
        let resumed = Resumed { id: "i".into(), status: "active".into(), access_token: "hunter2".into() };
        assert!(!format!("{resumed:?}").contains("hunter2"));
    }
}
