//! One virtual machine: its process, its control and its port.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::SandboxId;
use driver::{BoxStream, DriverError, Machine, Pack, PackStream, Power, Usage, process};
use driver_port::{Mark, Port, limited};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use wire::agent::vm::Identity;

use crate::cgroup;
use crate::checkpoint;
use crate::firecracker::{self, Control, Inhabited, Vsock};
use crate::host_dir::{HostDir, Recorded, Socket};
use crate::model;
use crate::qmp::Qmp;

/// A killed process gives back its memory first, gigabytes at worst.
const EXIT_LIMIT: Duration = Duration::from_secs(10);
/// A paused machine that cannot be written out within this stays in memory: callers give up soon after.
const SAVE_LIMIT: Duration = Duration::from_secs(9);
/// Whoever does not want a checkpoint any more only says so.
const UNWANTED_POLL: Duration = Duration::from_millis(100);
/// A checkpoint whose server is gone stops when it is told to, within a few writes.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
const CANCEL_POLL: Duration = Duration::from_millis(20);
/// Reading is as fast as writing; callers wait for it.
const LOAD_LIMIT: Duration = Duration::from_secs(12);
/// Names a descriptor inside QEMU.
const STATE: &str = "state";

/// A machine whose process was alive when it was looked at.
#[derive(Debug)]
pub(crate) struct VmMachine {
    id: SandboxId,
    run_dir: PathBuf,
    host: HostDir,
    process: Recorded,
    pidfd: OwnedFd,
    port: Port,
    /// How Firecracker is told what to do; `None` for QEMU.
    firecracker: Option<Control>,
    /// QEMU takes one connection at a time.
    control: Mutex<()>,
    /// Who it is to be when it runs, if its memory is another's. A machine that its server leaves like this is half a start.
    identity: std::sync::Mutex<Option<Identity>>,
    /// Firecracker, which answers nothing while it writes a memory, was told to stand still and not yet to go on.
    frozen: AtomicBool,
}

impl VmMachine {
    /// Finds the process that was recorded, if it still lives. Only QEMU's port has a mark.
    pub(crate) fn find(
        id: SandboxId,
        run_dir: &Path,
        mark: Option<Mark>,
    ) -> Result<Option<Self>, DriverError> {
        let Some(host) = HostDir::find(run_dir)? else { return Ok(None) };
        let Some(process) = host.recorded() else { return Ok(None) };
        let pidfd = process::open(process.pid, process.start)
            .map_err(DriverError::io("look for the machine's process"))?;
        Ok(pidfd.map(|pidfd| {
            let (port, firecracker) = match mark {
                Some(mark) => (Port::new(host.socket(Socket::Agent), mark), None),
                None => (Port::dialled(Vsock(Inhabited(process))), Some(Control::of(process))),
            };
            Self {
                id,
                run_dir: run_dir.to_owned(),
                host,
                process,
                pidfd,
                port,
                firecracker,
                control: Mutex::default(),
                identity: std::sync::Mutex::default(),
                frozen: AtomicBool::new(false),
            }
        }))
    }

    /// The control of a machine that Firecracker runs.
    pub(crate) fn firecracker(&self) -> Result<Control, DriverError> {
        self.firecracker
            .ok_or(DriverError::Unsupported { what: "Firecracker's control of another's machine" })
    }

    /// Whether this is the process that the record names now.
    pub(crate) fn is_recorded(&self) -> bool {
        self.host.recorded() == Some(self.process) && self.alive().is_ok()
    }

    /// Returns when the guest answers.
    pub(crate) async fn wait_ready(&self, limit: Duration) -> Result<(), DriverError> {
        let ended = driver::exited(self.exit_fd()?);
        tokio::select! {
            ready = self.port.ready(limit) => ready.map_err(|error| self.or_gone(error)),
            _ = ended => Err(DriverError::Gone),
        }
    }

    /// Returns when the process answers on its control.
    pub(crate) async fn wait_control(&self) -> Result<(), DriverError> {
        let _turn = self.control.lock().await;
        Qmp::connect(&self.host.socket(Socket::Control)).await.map(drop)
    }

    /// Takes the state out of a file into a process that waits for it; frozen afterwards.
    pub(crate) async fn load(&self, from: &File) -> Result<(), DriverError> {
        let _turn = self.control.lock().await;
        let mut qmp = Qmp::connect(&self.host.socket(Socket::Control)).await?;
        announce_migrations(&mut qmp).await?;
        qmp.ask_with("getfd", json!({"fdname": STATE}), Some(from.as_fd())).await?;
        qmp.ask("migrate-incoming", json!({"uri": format!("fd:{STATE}")})).await?;
        qmp.migrated(LOAD_LIMIT).await
    }

    /// Its memory is another machine's, which hears to `mark`.
    pub(crate) fn continues(&self, mark: Mark, identity: Identity) {
        self.port.change_mark(mark);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    fn pending(&self) -> Option<Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends a checkpoint that a former server began and nobody waits for.
    pub(crate) async fn settle(&self) -> Result<(), DriverError> {
        let _turn = self.control.lock().await;
        if let Some(control) = self.firecracker {
            return control.settle(self.host.memory()).await;
        }
        let mut qmp = Qmp::connect(&self.host.socket(Socket::Control)).await?;
        qmp.ask("migrate_cancel", json!({})).await?;
        let settling = async {
            loop {
                let state = qmp.ask("query-migrate", json!({})).await?;
                match state.get("status").and_then(Value::as_str) {
                    None | Some("none" | "completed" | "failed" | "cancelled") => return Ok(()),
                    Some(_) => tokio::time::sleep(CANCEL_POLL).await,
                }
            }
        };
        limited("ending a checkpoint", CANCEL_LIMIT, settling).await
    }

    /// Returns what is to be made safe from a loss of power.
    async fn save(&self, to: &Path, state: File, patience: &Patience<'_>) -> Result<Vec<File>, DriverError> {
        if let Some(control) = self.firecracker {
            let _turn = self.control.lock().await;
            return patience.of(control.save(to, state, patience.limit)).await;
        }
        // It says which machine it fits.
        let (model, acceleration) = (model::read(self.host.path())?, model::acceleration(self.host.path())?);
        let [model, acceleration] =
            model::write(to, &model, acceleration).map_err(DriverError::io("make the checkpoint"))?;
        self.save_qemu(&state, patience).await?;
        Ok(vec![state, model, acceleration])
    }

    async fn save_qemu(&self, to: &File, patience: &Patience<'_>) -> Result<(), DriverError> {
        let _turn = self.control.lock().await;
        let mut qmp = Qmp::connect(&self.host.socket(Socket::Control)).await?;
        let state = qmp.ask("query-status", json!({})).await?;
        // After one checkpoint it takes a start to write another; what runs is the guest's kernel, the workload stands still.
        if state.get("status").and_then(Value::as_str) == Some("postmigrate") {
            qmp.ask("cont", json!({})).await?;
        }
        qmp.ask("stop", json!({})).await?;
        announce_migrations(&mut qmp).await?;
        // Bytes a second: as fast as the disk is.
        qmp.ask("migrate-set-parameters", json!({"max-bandwidth": 1_u64 << 40})).await?;
        qmp.ask_with("getfd", json!({"fdname": STATE}), Some(to.as_fd())).await?;
        qmp.ask("migrate", json!({"uri": format!("fd:{STATE}")})).await?;
        let saved = patience.of(qmp.migrated(patience.limit)).await;
        if saved.is_err() {
            let _it_may_be_over = qmp.ask("migrate_cancel", json!({})).await;
        }
        saved
    }

    async fn tell(&self, command: &'static str) -> Result<Value, DriverError> {
        let _turn = self.control.lock().await;
        self.alive()?;
        Qmp::connect(&self.host.socket(Socket::Control)).await?.ask(command, json!({})).await
    }

    /// One thing after the other, and of a process that is gone only that.
    async fn turn<T>(&self, work: impl Future<Output = Result<T, DriverError>>) -> Result<T, DriverError> {
        let _turn = self.control.lock().await;
        self.alive()?;
        work.await.map_err(|error| self.or_gone(error))
    }

    /// Whether the workload stood still before the machine did: a later server may want to know.
    fn stood_still(&self) -> bool {
        self.host.path().join(checkpoint::STILL).exists()
    }

    fn mark_still(&self, still: bool) -> Result<(), DriverError> {
        let mark = self.host.path().join(checkpoint::STILL);
        let marked = if still { std::fs::write(mark, "") } else { std::fs::remove_file(mark) };
        match marked {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DriverError::io("record how the machine stands")(error))
            }
            _ => Ok(()),
        }
    }

    fn alive(&self) -> Result<(), DriverError> {
        process::start_of(self.process.pid)
            .filter(|start| *start == self.process.start)
            .map(drop)
            .ok_or(DriverError::Gone)
    }

    /// What failed because the machine has ended is that.
    pub(crate) fn or_gone(&self, error: DriverError) -> DriverError {
        if self.alive().is_err() { DriverError::Gone } else { error }
    }
}

/// For how long somebody waits for a checkpoint.
struct Patience<'a> {
    limit: Duration,
    unwanted: &'a AtomicBool,
}

impl Patience<'_> {
    /// Ends early when nobody waits any more.
    async fn of<T>(&self, work: impl Future<Output = Result<T, DriverError>>) -> Result<T, DriverError> {
        let unwanted = async {
            while !self.unwanted.load(Ordering::Relaxed) {
                tokio::time::sleep(UNWANTED_POLL).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = unwanted => Err(DriverError::Engine {
                what: "writing the checkpoint",
                detail: "nobody waits for it any more".to_owned(),
            }),
        }
    }
}

async fn announce_migrations(qmp: &mut Qmp) -> Result<(), DriverError> {
    let events = json!({"capabilities": [{"capability": "events", "state": true}]});
    qmp.ask("migrate-set-capabilities", events).await.map(drop)
}

#[async_trait]
impl Machine for VmMachine {
    async fn freeze(&self) -> Result<(), DriverError> {
        // Inside as well, so that whoever continues from here has the guest to itself first. A guest that does not hear of it
        // is stopped all the same, and hurts itself alone.
        if self.power().await? == Power::Running {
            self.mark_still(false)?;
            match self.port.be_still().await {
                Ok(()) => self.mark_still(true)?,
                Err(error) => {
                    tracing::debug!(sandbox = %self.id, %error, "a guest does not stand still by itself");
                }
            }
        }
        if let Some(control) = self.firecracker {
            if !self.frozen.load(Ordering::Relaxed) {
                self.turn(control.set_running(false)).await?;
                self.frozen.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        self.tell("stop").await.map(drop).map_err(|error| self.or_gone(error))
    }

    async fn thaw(&self) -> Result<(), DriverError> {
        self.mark_still(false)?;
        self.frozen.store(false, Ordering::Relaxed);
        match self.firecracker {
            Some(control) => self.turn(control.set_running(true)).await?,
            None => self.tell("cont").await.map(drop).map_err(|error| self.or_gone(error))?,
        }
        if let Some(identity) = self.pending() {
            self.port.identify(&identity).await.map_err(|error| self.or_gone(error))?;
            self.port.change_mark(identity.mark);
            self.port.hang_up().await;
            *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        // It stood still with the machine.
        self.port.set_clock().await.map_err(|error| self.or_gone(error))
    }

    async fn checkpoint(&self, to: &Path) -> Result<(), DriverError> {
        self.checkpoint_within(to, SAVE_LIMIT, &AtomicBool::new(false)).await
    }

    async fn checkpoint_within(
        &self,
        to: &Path,
        limit: Duration,
        unwanted: &AtomicBool,
    ) -> Result<(), DriverError> {
        let patience = Patience { limit, unwanted };
        self.freeze().await?;
        if self.firecracker.is_some() {
            firecracker::can_write(self.host.memory(), limit)?;
        }
        let state = checkpoint::create(to, self.id, self.stood_still())
            .map_err(DriverError::io("make the checkpoint"))?;
        let begun = Instant::now();
        let saved = async {
            let files = self.save(to, state, &patience).await?;
            let dir = to.to_owned();
            // Whoever removes the machine next relies on it.
            let synced = tokio::task::spawn_blocking(move || checkpoint::sync(&dir, &files));
            let synced = async { synced.await.map_err(io::Error::other)? };
            let left = limit.saturating_sub(begun.elapsed());
            limited("writing the checkpoint", left, async {
                synced.await.map_err(DriverError::io("write the checkpoint"))
            })
            .await
        };
        let saved = saved.await;
        if saved.is_err() {
            let _not_there = std::fs::remove_dir_all(to);
        }
        saved.map_err(|error| self.or_gone(error))
    }

    async fn power(&self) -> Result<Power, DriverError> {
        if let Some(control) = self.firecracker {
            if self.frozen.load(Ordering::Relaxed) {
                return self.alive().map(|()| Power::Frozen);
            }
            let running = self.turn(control.is_running()).await?;
            return Ok(if running { Power::Running } else { Power::Frozen });
        }
        let status = self.tell("query-status").await.map_err(|error| self.or_gone(error))?;
        match status.get("running").and_then(Value::as_bool) {
            Some(true) => Ok(Power::Running),
            _ => Ok(Power::Frozen),
        }
    }

    async fn pack(&self, what: &Pack) -> Result<PackStream, DriverError> {
        self.alive()?;
        self.port.pack(what).await.map_err(|error| self.or_gone(error))
    }

    async fn agent(&self) -> Result<BoxStream, DriverError> {
        self.alive()?;
        self.port.open().await.map_err(|error| self.or_gone(error))
    }

    async fn usage(&self) -> Result<Usage, DriverError> {
        self.alive()?;
        usage(self.process.pid).ok_or(DriverError::Gone)
    }

    async fn checkpoint_bytes(&self) -> Result<u64, DriverError> {
        match self.firecracker {
            // Pages that the guest never touched, too.
            Some(_) => Ok(self.host.memory().saturating_mul(1024 * 1024)),
            None => Ok(self.usage().await?.memory_bytes),
        }
    }

    fn exit_fd(&self) -> Result<OwnedFd, DriverError> {
        self.pidfd.try_clone().map_err(DriverError::io("copy the process descriptor"))
    }

    async fn destroy(&self) -> Result<(), DriverError> {
        process::kill(&self.pidfd).map_err(DriverError::io("kill the machine"))?;
        wait_ended(self.exit_fd()?).await?;
        self.port.hang_up().await;
        // A machine of the same sandbox may have been started since.
        if self.host.recorded().is_none_or(|recorded| recorded == self.process) {
            sweep(self.id, &self.run_dir).await?;
        }
        tracing::debug!(sandbox = %self.id, "a virtual machine has ended");
        Ok(())
    }
}

/// Returns when a process that was killed has ended.
pub(crate) async fn wait_ended(process: OwnedFd) -> Result<(), DriverError> {
    let ended = driver::exited(process);
    limited("killing the machine", EXIT_LIMIT, async {
        ended.await.map_err(DriverError::io("wait for the machine's end"))
    })
    .await
}

/// Removes what was made for a machine whose process has ended.
pub(crate) async fn sweep(id: SandboxId, run_dir: &Path) -> Result<(), DriverError> {
    cgroup::remove(id).await?;
    HostDir::remove(run_dir)
}

/// What the process uses: its resident memory, which is what the guest has touched and the emulator's own.
fn usage(pid: i32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse::<u64>().ok())
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // proc(5): fields 14 and 15, user and system time; the first here is field 3.
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Usage {
        memory_bytes: field("VmRSS:")? * 1024,
        cpu_usec: ticks * 1_000_000 / per_second,
        pids: field("Threads:")?,
    })
}
