//! What handlers work with.

use std::sync::Arc;

use activity::{NetworkLog, Recorder};
use builds::Builds;
use domain::Shape;
use lifecycle::Lifecycle;
use secrets::Secrets;
use store::Store;
use wire::well_known::Descriptor;

use crate::observe::{MetricsAccess, Observer};

/// Everything the router needs; cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiState {
    /// The sandboxes.
    pub lifecycle: Arc<Lifecycle>,
    /// The builds of templates.
    pub builds: Arc<Builds>,
    /// Largest template that may be asked for.
    pub max_shape: Shape,
    /// Keys and templates.
    pub store: Store,
    /// The activity log.
    pub activity: Recorder,
    /// Credentials.
    pub secrets: Arc<Secrets>,
    /// The network log.
    pub network: NetworkLog,
    /// Who counts.
    pub observer: Arc<dyn Observer>,
    /// Who may see what was counted.
    pub metrics: MetricsAccess,
    /// Opens what the MCP endpoint calls with for clients that have a grant instead of a key; `None` without OAuth.
    pub delegation: Option<oauth::Delegation>,
    /// What this server says of itself; its version is also the one of `/health`.
    pub descriptor: Arc<Descriptor>,
}
