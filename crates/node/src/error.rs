//! What can go wrong on the host, a variant per remedy.

use std::io;

use domain::{Engine, PreviewPort};
use driver::DriverError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("{program} is missing")]
    Missing { program: String },
    #[error("{program} failed: {detail}")]
    Command { program: &'static str, detail: String },
    #[error("layer {digest} is not on this host")]
    LayerMissing { digest: String },
    #[error("`{digest}` is not a layer digest")]
    BadDigest { digest: String },
    #[error("link number {number} is out of range")]
    NoSuchLink { number: u32 },
    #[error("the host's disk is nearly full")]
    HostDiskFull,
    #[error("the host's disk has no room for what the sandbox has written")]
    NoRoomToSave,
    #[error("the sandbox is not running here")]
    NotRunning,
    #[error("the disk is not for this host's kernel")]
    OwnKernel,
    #[error("making a layer")]
    Layer(#[from] templates::TemplateError),
    #[error("nobody waited for the sandbox any more")]
    Unwanted,
    #[error("the template's disk of this paused sandbox is gone")]
    NoBase,
    #[error("the sandbox has no memory that could be kept")]
    NoMemory,
    #[error("the workload did not stand still")]
    NotStill(#[source] DriverError),
    #[error("the snapshot is not here")]
    NoState,
    #[error("continuing from a snapshot")]
    CannotContinue(#[source] DriverError),
    #[error("the sandbox has no disk here")]
    NoDisk,
    #[error("the {engine} engine is not available: {why}")]
    EngineAbsent { engine: Engine, why: String },
    #[error("the sandbox's disk was written by an engine of another kind")]
    OtherKind,
    #[error("the sandbox's disk is damaged")]
    DiskDamaged,
    #[error("something on the host still uses the sandbox's disk")]
    DiskBusy,
    #[error("the guest's agent did not answer within {limit_ms} ms")]
    AgentSilent { limit_ms: u64 },
    #[error("the guest's agent answered {status} to its configuration")]
    AgentRefused { status: u16 },
    #[error("nothing listens on port {port}")]
    NotListening { port: PreviewPort },
    #[error("port {port} did not accept a connection within {limit_ms} ms")]
    PortSilent { port: PreviewPort, limit_ms: u64 },
    #[error("talking to the guest's agent")]
    Agent(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Egress(#[from] egress::EgressError),
    #[error("{what}")]
    Io { what: &'static str, source: io::Error },
    #[error("a worker ended early")]
    Worker(#[source] tokio::task::JoinError),
}

impl NodeError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Io { what, source: errno.into() }
    }

    /// A program could not be started.
    pub(crate) fn command(program: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { program: program.to_owned() },
            _ => Self::Io { what: program, source },
        }
    }
}
