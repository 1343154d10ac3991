//! The engines over an OCI runtime: containers, here, and gVisor (`gvisor`).
//!
//! The container engine: one machine is one container of an OCI runtime, `runc` as tested. A bundle says what the guest
//! may do (`spec`, `seccomp`), a pair of cgroups what it may use (`cgroup`), and the runtime is started once per machine;
//! freezing, killing and finding again go straight to the kernel.
//!
//! What must never happen here: a descriptor, a path or a name that the guest chose is followed on the host. The
//! agent's socket is made and listened on by the host and only handed in; no directory is shared with the guest.
//!
//! ```text
//! <run_dir>/host/            0700, the host's alone
//!     agent.sock             listened on by the agent (inherited descriptor), connected to by us
//!     bundle/config.json
//!     runc/<id>/state.json   the runtime's own record: process id and its start time
//! ```

mod cgroup;
mod fuse;
mod gvisor;
mod machine;
mod runtime;
mod seccomp;
mod spec;
mod sys;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use domain::SandboxId;
use driver::{Driver, DriverError, Engine, Machine, MachineSpec, Promises};
use rustix::fs::{Dev, FileType, Mode, StatVfsMountFlags};

pub use gvisor::{GvisorConfig, GvisorDriver};

use cgroup::Cgroups;
use machine::OciMachine;

/// What the driver needs to know about its host.
#[derive(Debug, Clone)]
pub struct OciConfig {
    /// The runtime's executable.
    pub runtime: PathBuf,
    /// Names this server's cgroups; two servers on one host need two names. Letters, digits and hyphens.
    pub instance: String,
    /// Where device nodes for guests are made; must not lie on a file system mounted `nodev`.
    pub device_dir: PathBuf,
    /// Guest id 0 is this id outside; owns the device nodes.
    pub id_shift: u32,
}

/// The container engine.
#[derive(Debug)]
pub struct OciDriver {
    runtime: PathBuf,
    cgroups: Arc<Cgroups>,
    fuse: PathBuf,
    /// Keeps the numbers that the agent's descriptors get in the runtime's process from being anything else in ours, so
    /// that placing them there overwrites nothing the standard library opened for starting it.
    _reserved: Vec<OwnedFd>,
}

impl OciDriver {
    /// Checks the host and makes what all machines share.
    ///
    /// # Errors
    /// [`DriverError::Missing`] names a program to install; `Io` a directory or cgroup that cannot be used.
    pub fn new(config: &OciConfig) -> Result<Self, DriverError> {
        let runtime = driver::process::find(&config.runtime)?;
        let guests = config.id_shift..config.id_shift.saturating_add(spec::MAPPED_IDS);
        let cgroups = Cgroups::open(&config.instance, guests).map_err(DriverError::io("use cgroups"))?;
        let cgroups = Arc::new(cgroups);
        let fuse = fuse_node(&config.device_dir, config.id_shift)
            .map_err(DriverError::io("make the guests' /dev/fuse"))?;
        let reserved =
            sys::reserve_low_descriptors().map_err(DriverError::io("reserve descriptor numbers"))?;
        Ok(Self { runtime, cgroups, fuse, _reserved: reserved })
    }
}

/// A node for `/dev/fuse` that the guest's root may open: the host's own belongs to an id the guest does not have.
fn fuse_node(dir: &Path, owner: u32) -> std::io::Result<PathBuf> {
    const FUSE: (u32, u32) = (10, 229);
    node(dir, "fuse", FUSE, owner)
}

/// A device node of the platform's own, for everybody.
fn node(dir: &Path, name: &str, number: (u32, u32), owner: u32) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    if rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NODEV) {
        return Err(std::io::Error::other(format!("{} is on a file system mounted nodev", dir.display())));
    }
    let path = dir.join(name);
    let node = CString::new(path.as_os_str().as_bytes())?;
    let mode = Mode::from_raw_mode(0o666);
    let device = rustix::fs::makedev(number.0, number.1) as Dev;
    match rustix::fs::mknodat(rustix::fs::CWD, &node, FileType::CharacterDevice, mode, device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::fs::chmod(&node, mode)?;
    std::os::unix::fs::chown(&path, Some(owner), Some(owner))?;
    Ok(path)
}

#[async_trait]
impl Driver for OciDriver {
    fn promises(&self) -> Promises {
        Promises {
            engine: Engine::Container,
            mounts_disks: false,
            ports_by_agent: false,
            checkpoint_keeps_memory: false,
        }
    }

    async fn create(&self, spec: &MachineSpec) -> Result<Arc<dyn Machine>, DriverError> {
        match self.start(spec).await {
            Ok(machine) => Ok(Arc::new(machine)),
            Err(error) => {
                if let Err(left) = self.purge(spec.id, &spec.run_dir).await {
                    tracing::warn!(sandbox = %spec.id, error = %left, "cannot remove a failed start");
                }
                Err(error)
            }
        }
    }

    async fn recover(&self, spec: &MachineSpec) -> Result<Option<Arc<dyn Machine>>, DriverError> {
        let found = OciMachine::find(spec.id, &spec.run_dir, Arc::clone(&self.cgroups))?;
        match found {
            Some(machine) => Ok(Some(Arc::new(machine))),
            None => {
                self.purge(spec.id, &spec.run_dir).await?;
                Ok(None)
            }
        }
    }

    async fn purge(&self, id: SandboxId, run_dir: &Path) -> Result<(), DriverError> {
        if let Some(machine) = OciMachine::find(id, run_dir, Arc::clone(&self.cgroups))? {
            return machine.destroy().await;
        }
        machine::end_starters(run_dir)?;
        // Found only now, if a start was just being finished.
        match OciMachine::find(id, run_dir, Arc::clone(&self.cgroups))? {
            Some(machine) => machine.destroy().await,
            None => machine::sweep(id, run_dir, &self.cgroups).await,
        }
    }
}

impl OciDriver {
    async fn start(&self, spec: &MachineSpec) -> Result<OciMachine, DriverError> {
        let host = machine::HostDir::create(&spec.run_dir)?;
        let listener = host.listen().map_err(DriverError::io("listen for the agent"))?;
        let mut inherited = vec![OwnedFd::from(listener)];
        inherited.extend(
            self.cgroups
                .prepare(spec.id, &spec.limits)
                .map_err(DriverError::io("make the machine's cgroups"))?,
        );
        let bundle = spec::bundle(
            spec,
            &spec::Host {
                cgroups_path: self.cgroups.agent_path(spec.id),
                fuse: self.fuse.clone(),
                inherited: inherited.len(),
            },
        )?;
        host.write_bundle(&bundle)?;
        let borrowed: Vec<_> = inherited.iter().map(AsFd::as_fd).collect();
        runtime::run(&self.runtime, spec.id, &host, &borrowed).await?;
        OciMachine::find(spec.id, &spec.run_dir, Arc::clone(&self.cgroups))?.ok_or(DriverError::Gone)
    }
}
