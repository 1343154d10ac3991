//! What handlers work with.

use std::sync::Arc;

use lifecycle::Lifecycle;
use store::Store;
use wire::well_known::Descriptor;

/// Everything the router needs; cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiState {
    /// The sandboxes.
    pub lifecycle: Arc<Lifecycle>,
    /// Keys and templates.
    pub store: Store,
    /// What this server says of itself; its version is also the one of `/health`.
    pub descriptor: Arc<Descriptor>,
}
