//! Whoever opens TLS towards some hosts, and what it is given: the gateway finds out whose connection it is and where it
//! may go, and knows nothing of what is inside.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use domain::SandboxId;
use std::net::SocketAddrV4;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::dial::{self, Dialled, NotDialled};
use crate::gateway::Shared;
use crate::name::Name;
use crate::relay;
use crate::sandboxes::Sandbox;

/// Takes connections over.
#[async_trait]
pub trait Interceptor: fmt::Debug + Send + Sync {
    /// Whether there is any host for which it wants connections of this sandbox. Answered at once, from memory.
    fn concerns(&self, sandbox: SandboxId) -> bool;

    /// Whether it wants TLS connections of this sandbox to this host. Answered at once, from memory.
    fn wants(&self, sandbox: SandboxId, host: &str) -> bool;

    /// Serves such a connection to its end. Dropped, it ends all it has begun.
    async fn serve(&self, connection: Intercepted);
}

/// Bytes, both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of a guest to a host for which TLS is opened.
pub struct Intercepted {
    /// Whose it is.
    pub sandbox: SandboxId,
    /// The name in its ClientHello, in lower case and without a final dot.
    pub host: String,
    /// The connection, from the first byte of the ClientHello.
    pub guest: Box<dyn Stream>,
    /// The way to the service.
    pub dial: Arc<dyn Dial>,
}

impl fmt::Debug for Intercepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Intercepted");
        shown.field("sandbox", &self.sandbox).field("host", &self.host).finish_non_exhaustive()
    }
}

/// Opens connections to the service a guest wants to reach, by the sandbox's rules of that moment.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens one. It has a time limit of its own.
    ///
    /// # Errors
    /// [`DialError`].
    async fn dial(&self) -> Result<Box<dyn Stream>, DialError>;
}

/// Why there is no connection to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialError {
    /// A rule refuses it.
    Blocked,
    /// It does not work, for this reason.
    Failed(&'static str),
}

/// The way of one connection: what has been dialled already comes first.
pub(crate) struct Way {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) host: Option<Name>,
    pub(crate) to: SocketAddrV4,
    pub(crate) first: Mutex<Option<Result<Dialled, NotDialled>>>,
}

#[async_trait]
impl Dial for Way {
    async fn dial(&self) -> Result<Box<dyn Stream>, DialError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let dialled = match first {
            Some(first) => first,
            None => dial::dial(&self.shared, &self.sandbox, self.host.as_ref(), self.to).await,
        };
        let dialled = dialled.map_err(|why| match why {
            NotDialled::Blocked(_) => DialError::Blocked,
            NotDialled::Failed(_, why) => DialError::Failed(why),
        })?;
        // A last request is to arrive, even when the guest has gone meanwhile.
        relay::close_when_dropped(&dialled.service);
        Ok(Box::new(dialled.service))
    }
}
