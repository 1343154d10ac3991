//! What the gateway and the broker give each other: connections.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes, both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of a guest to a host for which TLS is opened.
pub struct Visit {
    /// Whose it is.
    pub sandbox: SandboxId,
    /// The name in its ClientHello, in lower case and without a final dot.
    pub host: String,
    /// The connection, from the first byte of the ClientHello.
    pub guest: Box<dyn Stream>,
    /// The way to the service.
    pub dial: Arc<dyn Dial>,
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit")
            .field("sandbox", &self.sandbox)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Opens connections to the service a guest wants to reach, by the sandbox's rules of that moment.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens one. It has a time limit of its own.
    ///
    /// # Errors
    /// [`NotDialled`].
    async fn dial(&self) -> Result<Box<dyn Stream>, NotDialled>;
}

/// Why there is no connection to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotDialled {
    /// A rule refuses it.
    Blocked,
    /// It does not work, for this reason.
    Failed(&'static str),
}
