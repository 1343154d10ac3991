//! The data plane as the guest agent serves it and the edge relays it (`spec/data-plane.md`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Carries the per-sandbox token.
pub const ACCESS_TOKEN_HEADER: &str = "x-access-token";
/// Names the sandbox on the shared host.
pub const SANDBOX_ID_HEADER: &str = "x-superserve-sandbox-id";
/// Optional hint of other deployments; ignored here.
pub const ROUTING_HINT_HEADER: &str = "x-superserve-routing-hint";

/// Default of `ExecRequest::timeout_s` on `/exec`, seconds (§3).
pub const DEFAULT_EXEC_TIMEOUT_S: i64 = 30;
/// Combined output kept by `/exec`, bytes (§3).
pub const EXEC_RETENTION_BYTES: usize = 8 * 1024 * 1024;
/// Largest read chunk of one stream event, bytes (§4).
pub const STREAM_CHUNK_BYTES: usize = 32 * 1024;
/// Exit code of a command that ran out of time.
pub const TIMEOUT_EXIT_CODE: i32 = 124;
/// Largest upload, bytes (§6.2).
pub const MAX_UPLOAD_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// Most entries of a zip (§6.1).
pub const MAX_ZIP_ENTRIES: usize = 100_000;
/// Most content bytes of a zip (§6.1).
pub const MAX_ZIP_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Most rows of a JSON listing (§6.1).
pub const MAX_LISTING_ENTRIES: usize = 10_000;

/// Body of `POST /exec` and `POST /exec/stream`. Unknown fields are ignored: older agents meet newer clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// A shell command, or the program when `args` is given.
    #[serde(default)]
    pub command: String,
    /// Run `command` directly with these arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Variables of this command only; they win over all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Absolute directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Seconds; 0 and less mean the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
}

/// Answer of `POST /exec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// UTF-8; invalid sequences are replaced.
    #[serde(default)]
    pub stdout: String,
    /// UTF-8; invalid sequences are replaced.
    #[serde(default)]
    pub stderr: String,
    /// 0 to 255; 128+n for death by signal n, 124 for a timeout, 127 not found, 126 not executable.
    #[serde(default)]
    pub exit_code: i32,
    /// The retention cap was hit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One `data:` record of `POST /exec/stream` (§4).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEvent {
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// A piece of standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// A piece of standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// On the last event of a command that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The command could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `bad_request`, `exec_failed` or `gone`, with `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// True on the last event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finished: bool,
}

/// Answer of `POST /files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    /// Absolute path.
    pub path: String,
    /// Bytes written.
    pub size: u64,
}

/// Query parameters of `/files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileQuery {
    /// Absolute path.
    pub path: String,
    /// `zip` or `json` for directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// The paths of the data plane that the edge lets through (§1.4); everything else is 404.
pub const EXPOSED_PATHS: &[&str] = &["/files", "/exec", "/exec/stream", "/exec/connect", "/terminal"];
