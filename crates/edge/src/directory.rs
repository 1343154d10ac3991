//! What the edge asks of the platform; implemented where everything is wired together.

use async_trait::async_trait;
use domain::{SandboxId, SandboxState};
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
}
