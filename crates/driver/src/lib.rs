//! What an isolation engine must give: bytes, not features. A driver starts, freezes, checkpoints and kills a machine and
//! opens streams into it; exec, files, previews and policy are written once, above it. A driver knows nothing of
//! HTTP, SQL, commands or rules.

pub mod cgroup;
#[cfg(feature = "conformance")]
pub mod conformance;
mod exit;
mod handles;
pub mod netlink;
mod pack;
pub mod process;

use std::fmt;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use domain::SandboxId;
use tokio::io::{AsyncRead, AsyncWrite};

pub use domain::Engine;
pub use exit::exited;
pub use handles::Handles;
pub use pack::{NotPacked, Pack, PackStream};

/// A two-way byte stream into a machine.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}
/// A boxed [`ByteStream`].
pub type BoxStream = Box<dyn ByteStream>;

/// What an engine can promise; asked first, never found out by failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Which engine this is.
    pub engine: Engine,
    /// The guest mounts its disks itself: it gets its root as [`Root::Disks`] and its link as a tap device, and the host never
    /// reads what it wrote.
    pub mounts_disks: bool,
    /// The host reaches the guest's ports through the agent only.
    pub ports_by_agent: bool,
    /// A checkpoint keeps memory and processes across a restart of the host.
    pub checkpoint_keeps_memory: bool,
}

impl Promises {
    /// The guest's kernel is a process of the host's that stops its own tasks: a machine may run for a moment while it is restored, before
    /// it is frozen, and a thaw does more than set a clock.
    #[must_use]
    pub fn stops_itself(self) -> bool {
        self.checkpoint_keeps_memory && !self.mounts_disks
    }
}

/// Limits of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineLimits {
    /// Processors, as a quota.
    pub vcpu: u32,
    /// Memory of the workload, MiB; the agent's own share comes on top.
    pub memory_mib: u32,
    /// Most processes and threads of the workload.
    pub pids: u32,
}

/// The one link of a machine. The network namespace is made, owned and addressed by `node`; the guest cannot change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// A file that holds the network namespace in which the link is (as in `/run/netns`).
    pub netns: PathBuf,
    /// For guests with a kernel of their own: the tap device in that namespace, which is the router's end.
    pub tap: Option<String>,
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// The router's address on this link, the guest's default gateway.
    pub gateway: Ipv4Addr,
}

/// Where a machine's root comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// A mounted, writable tree, ids already shifted by [`MachineSpec::id_shift`].
    Tree(PathBuf),
    /// Two ext4 images with the guest's own ids. The guest mounts them, one over the other; the host must not: what a guest
    /// has written could be made to harm a kernel that reads it.
    Disks {
        /// The template; never written, shared by many machines.
        base: PathBuf,
        /// The machine's own.
        own: PathBuf,
    },
}

/// Everything needed to start a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSpec {
    /// Whose machine it is.
    pub id: SandboxId,
    /// Host name in the guest.
    pub hostname: String,
    /// Its root.
    pub root: Root,
    /// A directory of the machine's own for sockets, bundle and runtime state; not visible to the guest.
    pub run_dir: PathBuf,
    /// The agent's executable on the host.
    pub agent: PathBuf,
    /// Limits.
    pub limits: MachineLimits,
    /// Network.
    pub link: Link,
    /// Guest id 0 is this id outside; 65536 ids are mapped.
    pub id_shift: u32,
}

/// Why a driver could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A program the engine needs is not installed.
    #[error("{program} is missing")]
    Missing {
        /// The program.
        program: String,
    },
    /// The engine's own command failed.
    #[error("{what} failed: {detail}")]
    Engine {
        /// Which step.
        what: &'static str,
        /// The last lines it printed, bounded.
        detail: String,
    },
    /// The guest did not answer in time.
    #[error("{what} did not finish within {limit_ms} ms")]
    Timeout {
        /// Which step.
        what: &'static str,
        /// The limit, milliseconds.
        limit_ms: u64,
    },
    /// The machine is gone.
    #[error("the machine is not running")]
    Gone,
    /// The engine does not promise this.
    #[error("this engine cannot do that: {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// A checkpoint was written under another setting of the server, and fits no other. It is as it was.
    #[error("the checkpoint needs {needs}")]
    OtherSetting {
        /// The setting that it needs, as the configuration has it.
        needs: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// Which step.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

impl DriverError {
    /// Wraps an I/O error with the step that failed, for `map_err`.
    pub fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// An engine.
#[async_trait]
pub trait Driver: Send + Sync + fmt::Debug {
    /// What this engine can promise.
    fn promises(&self) -> Promises;

    /// For how long no TCP connection may have been on a machine's link when a checkpoint is written: engines whose kernels
    /// cannot write connections say so. `None`: it does not matter.
    fn quiet_before_checkpoint(&self) -> Option<Duration> {
        None
    }

    /// What a checkpoint can only be continued with, beside the description of its machine: programs, kernel, processor. `None` where
    /// no other machine is to begin with one.
    fn vintage(&self, _agent: &Path) -> Option<String> {
        None
    }

    /// Whether machines with other ids may start from a checkpoint. Not where the workload was not known to stand still when it was
    /// written: it would go on before its machine has become another one. [`Driver::restore`] refuses the same.
    ///
    /// # Errors
    /// They may not, or it cannot be read.
    fn serves_others(&self, _checkpoint: &Path) -> Result<(), DriverError> {
        Ok(())
    }

    /// Starts a machine; returns when its agent accepts connections. On an error nothing of it is left.
    async fn create(&self, spec: &MachineSpec) -> Result<Arc<dyn Machine>, DriverError>;

    /// Starts a machine from the directory that [`Machine::checkpoint`] wrote, with limits, agent and disks as they were then;
    /// nobody has written to these since. It is frozen; from its first thaw on these disks and the checkpoint are of no use
    /// together. On an error nothing of it is left, and the checkpoint is as it was, which it always is: any number may start from
    /// one, each with disks of its own.
    ///
    /// A machine with another id than the one that was written becomes another one with its first thaw, before any process of the
    /// workload runs again: host name, machine id, address, random numbers and whatever the engine has in the guest to know it by
    /// are its own.
    ///
    /// Only where [`Promises::checkpoint_keeps_memory`].
    async fn restore(&self, _spec: &MachineSpec, _from: &Path) -> Result<Arc<dyn Machine>, DriverError> {
        Err(DriverError::Unsupported { what: "starting from a checkpoint" })
    }

    /// What can be known of a restore before a machine begins to run, where that is before the first thaw
    /// ([`Promises::stops_itself`]): whoever gives the checkpoint up for it asks first.
    async fn check_restore(&self, _spec: &MachineSpec, _from: &Path) -> Result<(), DriverError> {
        Ok(())
    }

    /// Finds the machine again after a restart of the server; `None` when it no longer runs. Leaves no remains of a dead
    /// one.
    async fn recover(&self, spec: &MachineSpec) -> Result<Option<Arc<dyn Machine>>, DriverError>;

    /// Removes whatever is left of a machine, whatever state it is in; a second call does nothing.
    async fn purge(&self, id: SandboxId, run_dir: &Path) -> Result<(), DriverError>;
}

/// Whether a machine's processes may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// They run.
    Running,
    /// They are stopped and keep their memory.
    Frozen,
}

/// What a machine uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory charged to it, bytes.
    pub memory_bytes: u64,
    /// Processor time since it started, microseconds.
    pub cpu_usec: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// A running machine. Dropping the handle does nothing: machines outlive the server.
#[async_trait]
pub trait Machine: Send + Sync + fmt::Debug {
    /// Stops all processes where they are. Idempotent.
    async fn freeze(&self) -> Result<(), DriverError>;
    /// Lets them continue, with the right time. Idempotent.
    async fn thaw(&self) -> Result<(), DriverError>;
    /// Freezes it and writes its memory and the state of its devices into a new directory (0700), which together with its disks
    /// is all of it and is safe from a loss of power. On an error the machine is frozen, or gone, and so is the directory;
    /// afterwards, too, it is frozen, or gone. It may be destroyed, or go on with a thaw; then copies of its disks that were made
    /// before belong to what was written.
    ///
    /// Only where [`Promises::checkpoint_keeps_memory`].
    async fn checkpoint(&self, _to: &Path) -> Result<(), DriverError> {
        Err(DriverError::Unsupported { what: "writing a checkpoint" })
    }
    /// The same for callers that wait longer than those of a pause, and say when they do not any more.
    async fn checkpoint_within(
        &self,
        to: &Path,
        _limit: Duration,
        _unwanted: &AtomicBool,
    ) -> Result<(), DriverError> {
        self.checkpoint(to).await
    }
    /// What a checkpoint would take now, about, bytes.
    async fn checkpoint_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.usage().await?.memory_bytes)
    }
    /// Whether they run.
    async fn power(&self) -> Result<Power, DriverError>;
    /// Packs what was written to its disk, or all that its root shows, as the tar archive of a layer, with the guest's own ids.
    /// The machine runs; its workload stands still from before the first byte until the stream has ended or is dropped, and
    /// goes on then. The guest packs, so the archive may hold anything, except that it is finite in time: see [`PackStream`].
    ///
    /// Only where [`Promises::mounts_disks`]; elsewhere the host reads [`Root::Tree`] while the machine is frozen.
    async fn pack(&self, _what: &Pack) -> Result<PackStream, DriverError> {
        Err(DriverError::Unsupported { what: "packing what was written" })
    }
    /// Opens a stream to the agent.
    async fn agent(&self) -> Result<BoxStream, DriverError>;
    /// What it uses.
    async fn usage(&self) -> Result<Usage, DriverError>;
    /// A descriptor that becomes readable when the machine is gone (a pidfd).
    fn exit_fd(&self) -> Result<OwnedFd, DriverError>;
    /// Ends all processes and removes what the engine made for it. Idempotent.
    async fn destroy(&self) -> Result<(), DriverError>;
}
