//! §5: saved snapshots.

use serde::{Deserialize, Serialize};

/// The only kind that is published (§15, open point 10).
pub const SNAPSHOT_KIND: &str = "mem+fs";

/// Body of `POST /sandboxes/{id}/snapshot`; may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// [`SNAPSHOT_KIND`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// 1 to 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 1 to 255 bytes; the same key of the same sandbox is the same snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Body of `PATCH /snapshots/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameSnapshot {
    /// 1 to 64 bytes.
    pub name: String,
}

/// A saved snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Lowercase UUID.
    pub id: String,
    /// What was saved; it may be gone.
    pub sandbox_id: String,
    /// What that was made from, unless the template is gone.
    #[serde(default)]
    pub template_id: Option<String>,
    /// [`SNAPSHOT_KIND`].
    pub kind: String,
    /// An addition of this platform: what it really holds, `disk` or `memory+disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured: Option<String>,
    /// `creating`, `ready`, `failed` or `deleting`.
    pub status: String,
    /// Not unique.
    #[serde(default)]
    pub name: Option<String>,
    /// 0 until it is ready.
    pub size_bytes: u64,
    /// Of its forks.
    pub resources: SnapshotResources,
    /// An addition of this platform: the snapshot that the saved sandbox was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_snapshot_id: Option<String>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    #[serde(default)]
    pub ready_at: Option<String>,
}

/// `Snapshot::resources`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotResources {
    /// Processors.
    pub vcpu_count: u32,
    /// MiB.
    pub memory_mib: u32,
    /// MiB.
    pub disk_mib: u32,
}
