//! §10.1: the template object. Builds come with the template work.

use serde::{Deserialize, Serialize};

/// One row of `GET /templates`, and `GET /templates/{name_or_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// UUID.
    pub id: String,
    /// Owner; curated templates carry the system team's id.
    pub team_id: String,
    /// Unique among the team's live templates.
    pub name: String,
    /// `domain::TemplateStatus` by name.
    pub status: String,
    /// Processors.
    pub vcpu: u32,
    /// MiB.
    pub memory_mib: u32,
    /// MiB.
    pub disk_mib: u32,
    /// RFC 3339.
    pub created_at: String,
    /// Bytes of the layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Why the build failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_at: Option<String>,
}
