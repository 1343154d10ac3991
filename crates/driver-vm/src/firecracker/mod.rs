//! Firecracker as what runs a machine: one process in a jail of its own, told what to do over a socket in it.
//!
//! ```text
//! us ─ REST ─ run/control.sock ─┐
//! us ─ CONNECT ─ run/agent.sock ┴ Firecracker (own uid, jail, empty network namespace, seccomp) ─ guest kernel ─ agent
//! ```
//!
//! Both sockets are files that the process has made; everything at the other end may be the guest's doing.

mod describe;
mod jail;
mod launch;
mod link;
mod rest;
#[cfg(test)]
mod tests;
mod vsock;

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use driver::{DriverError, MachineSpec};
use driver_port::limited;

use crate::host_dir::Recorded;

pub(crate) use jail::{Inhabited, Jail};
pub(crate) use link::is_home;
pub(crate) use rest::Rest;
pub(crate) use vsock::Vsock;

/// What the guest's kernel needs as modules, in the order in which one needs the other.
pub(crate) const MODULES: [&str; 14] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_mmio",
    "virtio/virtio_balloon",
    "block/virtio_blk",
    "char/hw_random/virtio-rng",
    "core/failover",
    "net/net_failover",
    "net/virtio_net",
    "vmw_vsock/vsock",
    "vmw_vsock/vmw_vsock_virtio_transport_common",
    "vmw_vsock/vmw_vsock_virtio_transport",
    "overlayfs/overlay",
    "fuse/fuse",
];

const CONTROL_SOCKET: &str = "/run/control.sock";
const AGENT_SOCKET: &str = "/run/agent.sock";
use jail::{MEMORY_OUT, STATE_OUT};

/// The files of a checkpoint.
const STATE: &str = "state";
const MEMORY: &str = "memory";
/// Between the start of the jailer and a process that answers are some milliseconds, on a busy host many.
const APPEAR_LIMIT: Duration = Duration::from_secs(10);
/// Nobody tells when a socket appears in another's file system.
const APPEAR_POLL: Duration = Duration::from_millis(5);
/// What any disk worth using takes, MiB each second. Twice as long as it should take a process is still heard in time.
const RATE_MIB: u64 = 200;
/// What even a disk in trouble takes, and the longest that a server waits for one machine when it starts.
const SLOWEST_MIB: u64 = 32;
const SETTLE_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The state of devices is read, memory is only mapped.
const LOAD_LIMIT: Duration = Duration::from_secs(12);
/// Devices are made and the kernel is copied into the guest's memory.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firecracker {
    /// Firecracker itself, statically linked.
    pub program: PathBuf,
    /// The jailer of the same release.
    pub jailer: PathBuf,
}

/// Refuses to write a memory that cannot be written within a time: the process would write on, and hear nothing until then.
pub(crate) fn can_write(memory_mib: u64, within: Duration) -> Result<(), DriverError> {
    if memory_mib <= within.as_secs().saturating_mul(RATE_MIB) {
        return Ok(());
    }
    Err(DriverError::Unsupported { what: "writing so large a memory with Firecracker in the time there is" })
}

/// The control of a process that runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Control {
    jail: Inhabited,
}

impl Control {
    pub(crate) fn of(process: Recorded) -> Self {
        Self { jail: Inhabited(process) }
    }

    async fn connect(self) -> Result<Rest, DriverError> {
        let stream = self.jail.connect(CONTROL_SOCKET).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => DriverError::Gone,
            _ => DriverError::io("connect to Firecracker")(error),
        })?;
        Rest::over(stream).await
    }

    /// Returns when the process answers for the first time.
    pub(crate) async fn wait(self) -> Result<(), DriverError> {
        let appearing = async {
            loop {
                match self.connect().await {
                    Err(DriverError::Gone) if self.jail.owner().is_ok() => {
                        tokio::time::sleep(APPEAR_POLL).await;
                    }
                    connected => return connected?.state().await.map(drop),
                }
            }
        };
        limited("starting Firecracker", APPEAR_LIMIT, appearing).await
    }

    /// Makes the machine and starts it.
    async fn boot(self, spec: &MachineSpec, tap: &str, console: &str) -> Result<(), DriverError> {
        let mut rest = self.connect().await?;
        for (path, body) in describe::machine(spec, tap, console) {
            rest.put(path, &body, rest::ANSWER_LIMIT).await?;
        }
        let (path, body) = describe::start();
        rest.put(path, &body, START_LIMIT).await
    }

    /// Continues the checkpoint that is in the jail; frozen afterwards.
    async fn load(self, tap: &str) -> Result<(), DriverError> {
        let (path, body) = describe::load(tap);
        self.connect().await?.put(path, &body, LOAD_LIMIT).await
    }

    pub(crate) async fn set_running(self, running: bool) -> Result<(), DriverError> {
        self.connect().await?.set_running(running).await
    }

    pub(crate) async fn is_running(self) -> Result<bool, DriverError> {
        Ok(self.connect().await?.state().await? == "Running")
    }

    /// Finds a machine that a former server left; it may have been about to write it.
    pub(crate) async fn settle(self, memory_mib: u64) -> Result<(), DriverError> {
        let jail = self.jail;
        // Answered only after what is under way.
        let limit = rest::ANSWER_LIMIT + Duration::from_secs(memory_mib / SLOWEST_MIB).min(SETTLE_LIMIT);
        if self.connect().await?.state_within(limit).await? == "Not started" {
            return Err(DriverError::Gone);
        }
        [STATE_OUT, MEMORY_OUT]
            .into_iter()
            .try_for_each(|place| jail.take_back(place))
            .map_err(DriverError::io("close a checkpoint"))
    }

    /// Freezes the machine and writes it into a directory, in which the file of its state is.
    pub(crate) async fn save(
        self,
        to: &Path,
        state: File,
        limit: Duration,
    ) -> Result<Vec<File>, DriverError> {
        let files = self.lend(to, state).map_err(DriverError::io("make the checkpoint"))?;
        let (path, body) = describe::save();
        let saving = async {
            let mut rest = self.connect().await?;
            rest.set_running(false).await?;
            rest.put(path, &body, limit).await
        };
        let saved = saving.await;
        let files = files.take_back().map_err(DriverError::io("close the checkpoint"));
        saved.and(files)
    }

    /// Makes the file of the memory beside that of the state, and lets the process write into them, whatever file system they are on.
    fn lend(self, to: &Path, state: File) -> io::Result<Lent> {
        let owner = self.jail.owner()?;
        let mut lent = Lent { jail: self.jail, files: Vec::new() };
        let memory = File::options().write(true).create_new(true).mode(0o600).open(to.join(MEMORY))?;
        for (file, place) in [(state, STATE_OUT), (memory, MEMORY_OUT)] {
            fchown(&file, Some(owner), Some(owner))?;
            // Of one that was cut off.
            self.jail.take_back(place)?;
            self.jail.lend(&file, place)?;
            lent.files.push((file, place));
        }
        Ok(lent)
    }
}

/// The files of a checkpoint that is being written.
struct Lent {
    jail: Inhabited,
    files: Vec<(File, &'static str)>,
}

impl Lent {
    /// What was written is nobody's to change any more.
    fn take_back(mut self) -> io::Result<Vec<File>> {
        let files = std::mem::take(&mut self.files);
        for (file, place) in &files {
            self.jail.take_back(place)?;
            fchown(file, Some(0), Some(0))?;
            // Read by processes with other ids, to whom it is lent; its directory is closed.
            file.set_permissions(Permissions::from_mode(0o444))?;
        }
        Ok(files.into_iter().map(|(file, _)| file).collect())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        for (_, place) in &self.files {
            let _the_process_may_be_gone = self.jail.take_back(place);
        }
    }
}
