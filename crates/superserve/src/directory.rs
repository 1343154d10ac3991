//! The edge's view of the sandboxes: state and tokens from the lifecycle, streams from the host.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{SandboxId, SandboxState};
use edge::{Admission, ByteStream, Directory};
use lifecycle::Lifecycle;

/// Joins the edge to the lifecycle.
#[derive(Debug)]
pub(crate) struct Sandboxes(pub(crate) Arc<Lifecycle>);

#[async_trait]
impl Directory for Sandboxes {
    async fn state(&self, id: SandboxId) -> Option<SandboxState> {
        self.0.state(id)
    }

    async fn inactive(&self, id: SandboxId) {
        self.0.inactive(id).await;
    }

    async fn admit(&self, id: SandboxId, token: &str) -> Admission {
        if self.0.admit(id, token) { Admission::Granted } else { Admission::Denied }
    }

    async fn agent(&self, id: SandboxId) -> std::io::Result<Box<dyn ByteStream>> {
        match self.0.agent(id).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(problem) => Err(std::io::Error::other(problem.chain())),
        }
    }
}
