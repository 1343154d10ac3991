//! What one build works with.

use std::sync::Arc;

use domain::{Shape, TeamId};
use node::Host;
use store::Store;
use templates::{Access, LayerStore};

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
    /// Of its machines, of which there is one at a time.
    pub(crate) link: u32,
}

impl Work {
    /// A machine over these layers.
    pub(crate) fn blueprint(&self, layers: &[String]) -> Blueprint {
        Blueprint { shape: self.shape, layers: layers.to_vec(), link: self.link }
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        u64::from(self.shape.disk_mib) * 1024 * 1024
    }
}
