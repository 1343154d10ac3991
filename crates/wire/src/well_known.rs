//! `GET /.well-known/superserve`: how our own client finds the data plane without a proxy or a hook.

use serde::{Deserialize, Serialize};

/// Path of the descriptor on the control plane; no authentication.
pub const PATH: &str = "/.well-known/superserve";

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Server version.
    pub version: String,
    /// Base URL of the data plane for our own client: plain HTTP on loopback or the operator's https URL, no trailing
    /// slash. The sandbox is named by `X-Superserve-Sandbox-Id`.
    pub data_plane_url: String,
    /// The suffix under which `boxd-<id>.` and `<port>-<id>.` names resolve, with the port if it is not the scheme's
    /// own, e.g. `sandbox.localhost:8443`.
    pub sandbox_host: String,
    /// Scheme of `sandbox_host` URLs, `https` or `http`.
    pub scheme: String,
    /// The isolation engine that runs sandboxes here, e.g. `container`.
    pub engine: String,
}
