//! What the edge asks of the platform; implemented where everything is wired together.

use async_trait::async_trait;
use domain::{PreviewPort, Published, SandboxId, SandboxState};
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};

/// A two-way byte stream to a guest agent.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Answer of a token check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The token opens this sandbox.
    Granted,
    /// It does not (any more).
    Denied,
}

/// Answer of a preview token check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewAdmission {
    /// The token opens the port, until then if it ends by itself.
    Granted(Option<Timestamp>),
    /// It did, until its end came.
    Expired,
    /// It does not.
    Denied,
}

/// Why there is no stream to a port.
#[derive(Debug)]
pub enum DialError {
    /// Nothing listens there.
    NotListening,
    /// The sandbox does not run.
    NotRunning,
    /// Something else, for the log.
    Failed(std::io::Error),
}

/// Sandboxes as the edge sees them.
#[async_trait]
pub trait Directory: Send + Sync + std::fmt::Debug {
    /// The state of a live sandbox; `None` when there is none of this id.
    async fn state(&self, id: SandboxId) -> Option<SandboxState>;
    /// Returns as soon as the sandbox is not active, at once when it is not active now. Requests in flight end then: a
    /// stopped agent would let them hang.
    async fn inactive(&self, id: SandboxId);
    /// Checks a data-plane token in constant time.
    async fn admit(&self, id: SandboxId, token: &str) -> Admission;
    /// Opens a stream to the agent of an active sandbox.
    async fn agent(&self, id: SandboxId) -> std::io::Result<Box<dyn ByteStream>>;
    /// How a port is published, if it is.
    async fn preview(&self, id: SandboxId, port: PreviewPort) -> Option<Published>;
    /// Checks a token of a port that is published like this, in constant time.
    async fn admit_preview(
        &self,
        id: SandboxId,
        port: PreviewPort,
        published: Published,
        token: &str,
    ) -> PreviewAdmission;
    /// Returns as soon as a port is not published like this any more.
    async fn preview_changed(&self, id: SandboxId, port: PreviewPort, published: Published);
    /// Opens a stream to a port of an active sandbox.
    async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<Box<dyn ByteStream>, DialError>;
}
