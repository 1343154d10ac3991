//! The engine of virtual machines: one machine is one QEMU process with a kernel of its own inside. The guest's kernel and an
//! initial file system with the agent are handed in, two disks (the template's, read-only, and the sandbox's own), one tap
//! device, and one virtual serial port over which all streams to the agent go.
//!
//! ```text
//! us ─ QMP ─ control.sock ─┐
//! us ─ HTTP/2 ─ agent.sock ┴ QEMU (own uid, own empty network namespace, seccomp) ─ guest kernel ─ agent
//! ```
//!
//! What must never happen here: the host mounts or parses what the guest wrote, waits for the guest without a limit, or
//! lets the process open anything by its path.

#[cfg(test)]
extern crate self as driver_vm;
/// What tests with real machines share.
#[cfg(test)]
#[path = "../tests/bed/mod.rs"]
#[expect(dead_code, reason = "the rest is for tests of QEMU")]
mod bed;
mod cgroup;
mod checkpoint;
mod command;
mod cpio;
mod files;
mod firecracker;
mod host_dir;
mod kernel;
mod machine;
mod model;
mod qmp;
mod sys;
mod vmlinux;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::SandboxId;
use driver::{Driver, DriverError, Engine, Handles, Machine, MachineSpec, Promises, Root, process};
use driver_port::Secret;
use tokio::sync::OnceCell;

pub use command::Acceleration;
pub use firecracker::Firecracker;
pub use kernel::Kernel;
use wire::agent::vm::{Identity, SEED_BYTES};

use cgroup::Bounds;
use checkpoint::Checkpoint;
use command::Descriptors;
use host_dir::{HostDir, Recorded, Socket};
use kernel::Boot;
use machine::VmMachine;

/// Under emulation a boot takes 4 to 6 s, on a busy host several times that. Callers give up by then (`lifecycle`).
const BOOT_LIMIT: Duration = Duration::from_secs(25);
/// What is kept of QEMU's and the kernel's words on a failure, bytes.
const DETAIL_BYTES: usize = 2_048;
/// Its event loops, and the workers that read and write disks (64 at most).
const QEMU_THREADS: u32 = 96;
/// What a checkpoint has besides the memory: what each page is called, and devices.
const CHECKPOINT_MIB: u64 = 256;
/// What a pipe holds.
const PIPE_BYTES: u64 = 64 * 1024;
/// Ids that guests' files and processes have; those of machines come after them.
const MAPPED_IDS: u32 = 65_536;

/// What the driver needs to know about its host.
#[derive(Debug, Clone)]
pub struct VmConfig {
    /// QEMU's executable.
    pub qemu: PathBuf,
    /// What guests boot; without it machines can only be found and removed.
    pub kernel: Option<Kernel>,
    /// Copies of the kernel and initial file systems; readable for everybody, also the way to it.
    pub boot_dir: PathBuf,
    /// Who runs the guests' instructions.
    pub acceleration: Acceleration,
}

/// The same, for an engine that runs them with Firecracker.
#[derive(Debug, Clone)]
pub struct FirecrackerConfig {
    /// The programs.
    pub programs: Firecracker,
    /// What guests boot; without it machines can only be found and removed.
    pub kernel: Option<Kernel>,
    /// Copies of the kernel and initial file systems; not to be shared with another engine.
    pub boot_dir: PathBuf,
}

/// What runs the machines.
#[derive(Debug)]
enum Vmm {
    Qemu { program: PathBuf, acceleration: Acceleration },
    Firecracker(Firecracker),
}

/// The engine of virtual machines.
#[derive(Debug)]
pub struct VmDriver {
    vmm: Vmm,
    /// What QEMU emulates, once it was asked.
    model: OnceCell<String>,
    boot: Option<Boot>,
    secret: Secret,
    /// All handles of a machine are one: QEMU takes one connection at a time.
    handles: Handles<VmMachine>,
}

impl VmDriver {
    /// Checks the host and makes what all machines share.
    ///
    /// # Errors
    /// `Io` says what is wrong with the kernel or the directory.
    pub fn new(config: &VmConfig) -> Result<Self, DriverError> {
        let boot = config
            .kernel
            .as_ref()
            .map(|kernel| Boot::prepare(kernel, &config.boot_dir, &kernel::MODULES, Ok));
        let boot = boot.transpose()?;
        // Machines that are only removed are not called.
        let secret = if boot.is_some() { Secret::of(&config.boot_dir) } else { Secret::passing() };
        Ok(Self {
            vmm: Vmm::Qemu { program: config.qemu.clone(), acceleration: config.acceleration },
            model: OnceCell::new(),
            boot,
            secret: secret.map_err(DriverError::io("keep the secret of virtual machines"))?,
            handles: Handles::default(),
        })
    }

    /// The same with Firecracker.
    ///
    /// # Errors
    /// `Io` says what is wrong with the kernel or the directory.
    pub fn firecracker(config: &FirecrackerConfig) -> Result<Self, DriverError> {
        let boot = config.kernel.as_ref().map(|kernel| {
            Boot::prepare(kernel, &config.boot_dir, &firecracker::MODULES, vmlinux::from_image)
        });
        Ok(Self {
            vmm: Vmm::Firecracker(config.programs.clone()),
            model: OnceCell::new(),
            boot: boot.transpose()?,
            // Its guests are called where nobody else is heard.
            secret: Secret::passing().map_err(DriverError::io("make random numbers"))?,
            handles: Handles::default(),
        })
    }

    /// The one handle of the machine that is recorded now.
    fn handle(&self, id: SandboxId, run_dir: &Path) -> Result<Option<Arc<VmMachine>>, DriverError> {
        self.handles.get(id, VmMachine::is_recorded, || {
            let mark = matches!(self.vmm, Vmm::Qemu { .. }).then(|| self.secret.mark(id));
            VmMachine::find(id, run_dir, mark)
        })
    }

    /// Boots a machine, or continues it from a checkpoint; of a failed start nothing is left.
    async fn start(&self, spec: &MachineSpec, from: Option<&Path>) -> Result<Arc<dyn Machine>, DriverError> {
        let mut words = Words::default();
        let started = match &self.vmm {
            Vmm::Qemu { program, acceleration } => {
                self.start_qemu((program, *acceleration), spec, from, &mut words).await
            }
            Vmm::Firecracker(programs) => self.start_firecracker(programs, spec, from, &mut words).await,
        };
        let error = match started {
            Ok(machine) => return Ok(machine),
            Err(error) => words.explain(error),
        };
        if let Err(left) = self.purge(spec.id, &spec.run_dir).await {
            tracing::warn!(sandbox = %spec.id, error = %left, "cannot remove a failed start");
        }
        Err(error)
    }

    async fn start_qemu(
        &self,
        (qemu, acceleration): (&Path, Acceleration),
        spec: &MachineSpec,
        from: Option<&Path>,
        words: &mut Words,
    ) -> Result<Arc<VmMachine>, DriverError> {
        let model = match from {
            Some(from) => {
                model::fits(from, acceleration)?;
                model::read(from)?
            }
            None => self.model.get_or_try_init(|| model::of(qemu)).await?.clone(),
        };
        let from = from.map(Checkpoint::open).transpose()?;
        let machine = self.launch((qemu, acceleration, &model), spec, from.is_some(), words).await?;
        let Some(Checkpoint { state, of, .. }) = from else {
            machine.wait_ready(BOOT_LIMIT).await?;
            return Ok(machine);
        };
        machine.load(&state).await?;
        self.rename(&machine, spec, of)?;
        Ok(machine)
    }

    /// A machine whose memory is another's is told who it is before it does anything.
    fn rename(
        &self,
        machine: &VmMachine,
        spec: &MachineSpec,
        of: Option<SandboxId>,
    ) -> Result<(), DriverError> {
        if let Some(other) = of.filter(|of| *of != spec.id) {
            machine.continues(self.secret.mark(other), self.identity(spec)?);
        }
        Ok(())
    }

    fn identity(&self, spec: &MachineSpec) -> Result<Identity, DriverError> {
        let mut seed = [0; SEED_BYTES];
        getrandom::fill(&mut seed)
            .map_err(|error| DriverError::io("make random numbers")(io::Error::other(error)))?;
        Ok(Identity {
            address: spec.link.guest,
            gateway: spec.link.gateway,
            hostname: spec.hostname.clone(),
            mark: self.secret.mark(spec.id),
            seed,
        })
    }

    /// Starts the process; returns when it takes commands.
    async fn launch(
        &self,
        (qemu, acceleration, model): (&Path, Acceleration, &str),
        spec: &MachineSpec,
        restore: bool,
        words: &mut Words,
    ) -> Result<Arc<VmMachine>, DriverError> {
        let qemu = process::find(qemu)?;
        let host = HostDir::create(&spec.run_dir)?;
        model::write(host.path(), model, acceleration)
            .map_err(DriverError::io("record which machine it is"))?;
        let opened = self.open(spec, &host)?;
        let said = words.listen().map_err(DriverError::io("make a pipe"))?;
        let mut command = tokio::process::Command::new(&qemu);
        command
            .args(command::arguments(spec, (acceleration, model), &opened.numbers(), restore))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(said.try_clone().map_err(DriverError::io("make a pipe"))?)
            .stderr(said);
        let group = match acceleration {
            Acceleration::Emulated => None,
            Acceleration::Kvm => {
                Some(std::fs::metadata("/dev/kvm").map_err(DriverError::io("look at /dev/kvm"))?.gid())
            }
        };
        let bounds = Bounds {
            memory_mib: command::memory_mib(spec) + command::overhead_mib(acceleration),
            vcpu: spec.limits.vcpu,
            pids: spec.limits.vcpu + QEMU_THREADS,
        };
        let cgroup = cgroup::make(spec.id, bounds).map_err(DriverError::io("make the machine's cgroup"))?;
        let become_what =
            sys::Process { owner: owner(spec), group, largest_file: largest_file(spec)?, cgroup };
        sys::become_machine(&mut command, become_what, opened.all());
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DriverError::Missing { program: qemu.display().to_string() },
            _ => DriverError::io("start QEMU")(error),
        })?;
        drop((opened, command));
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let start = process::start_of(pid).unwrap_or_default();
        host.record(Recorded { pid, start }).map_err(DriverError::io("record the machine's process"))?;
        let machine = self.handle(spec.id, &spec.run_dir)?.ok_or(DriverError::Gone)?;
        machine.wait_control().await?;
        Ok(machine)
    }

    /// What a machine is made of, checked.
    fn parts<'a>(&'a self, spec: &'a MachineSpec) -> Result<Parts<'a>, DriverError> {
        let refused = |detail: &str| DriverError::Engine {
            what: "describing the virtual machine",
            detail: detail.to_owned(),
        };
        let Root::Disks { base, own } = &spec.root else { return Err(refused("its root must be two disks")) };
        let Some(tap) = &spec.link.tap else { return Err(refused("its link must be a tap device")) };
        // It becomes a word of the kernel's command line.
        if spec.hostname.is_empty() || !spec.hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        {
            return Err(refused("its host name must be letters, digits and hyphens"));
        }
        let boot = self
            .boot
            .as_ref()
            .ok_or_else(|| DriverError::Missing { program: "a guest kernel".to_owned() })?;
        let initial = boot.initial(&spec.agent).map_err(DriverError::io("make the initial file system"))?;
        let own = files::open(own, true).map_err(DriverError::io("open the machine's disk"))?;
        std::os::unix::fs::fchown(&own, Some(owner(spec)), Some(owner(spec)))
            .map_err(DriverError::io("give the machine its disk"))?;
        let base = files::open(base, false).map_err(DriverError::io("open the template's disk"))?;
        let file = |path: &Path| File::open(path).map_err(DriverError::io("open what the machine boots"));
        Ok(Parts { kernel: file(&boot.image)?, initial: file(&initial)?, base, own, tap })
    }

    fn open(&self, spec: &MachineSpec, host: &HostDir) -> Result<Opened, DriverError> {
        let Parts { kernel, initial, base, own, tap } = self.parts(spec)?;
        let listen = |which| host.listen(which).map_err(DriverError::io("listen for the machine"));
        Ok(Opened {
            kernel: kernel.into(),
            initial: initial.into(),
            base: base.into(),
            own: own.into(),
            tap: sys::open_tap(&spec.link.netns, tap).map_err(DriverError::io("open the machine's link"))?,
            agent: listen(Socket::Agent)?.into(),
            control: listen(Socket::Control)?.into(),
        })
    }
}

/// The files and the link of a machine.
struct Parts<'a> {
    kernel: File,
    initial: File,
    base: File,
    own: File,
    tap: &'a str,
}

/// Who a machine's process is: an id of its own among those that run, told apart by its address.
fn owner(spec: &MachineSpec) -> u32 {
    spec.id_shift + MAPPED_IDS + (u32::from(spec.link.guest) & 0xffff)
}

/// A machine's process writes its disk and its checkpoints, and nothing larger.
fn largest_file(spec: &MachineSpec) -> Result<u64, DriverError> {
    let Root::Disks { own, .. } = &spec.root else {
        return Err(DriverError::Unsupported { what: "a root that is no disks" });
    };
    let disk = std::fs::metadata(own).map_err(DriverError::io("look at the machine's disk"))?.len();
    Ok(disk.max((u64::from(command::memory_mib(spec)) + CHECKPOINT_MIB) * 1024 * 1024))
}

/// What QEMU and the guest's kernel print until a start has succeeded or failed. Afterwards nobody reads it, which both mind
/// as little as any daemon.
#[derive(Debug, Default)]
struct Words(Option<File>);

impl Words {
    /// The other end.
    fn listen(&mut self) -> io::Result<OwnedFd> {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        self.0 = Some(File::from(read));
        Ok(write)
    }

    /// Adds the last of them to a failure.
    fn explain(self, error: DriverError) -> DriverError {
        let mut text = Vec::new();
        // Ends where there is nothing more at the moment.
        let _for_now = self.0.map(|pipe| pipe.take(PIPE_BYTES).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(DETAIL_BYTES)..]).into_owned();
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.trim().is_empty() {
            return error;
        }
        // To callers it is another matter: they try again.
        if matches!(error, DriverError::Timeout { .. }) {
            tracing::warn!(%error, said = text.trim(), "a start took too long");
            return error;
        }
        let detail = format!("{error}; it said: {}", text.trim());
        DriverError::Engine { what: "starting the virtual machine", detail }
    }
}

/// What QEMU inherits.
struct Opened {
    kernel: OwnedFd,
    initial: OwnedFd,
    base: OwnedFd,
    own: OwnedFd,
    tap: OwnedFd,
    agent: OwnedFd,
    control: OwnedFd,
}

impl Opened {
    fn numbers(&self) -> Descriptors {
        Descriptors {
            kernel: self.kernel.as_raw_fd(),
            initial: self.initial.as_raw_fd(),
            base: self.base.as_raw_fd(),
            own: self.own.as_raw_fd(),
            tap: self.tap.as_raw_fd(),
            agent: self.agent.as_raw_fd(),
            control: self.control.as_raw_fd(),
        }
    }

    fn all(&self) -> Vec<i32> {
        [&self.kernel, &self.initial, &self.base, &self.own, &self.tap, &self.agent, &self.control]
            .map(AsRawFd::as_raw_fd)
            .to_vec()
    }
}

#[async_trait]
impl Driver for VmDriver {
    fn promises(&self) -> Promises {
        Promises {
            engine: match self.vmm {
                Vmm::Qemu { .. } => Engine::Qemu,
                Vmm::Firecracker(_) => Engine::Firecracker,
            },
            mounts_disks: true,
            ports_by_agent: true,
            checkpoint_keeps_memory: true,
        }
    }

    fn vintage(&self, agent: &Path) -> Option<String> {
        let (program, how) = match &self.vmm {
            Vmm::Qemu { program, acceleration } => (program, format!("qemu {acceleration:?}")),
            Vmm::Firecracker(programs) => (&programs.program, "firecracker".to_owned()),
        };
        let program = kernel::stamp(&process::find(program).ok()?).ok()?;
        let boot = self.boot.as_ref()?;
        let initial = boot.initial(agent).ok()?;
        let host = kernel::processor();
        Some(format!("{how} {program} {host} {} {}", boot.image.display(), initial.display()))
    }

    fn serves_others(&self, checkpoint: &Path) -> Result<(), DriverError> {
        Checkpoint::open(checkpoint)?.for_others()
    }

    async fn create(&self, spec: &MachineSpec) -> Result<Arc<dyn Machine>, DriverError> {
        self.start(spec, None).await
    }

    async fn restore(&self, spec: &MachineSpec, from: &Path) -> Result<Arc<dyn Machine>, DriverError> {
        if Checkpoint::open(from)?.of.is_some_and(|of| of != spec.id) {
            self.serves_others(from)?;
        }
        self.start(spec, Some(from)).await
    }

    async fn recover(&self, spec: &MachineSpec) -> Result<Option<Arc<dyn Machine>>, DriverError> {
        match self.handle(spec.id, &spec.run_dir)? {
            Some(machine) => {
                // A server that ended during a start may have left the device where it visited.
                if matches!(self.vmm, Vmm::Firecracker(_)) && !firecracker::is_home(&spec.link)? {
                    machine.destroy().await?;
                    return Ok(None);
                }
                match machine.settle().await.map_err(|error| machine.or_gone(error)) {
                    // A process that never became a machine.
                    Err(DriverError::Gone) => {
                        machine.destroy().await?;
                        Ok(None)
                    }
                    settled => settled.map(|()| Some(machine as Arc<dyn Machine>)),
                }
            }
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
        // One whose number was not recorded any more.
        for name in [command::name(id), command::jailed_name(id)] {
            let killed = process::kill_with_argument(Path::new(&name))
                .map_err(DriverError::io("end a start that was under way"))?;
            for ended in killed {
                machine::wait_ended(ended).await?;
            }
        }
        machine::sweep(id, run_dir).await
    }
}
