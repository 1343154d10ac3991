//! What one build works with.

use std::sync::Arc;
use std::time::Duration;

use domain::{Engine, Shape, TeamId};
use node::Host;
use store::Store;
use templates::{Access, LayerStore, TemplateError};

use crate::curated::Instead;
use crate::log::Log;
use crate::machine::{Blueprint, Machines};

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) store: Store,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) layers: LayerStore,
    pub(crate) access: Access,
    pub(crate) log: Arc<Log>,
    pub(crate) machines: Machines,
    /// Whose templates it may begin with.
    pub(crate) team: TeamId,
    /// What to do when the image cannot be had.
    pub(crate) instead: Option<Instead>,
    pub(crate) shape: Shape,
    /// What its steps run on, and sandboxes of the template will.
    pub(crate) engine: Engine,
    pub(crate) ready_within: Duration,
    /// Of its machines, of which there is one at a time.
    pub(crate) link: u32,
}

impl Work {
    /// A machine over these layers.
    pub(crate) fn blueprint(&self, layers: &[String]) -> Blueprint {
        Blueprint { engine: self.engine, shape: self.shape, layers: layers.to_vec(), link: self.link }
    }

    /// Notes that layers are needed until the template refers to them; `false` when one of them is gone.
    pub(crate) async fn keep(&self, digests: Vec<String>) -> Result<bool, TemplateError> {
        let layers = self.layers.clone();
        let keep = move || digests.iter().try_fold(true, |all, digest| Ok(all && layers.keep(digest)?));
        let kept = tokio::task::spawn_blocking(keep).await;
        kept.map_err(|error| TemplateError::Io { what: "keeping layers", source: error.into() })?
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        u64::from(self.shape.disk_mib) * 1024 * 1024
    }
}
