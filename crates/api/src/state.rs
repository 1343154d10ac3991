//! What handlers work with.

use std::sync::Arc;

use activity::{NetworkLog, Recorder};
use lifecycle::Lifecycle;
use store::Store;
use wire::well_known::Descriptor;

use crate::observe::{MetricsAccess, Observer};

/// Everything the router needs; cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiState {
    /// The sandboxes.
    pub lifecycle: Arc<Lifecycle>,
    /// Keys and templates.
    pub store: Store,
    /// The activity log.
    pub activity: Recorder,
    /// The network log.
    pub network: NetworkLog,
    /// Who counts.
    pub observer: Arc<dyn Observer>,
    /// Who may see what was counted.
    pub metrics: MetricsAccess,
    /// What this server says of itself; its version is also the one of `/health`.
    pub descriptor: Arc<Descriptor>,
}
