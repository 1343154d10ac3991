//! The edge's view of the sandboxes: state and tokens from the lifecycle, streams from the host.

use std::sync::Arc;

use async_trait::async_trait;
use domain::{Code, PreviewPort, Published, SandboxId, SandboxState};
use edge::{Admission, ByteStream, DialError, Directory, PreviewAdmission};
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

    async fn preview(&self, id: SandboxId, port: PreviewPort) -> Option<Published> {
        self.0.preview(id, port)
    }

    async fn admit_preview(
        &self,
        id: SandboxId,
        port: PreviewPort,
        published: Published,
        token: &str,
    ) -> PreviewAdmission {
        match self.0.preview_admit(id, port, published, token) {
            lifecycle::PreviewAdmission::Granted(ends) => PreviewAdmission::Granted(ends),
            lifecycle::PreviewAdmission::Expired => PreviewAdmission::Expired,
            lifecycle::PreviewAdmission::Denied => PreviewAdmission::Denied,
        }
    }

    async fn preview_changed(&self, id: SandboxId, port: PreviewPort, published: Published) {
        self.0.preview_changed(id, port, published).await;
    }

    async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<Box<dyn ByteStream>, DialError> {
        match self.0.dial(id, port).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(problem) => Err(match (problem.code, self.0.state(id)) {
                (Code::NotFound, Some(_)) => DialError::NotListening,
                (Code::NotFound | Code::SandboxUnavailable, _) => DialError::NotRunning,
                _ => DialError::Failed(std::io::Error::other(problem.chain())),
            }),
        }
    }
}
