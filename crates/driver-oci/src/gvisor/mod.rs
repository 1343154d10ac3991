//! The engine of gVisor: one machine is one sandbox of `runsc`. Its kernel, the *sentry*, is a process of the host's as `nobody`
//! (which all sentries share, each in a user namespace and a root of its own) with a system call filter; what it wants of files it asks of a second process, the *gofer*, which sees the
//! sandbox's root and nothing else. The root is a host's tree as with containers, so disks and layers of both are of one kind.
//!
//! ```text
//! <run_dir>/host/            0700, the host's alone
//!     agent.in, agent.out    named pipes: the agent's standard input and output (`driver_port`)
//!     bundle/config.json
//!     runsc/                 the runtime's own record
//!     process.json           the sentry's process id, its start time and its release
//!     held                   there while the kernel holds its tasks (`machine`)
//!     proc                   mounted in the runtime's own mount namespace only
//! ```
//!
//! Why pipes: the sentry takes no descriptors but the three standard ones, a guest cannot connect to a socket of the host's,
//! and one end of a socket pair would have to be kept by a process that outlives the server. A pipe that the guest's side holds
//! open in both directions is kept by nobody, and after a checkpoint a new pair takes its place.

mod bundle;
mod gofer;
mod machine;
mod platform;
mod runsc;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::SandboxId;
use driver::{Driver, DriverError, Engine, Handles, Machine, MachineLimits, MachineSpec, Promises, process};
use driver_port::{Pipes, Secret};
use tokio::sync::OnceCell;

use crate::cgroup::Cgroups;
use crate::machine::{HostDir, sweep};
use crate::{spec, sys};
use machine::SentryMachine;
use platform::Platform;
use runsc::Runsc;

/// A sentry answers within half a second, on a busy host later.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// What sentry and gofer need beside the workload's memory, MiB: some 40 when idle; each open file, mapping and connection of the
/// workload takes more.
const SENTRY_MEMORY_MIB: u32 = 192;
/// Each thread of the workload has one of the host's, and the sentry has its own.
const TASKS_PER_THREAD: u32 = 2;
const SENTRY_TASKS: u32 = 512;
/// How long the sentry remembers a connection that its side has closed (RFC 9293's TIME-WAIT, 60 s there), and a margin.
const LINGERING: Duration = Duration::from_secs(65);

/// What the driver needs to know about its host.
#[derive(Debug, Clone)]
pub struct GvisorConfig {
    /// The runtime's executable.
    pub runtime: PathBuf,
    /// Names this server's cgroups; two servers on one host need two names. Letters, digits and hyphens.
    pub instance: String,
    /// What is kept: the secret of calls and which platform has proved itself.
    pub dir: PathBuf,
    /// Guest id 0 is this id outside.
    pub id_shift: u32,
}

/// The engine of gVisor.
#[derive(Debug)]
pub struct GvisorDriver {
    runsc: PathBuf,
    dir: PathBuf,
    null: PathBuf,
    platform: OnceCell<Platform>,
    cgroups: Arc<Cgroups>,
    secret: Secret,
    /// All handles of a machine are one: its pipes have one reader.
    handles: Handles<SentryMachine>,
}

impl GvisorDriver {
    /// Checks the host and makes what all machines share.
    ///
    /// # Errors
    /// [`DriverError::Missing`] names a program to install; `Io` a directory or cgroup that cannot be used.
    pub fn new(config: &GvisorConfig) -> Result<Self, DriverError> {
        Self::with(process::find(&config.runtime)?, config)
    }

    /// Finds and removes machines, for which the runtime is not needed.
    ///
    /// # Errors
    /// A directory or cgroup that cannot be used.
    pub fn removing(config: &GvisorConfig) -> Result<Self, DriverError> {
        Self::with(config.runtime.clone(), config)
    }

    fn with(runsc: PathBuf, config: &GvisorConfig) -> Result<Self, DriverError> {
        let guests = config.id_shift..config.id_shift.saturating_add(spec::MAPPED_IDS);
        let cgroups = Cgroups::open(&config.instance, guests).map_err(DriverError::io("use cgroups"))?;
        std::fs::create_dir_all(&config.dir).map_err(DriverError::io("make gVisor's directory"))?;
        // One that hangs takes a processor for itself until somebody ends it.
        platform::sweep(&config.dir).map_err(DriverError::io("remove a former trial of gVisor"))?;
        const NULL: (u32, u32) = (1, 3);
        let null = crate::node(&config.dir, "null", NULL, 0)
            .map_err(DriverError::io("make gVisor's null device"))?;
        let secret = Secret::of(&config.dir).map_err(DriverError::io("keep gVisor's secret"))?;
        Ok(Self {
            runsc,
            dir: config.dir.clone(),
            null,
            platform: OnceCell::new(),
            cgroups: Arc::new(cgroups),
            secret,
            handles: Handles::default(),
        })
    }

    /// The one handle of the machine that is recorded now.
    fn handle(&self, id: SandboxId, run_dir: &Path) -> Result<Option<Arc<SentryMachine>>, DriverError> {
        self.handles.get(id, SentryMachine::is_recorded, || {
            let (runsc, cgroups) = (self.runsc.clone(), Arc::clone(&self.cgroups));
            SentryMachine::find(id, run_dir, runsc, self.secret.mark(id), cgroups)
        })
    }

    async fn platform(&self, agent: &Path) -> Result<Platform, DriverError> {
        let proven = || platform::proven(&self.runsc, &self.dir, &self.null, agent);
        self.platform.get_or_try_init(proven).await.copied()
    }

    /// Boots a machine, or continues it from a checkpoint; of a failed start nothing is left.
    async fn start(&self, spec: &MachineSpec, from: Option<&Path>) -> Result<Arc<dyn Machine>, DriverError> {
        let error = match self.launch(spec, from).await {
            Ok(machine) => return Ok(machine),
            Err(error) => error,
        };
        if let Err(left) = self.purge(spec.id, &spec.run_dir).await {
            tracing::warn!(sandbox = %spec.id, error = %left, "cannot remove a failed start");
        }
        Err(error)
    }

    async fn launch(
        &self,
        spec: &MachineSpec,
        from: Option<&Path>,
    ) -> Result<Arc<SentryMachine>, DriverError> {
        let platform = self.platform(&spec.agent).await?;
        let release = runsc::release(&self.runsc).await?;
        if let Some(checkpoint) = from {
            machine::check_release(checkpoint, &release)?;
        }
        let host = HostDir::create(&spec.run_dir)?;
        let limits = MachineLimits {
            memory_mib: spec.limits.memory_mib.saturating_add(SENTRY_MEMORY_MIB),
            pids: spec.limits.pids.saturating_mul(TASKS_PER_THREAD).saturating_add(SENTRY_TASKS),
            ..spec.limits
        };
        // The sentry's tasks are in the outer one: nothing in there is moved.
        drop(self.cgroups.prepare(spec.id, &limits).map_err(DriverError::io("make the machine's cgroups"))?);
        // A restore brings back all that the sentry had for itself, before anybody can make room for it.
        let memory_mib = if from.is_some() { limits.memory_mib } else { spec.limits.memory_mib };
        host.write_bundle(&bundle::bundle(spec, memory_mib, &self.cgroups.agent_path(spec.id))?)?;
        let side = Pipes::below(host.by_descriptor()).create().map_err(DriverError::io("make the pipes"))?;
        let namespaces = sys::Namespaces::of_runtime(&host.proc(), &spec.link.netns)
            .map_err(DriverError::io("prepare the runtime's namespaces"))?;
        let runsc = Runsc::new(&self.runsc, &host.sentry_root());
        let pid = runsc
            .start(spec.id, &host, platform, from, (side, runsc::nothing(&self.null)?), namespaces)
            .await?;
        machine::record(&host, pid, &release)?;
        self.cgroups.settle_sentry(spec.id, pid).map_err(DriverError::io("limit the machine"))?;
        let machine = self.handle(spec.id, &spec.run_dir)?.ok_or(DriverError::Gone)?;
        match from {
            // It must not run before the checkpoint is given up.
            Some(_) => machine.freeze().await?,
            None => machine.wait_ready(READY_LIMIT).await?,
        }
        Ok(machine)
    }
}

#[async_trait]
impl Driver for GvisorDriver {
    fn promises(&self) -> Promises {
        Promises {
            engine: Engine::Gvisor,
            mounts_disks: false,
            ports_by_agent: true,
            checkpoint_keeps_memory: true,
        }
    }

    fn quiet_before_checkpoint(&self) -> Option<Duration> {
        Some(LINGERING)
    }

    async fn check_restore(&self, spec: &MachineSpec, from: &Path) -> Result<(), DriverError> {
        self.platform(&spec.agent).await?;
        machine::check_release(from, &runsc::release(&self.runsc).await?)
    }

    async fn create(&self, spec: &MachineSpec) -> Result<Arc<dyn Machine>, DriverError> {
        self.start(spec, None).await
    }

    async fn restore(&self, spec: &MachineSpec, from: &Path) -> Result<Arc<dyn Machine>, DriverError> {
        self.start(spec, Some(from)).await
    }

    async fn recover(&self, spec: &MachineSpec) -> Result<Option<Arc<dyn Machine>>, DriverError> {
        match self.handle(spec.id, &spec.run_dir)? {
            Some(machine) => Ok(Some(machine)),
            None => {
                self.purge(spec.id, &spec.run_dir).await?;
                Ok(None)
            }
        }
    }

    async fn purge(&self, id: SandboxId, run_dir: &Path) -> Result<(), DriverError> {
        if let Some(machine) = self.handle(id, run_dir)? {
            return machine.destroy().await;
        }
        // Starts under way, and sentries that were not recorded any more.
        if let Some(host) = HostDir::find(run_dir)? {
            process::kill_with_argument(Path::new(&runsc::root_argument(&host.sentry_root())))
                .map_err(DriverError::io("end a start that was under way"))?;
        }
        sweep(id, run_dir, &self.cgroups).await
    }
}
