//! The node itself: each operation as a sequence of steps, undone as a whole when one fails.

mod fork;
mod warm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use domain::{EgressRules, Engine, NetworkSink, PreviewPort, Problem, SandboxId, SnapshotId};
use driver::{BoxStream, Link, Machine, MachineLimits, MachineSpec, Power, Promises, Root};
use egress::{Gateway, GatewayConfig};
use tokio::sync::{Semaphore, mpsc};

use self::warm::Warm;
use crate::engines::{self, Engines};
use crate::error::NodeError;
use crate::host::{CapturedLayer, Extent, Found, Host, Kept, SandboxSpec, Saved};
use crate::link::Pair;
use crate::machines::Machines;
use crate::place::{MountedBy, Place};
use crate::states::{self, State};
use crate::turns::Turns;
use crate::{adopt, agent, base, dial, disk, link, pack, paused, problem, save, shared};

/// Processes and threads of one sandbox: more than any build or test run starts, few enough that the host's process
/// table holds dozens of sandboxes at their limit.
const WORKLOAD_PIDS: u32 = 4_096;
/// Streams to ports that are being opened at once: each takes a thread for a tenth of a millisecond, and visitors in any
/// number must not take the threads that make disks and links.
const DIALS: usize = 32;
/// Characters of the id in the host name (`spec/semantics.md` §5.1).
const HOSTNAME_ID: usize = 8;

/// What a node needs to know.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Disks; survives a restart of the host.
    pub state_dir: PathBuf,
    /// Read-only layers, by digest; may be shared by several nodes.
    pub layers_dir: PathBuf,
    /// Machines and links; belongs on a file system that is emptied at boot. All its parents must be passable for other
    /// users, since guests' ids start in it.
    pub run_dir: PathBuf,
    /// The agent's executable.
    pub agent: PathBuf,
    /// Guest id 0 is this id outside; layers on disk are shifted by as much.
    pub id_shift: u32,
    /// Links take their addresses from the /16 that holds this address.
    pub link_range: Ipv4Addr,
    /// Most templates that are kept with their memory, where the engine can.
    pub template_states: usize,
    /// The way out.
    pub egress: GatewayConfig,
    /// Who is told what sandboxes do on the network.
    pub network_log: Arc<dyn NetworkSink>,
}

/// One machine that runs sandboxes.
#[derive(Debug)]
pub struct Node {
    host: Arc<Sandboxes>,
    turns: Turns,
    dials: Semaphore,
}

/// What the operations work on.
#[derive(Debug)]
struct Sandboxes {
    config: NodeConfig,
    place: Place,
    engines: Engines,
    machines: Machines,
    gateway: Gateway,
    room: save::Room,
    warm: Arc<Warm>,
}

impl Node {
    /// Makes directories and the router namespace, or takes over what an earlier server left; then call `adopt`.
    ///
    /// # Errors
    /// The host lacks something; the problem says what.
    pub async fn open(config: NodeConfig, engines: Engines) -> Result<Arc<Self>, Problem> {
        let (state, layers, run) =
            (config.state_dir.clone(), config.layers_dir.clone(), config.run_dir.clone());
        let place = blocking(move || {
            let place =
                Place::prepare(&state, &layers, &run).map_err(NodeError::io("use the directories"))?;
            disk::settle_names(&place, &state).map_err(NodeError::io("name the disks"))?;
            paused::settle_memories(&place).map_err(NodeError::io("name what paused sandboxes remember"))?;
            link::open_router(&place)?;
            base::sweep(&place).map_err(NodeError::io("look at base images"))?;
            Ok(place)
        })
        .await
        .map_err(problem::at_start)?;
        let gateway = open_gateway(&config, &place).await.map_err(problem::at_start)?;
        let (machines, room) = (Machines::new(), save::Room::default());
        let (most, agent) = (config.template_states, config.agent.clone());
        let (vintages, engines) = blocking(move || Ok((warm::vintages(most, &engines, &agent), engines)))
            .await
            .map_err(problem::at_start)?;
        let warm = Arc::new(Warm::new(most, vintages));
        let host = Arc::new(Sandboxes { config, place, engines, machines, gateway, room, warm });
        Ok(Arc::new(Self { host, turns: Turns::default(), dials: Semaphore::new(DIALS) }))
    }

    /// Numbers of the way out.
    #[must_use]
    pub fn egress(&self) -> egress::Stats {
        self.host.gateway.stats()
    }

    /// Sandboxes of which anything is on this host, and why: the engine that could remove it is not there, as far as is known.
    ///
    /// # Errors
    /// The directories cannot be read.
    pub async fn present(&self) -> Result<BTreeMap<SandboxId, Option<String>>, Problem> {
        let host = Arc::clone(&self.host);
        let look = move || {
            let ids = adopt::present(&host.place).map_err(NodeError::io("look for sandboxes"))?;
            let why = |id| {
                let engine = engines::marked(&host.place, id)?;
                host.engines.remover(engine).err().map(|error| error.to_string())
            };
            Ok(ids.into_iter().map(|id| (id, why(id))).collect())
        };
        blocking(look).await.map_err(problem::at_start)
    }

    /// Removes all templates that are kept with their memory.
    ///
    /// # Errors
    /// Something could not be removed.
    pub async fn forget_templates(&self) -> Result<(), Problem> {
        let place = self.host.place.clone();
        blocking(move || warm::remove_all(&place)).await.map_err(problem::at_start)
    }

    /// Waits for operations under way, cuts connections of sandboxes, then removes the router namespace and the run directory, unless a machine still
    /// runs.
    ///
    /// # Errors
    /// Something could not be removed.
    pub async fn close(&self) -> Result<(), Problem> {
        self.host.warm.close().await;
        self.turns.finish().await;
        self.host.gateway.stop().await;
        if !self.host.machines.is_empty() {
            return Ok(());
        }
        let place = self.host.place.clone();
        let close = move || {
            if !adopt::running(&place).map_err(NodeError::io("look for machines"))? {
                link::close_router(&place)?;
                place.remove_run().map_err(NodeError::io("remove the run directory"))?;
            }
            Ok(())
        };
        blocking(close).await.map_err(problem::at_start)
    }
}

/// Opens the gateway's doors in the router namespace.
async fn open_gateway(config: &NodeConfig, place: &Place) -> Result<Gateway, NodeError> {
    let router = File::open(place.router()).map_err(NodeError::io("open the router namespace"))?;
    let links = link::range(config.link_range);
    Ok(Gateway::start(config.egress.clone(), router.as_fd(), links, Arc::clone(&config.network_log)).await?)
}

impl Sandboxes {
    fn machine_spec(&self, spec: &SandboxSpec, pair: Pair, promises: Promises) -> MachineSpec {
        let mounts_disks = promises.mounts_disks;
        let mut hostname = format!("sandbox-{}", spec.id);
        hostname.truncate("sandbox-".len() + HOSTNAME_ID);
        MachineSpec {
            id: spec.id,
            hostname,
            root: if mounts_disks {
                Root::Disks { base: base::of(&self.place, spec.id), own: self.place.guest_disk(spec.id) }
            } else {
                Root::Tree(self.place.root(spec.id))
            },
            run_dir: self.place.machine(spec.id),
            agent: self.config.agent.clone(),
            limits: MachineLimits {
                vcpu: spec.shape.vcpu,
                memory_mib: spec.shape.memory_mib,
                pids: WORKLOAD_PIDS,
            },
            link: Link {
                netns: if mounts_disks { self.place.router() } else { self.place.netns(spec.id) },
                tap: mounts_disks.then(|| pair.router_link()),
                guest: pair.guest,
                gateway: pair.gateway,
            },
            id_shift: self.config.id_shift,
        }
    }

    /// Everything about a sandbox that a request could get wrong, before anything is made.
    fn check(&self, spec: &SandboxSpec) -> Result<Pair, NodeError> {
        for digest in &spec.layers {
            // It becomes a path.
            if digest.len() != 64 || !digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(NodeError::BadDigest { digest: digest.chars().take(80).collect() });
            }
        }
        Pair::new(self.config.link_range, spec.link).ok_or(NodeError::NoSuchLink { number: spec.link })
    }

    fn guest(&self, spec: &SandboxSpec) -> Result<Ipv4Addr, NodeError> {
        Ok(self.check(spec)?.guest)
    }

    /// Disk and link side by side, then the machine, then its configuration.
    async fn start(&self, spec: &SandboxSpec, disk: Disk) -> Result<(), NodeError> {
        let (pair, driver) = (self.check(spec)?, self.engines.get(spec.engine)?);
        let promises = driver.promises();
        self.furnish(spec, pair, promises, disk).await?;
        let machine = driver.create(&self.machine_spec(spec, pair, promises)).await?;
        agent::configure(machine.as_ref(), &spec.guest).await?;
        Ok(self.machines.insert(spec.id, machine, promises, pair.guest)?)
    }

    /// Makes what a machine needs before it starts.
    async fn furnish(
        &self,
        spec: &SandboxSpec,
        pair: Pair,
        promises: Promises,
        wanted: Disk,
    ) -> Result<(), NodeError> {
        let (id, engine, mounts_disks) = (spec.id, spec.engine, promises.mounts_disks);
        let (place, layers) = (self.place.clone(), spec.layers.clone());
        let (mib, shift, room) = (spec.shape.disk_mib, self.config.id_shift, self.room.clone());
        let disk = blocking(move || {
            disk::mount_points(&place, id)?;
            engines::mark(&place, id, engine).map_err(NodeError::io("mark the machine's directory"))?;
            match &wanted {
                Disk::New => disk::create(&place, id, mib, promises.into())?,
                Disk::Of(state) => state.furnish(&place, id, &room)?,
                Disk::Kept | Disk::Remembered => disk::wait_released(&place, id)?,
            }
            if mounts_disks {
                return match wanted {
                    Disk::Remembered | Disk::Of(_) => base::of_paused(&place, id),
                    Disk::New | Disk::Kept => base::ensure(&place, id, &layers, shift),
                };
            }
            shared::raise();
            disk::mount(&place, id, &layers, shift)
        });
        let place = self.place.clone();
        let link = blocking(move || {
            if mounts_disks { link::create_tap(&place, id, pair) } else { link::create(&place, id, pair) }
        });
        // Both to their end: what fails is undone only once nothing of it is under way.
        let (disk, link) = tokio::join!(disk, link);
        disk?;
        link?;
        // Before anything runs that could want out.
        self.gateway.attach(id, pair.guest, &spec.network);
        Ok(())
    }

    /// Ends the machine and removes all but the disk.
    async fn stop(&self, id: SandboxId) -> Result<(), NodeError> {
        self.end(id).await?;
        self.detach(id).await
    }

    async fn end(&self, id: SandboxId) -> Result<(), NodeError> {
        match self.machines.remove(id) {
            Some(machine) => machine.destroy().await?,
            None => {
                if let Some(engine) = engines::marked(&self.place, id) {
                    self.engines.remover(engine)?.purge(id, &self.place.machine(id)).await?;
                }
            }
        }
        Ok(())
    }

    /// Takes link and mounts from a machine that has ended.
    async fn detach(&self, id: SandboxId) -> Result<(), NodeError> {
        self.gateway.detach(id);
        let place = self.place.clone();
        blocking(move || {
            link::destroy(&place, id)?;
            disk::unmount_all(&place, id)?;
            place.remove_machine(id).map_err(NodeError::io("remove the machine's directory"))
        })
        .await
    }

    async fn remove(&self, id: SandboxId) -> Result<(), NodeError> {
        self.end(id).await?;
        disk::abandon(&self.place, id);
        self.detach(id).await?;
        let place = self.place.clone();
        blocking(move || disk::delete(&place, id)).await
    }

    async fn undo(&self, id: SandboxId, error: NodeError, disk_too: bool) -> Problem {
        let undone = if disk_too { self.remove(id).await } else { self.stop(id).await };
        if let Err(left) = undone {
            tracing::warn!(sandbox = %id, error = %problem::of(id, left).chain(), "cannot remove a failed start");
        }
        problem::of(id, error)
    }

    fn running(&self, id: SandboxId) -> Result<Arc<dyn Machine>, NodeError> {
        self.machines.get(id).ok_or(NodeError::NotRunning)
    }

    /// Whether its machine runs, if there is one.
    async fn recover(&self, spec: &SandboxSpec, pair: Pair) -> Result<Option<Power>, NodeError> {
        if let Some(machine) = self.machines.get(spec.id) {
            return Ok(Some(machine.power().await?));
        }
        let driver = self.engines.get(spec.engine)?;
        let promises = driver.promises();
        let Some(machine) = driver.recover(&self.machine_spec(spec, pair, promises)).await? else {
            return Ok(None);
        };
        let power = machine.power().await?;
        self.machines.insert(spec.id, machine, promises, pair.guest)?;
        Ok(Some(power))
    }

    async fn take_over(&self, spec: &SandboxSpec) -> Result<Found, NodeError> {
        let pair = self.check(spec)?;
        let mounted_by = match self.engines.promises(spec.engine) {
            Ok(promises) => MountedBy::from(promises),
            Err(absent) => return Ok(self.leave(spec.id, absent)),
        };
        let image = self.place.image(spec.id, mounted_by);
        if !image.exists() && self.place.has_disk(spec.id) {
            return Err(NodeError::OtherKind);
        }
        paused::forget_unfinished(&self.place, spec.id)?;
        if paused::is_saved(&self.place, spec.id) {
            self.stop(spec.id).await?;
            return Ok(Found::Frozen);
        }
        self.gateway.attach(spec.id, pair.guest, &spec.network);
        self.gateway.assume_present(spec.id);
        match self.recover(spec, pair).await {
            Ok(Some(Power::Running)) => {
                if self.set_right(spec.id).await {
                    paused::forget_resumed(&self.place, spec.id)?;
                    return Ok(Found::Running);
                }
            }
            Ok(Some(Power::Frozen)) => return Ok(Found::Frozen),
            Ok(None) => {}
            // Without its record a machine is of no use, but its disk is.
            Err(error) => {
                let cause = problem::of(spec.id, error).chain();
                tracing::error!(sandbox = %spec.id, cause, "cannot take over a machine; it is ended and its disk kept");
            }
        }
        self.stop(spec.id).await?;
        if self.put_back(spec).await? {
            return Ok(Found::Frozen);
        }
        if !image.exists() {
            return Ok(Found::Nothing);
        }
        blocking(move || disk::check(&image)).await?;
        Ok(Found::Disk)
    }

    /// A sandbox whose engine is not here now: nothing of it is touched, and whoever wants it to go on is told why it does not.
    fn leave(&self, id: SandboxId, absent: NodeError) -> Found {
        let cause = problem::of(id, absent).chain();
        tracing::error!(sandbox = %id, cause, "a sandbox is left as it is");
        match (paused::is_saved(&self.place, id), self.place.has_disk(id)) {
            (true, _) => Found::Frozen,
            (false, true) => Found::Disk,
            (false, false) => Found::Nothing,
        }
    }

    /// A server that ended just after a machine went on had no time to set its clock, or to have its kernel let its tasks go on. Whether
    /// the machine is of use.
    async fn set_right(&self, id: SandboxId) -> bool {
        let Some(promises) = self.machines.promises(id).filter(|promises| promises.checkpoint_keeps_memory)
        else {
            return true;
        };
        let Some(machine) = self.machines.get(id) else { return true };
        let Err(error) = machine.thaw().await else { return true };
        let cause = problem::of(id, error.into()).chain();
        if promises.stops_itself() {
            tracing::error!(sandbox = %id, cause, "a machine does not go on; it is ended and its disk kept");
            return false;
        }
        tracing::warn!(sandbox = %id, cause, "the clock of a machine may be wrong");
        true
    }

    /// Whether a machine that has ended is still what was put away. One that may have run before its first thaw is not.
    async fn put_back(&self, spec: &SandboxSpec) -> Result<bool, NodeError> {
        if self.engines.promises(spec.engine)?.stops_itself() {
            return paused::forget_resumed(&self.place, spec.id).map(|()| false);
        }
        paused::put_back(&self.place, spec.id).await
    }

    fn keeps_memory(&self, id: SandboxId) -> bool {
        self.machines.promises(id).is_some_and(|promises| promises.checkpoint_keeps_memory)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        let id = spec.id;
        self.engines.get(spec.engine).map_err(|error| problem::of(id, error))?;
        if let Some(machine) = self.machines.get(id) {
            self.gateway.attach(id, self.guest(spec).map_err(|e| problem::of(id, e))?, &spec.network);
            return agent::configure(machine.as_ref(), &spec.guest).await.map_err(|e| problem::of(id, e));
        }
        // What an earlier server left half done.
        if self.place.has_any(id) {
            self.remove(id).await.map_err(|error| problem::of(id, error))?;
        }
        match self.begin_warm(spec).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(self.undo(id, error, true).await),
        }
        match self.start(spec, Disk::New).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo(id, error, true).await),
        }
    }

    async fn boot(&self, spec: &SandboxSpec, unwanted: Unwanted) -> Result<(), Problem> {
        let id = spec.id;
        // Before anything of it is touched.
        let promises = self.engines.promises(spec.engine).map_err(|error| problem::of(id, error))?;
        // Whoever asks takes its memory for lost. What a pause or resume has left of it that was only slow is better.
        if paused::is_saved(&self.place, id) || self.machines.get(id).is_some() {
            let thawed = match self.thaw(spec).await {
                Ok(()) if unwanted.load(Ordering::Relaxed) => {
                    self.freeze(id).await.and(Err(NodeError::Unwanted))
                }
                thawed => thawed,
            };
            return thawed.map_err(|error| problem::of(id, error));
        }
        if !self.place.image(id, promises.into()).exists() {
            return Err(problem::of(id, NodeError::NoDisk));
        }
        self.stop(id).await.map_err(|error| problem::of(id, error))?;
        let started = match self.start(spec, Disk::Kept).await {
            // It would run while everybody is told that it does not.
            Ok(()) if unwanted.load(Ordering::Relaxed) => Err(NodeError::Unwanted),
            started => started,
        };
        match started {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo(id, error, false).await),
        }
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), NodeError> {
        if self.machines.get(id).is_none() && paused::is_saved(&self.place, id) {
            return Ok(());
        }
        let machine = self.running(id)?;
        machine.freeze().await?;
        if !self.keeps_memory(id) || !self.is_quiet(id) {
            return Ok(());
        }
        // Some end by themselves once they are written.
        self.machines.expect_end(id);
        match paused::save(&self.place, id, machine.as_ref()).await {
            Ok(true) => self.stop(id).await,
            Ok(false) => Ok(self.machines.watch_again(id)?),
            Err(error) => {
                self.machines.watch_again(id)?;
                Err(error)
            }
        }
    }

    /// Whether what a machine has on its link can be written out.
    fn is_quiet(&self, id: SandboxId) -> bool {
        let engine = self.machines.promises(id).map(|promises| promises.engine);
        let needed = engine.and_then(|engine| self.engines.get(engine).ok()?.quiet_before_checkpoint());
        let quiet = needed.is_none_or(|needed| self.gateway.quiet(id) >= needed);
        if !quiet {
            tracing::info!(sandbox = %id, "a paused sandbox stays in memory: it had connections to the outside a moment ago");
        }
        quiet
    }

    /// Starts a machine from what a pause has written. Until it is about to run, a failure leaves that as it is.
    async fn restore(&self, spec: &SandboxSpec) -> Result<Arc<dyn Machine>, NodeError> {
        let (pair, driver) = (self.check(spec)?, self.engines.get(spec.engine)?);
        let promises = driver.promises();
        self.stop(spec.id).await?;
        let restored = async {
            self.furnish(spec, pair, promises, Disk::Remembered).await?;
            let (wanted, saved) = (self.machine_spec(spec, pair, promises), self.place.memory(spec.id));
            if promises.stops_itself() {
                // It runs before it is frozen: from here on it goes on, or its memory is lost.
                driver.check_restore(&wanted, &saved).await?;
                paused::set_aside(&self.place, spec.id).await?;
                let machine = driver.restore(&wanted, &paused::resuming(&self.place, spec.id)).await?;
                self.machines.insert(spec.id, Arc::clone(&machine), promises, pair.guest)?;
                return Ok(machine);
            }
            let machine = driver.restore(&wanted, &saved).await?;
            self.machines.insert(spec.id, Arc::clone(&machine), promises, pair.guest)?;
            paused::set_aside(&self.place, spec.id).await?;
            Ok(machine)
        };
        let restored: Result<_, NodeError> = restored.await;
        if restored.is_err() {
            let undone = async {
                self.stop(spec.id).await?;
                if promises.stops_itself() { paused::forget_resumed(&self.place, spec.id) } else { Ok(()) }
            };
            if let Err(left) = undone.await {
                let cause = problem::of(spec.id, left).chain();
                tracing::warn!(sandbox = %spec.id, cause, "cannot remove a failed resume");
            }
        }
        restored
    }

    async fn capture(
        &self,
        id: SandboxId,
        except: Vec<String>,
        max_bytes: u64,
        stop: Unwanted,
    ) -> Result<Option<CapturedLayer>, NodeError> {
        let machine = self.running(id)?;
        if self.machines.promises(id).ok_or(NodeError::NotRunning)?.mounts_disks {
            let what = driver::Pack { everything: false, except, max_bytes };
            let layer = pack::capture(machine.as_ref(), &what, self.config.layers_dir.clone(), &stop);
            return Ok(layer.await?.map(captured));
        }
        machine.freeze().await?;
        let (place, layers) = (self.place.clone(), self.config.layers_dir.clone());
        let layer = blocking(move || {
            let except: Vec<&str> = except.iter().map(String::as_str).collect();
            let capture = templates::Capture {
                upper: &disk::upper(&place, id),
                merged: &place.root(id),
                except: &except,
                max_bytes,
                stop: &stop,
            };
            Ok(templates::LayerStore::open(layers)?.capture(capture)?)
        });
        Ok(layer.await?.map(captured))
    }

    /// The second part of the answer says whether a machine that ran before runs again.
    async fn save(
        &self,
        spec: &SandboxSpec,
        extent: Extent,
        stop: Unwanted,
    ) -> (Result<save::Read, NodeError>, Result<(), NodeError>) {
        match self.still(spec).await {
            Ok(Standstill::Frozen) => (self.read(spec, extent, stop).await, Ok(())),
            Ok(Standstill::Stopped(machine)) => {
                let read = match machine.freeze().await {
                    Ok(()) => self.read(spec, extent, stop).await,
                    Err(error) => Err(error.into()),
                };
                (read, machine.thaw().await.map_err(NodeError::from))
            }
            Ok(Standstill::NoMachine) => (self.read_at_rest(spec, extent, stop).await, Ok(())),
            Err(error) => (Err(error), Ok(())),
        }
    }

    /// How a sandbox is to be read.
    async fn still(&self, spec: &SandboxSpec) -> Result<Standstill, NodeError> {
        self.check(spec)?;
        if self.engines.promises(spec.engine)?.mounts_disks {
            return Err(NodeError::OwnKernel);
        }
        let Some(machine) = self.machines.get(spec.id) else {
            return if self.place.image(spec.id, MountedBy::Host).exists() {
                Ok(Standstill::NoMachine)
            } else {
                Err(NodeError::NoDisk)
            };
        };
        Ok(match machine.power().await? {
            Power::Frozen => Standstill::Frozen,
            Power::Running => Standstill::Stopped(machine),
        })
    }

    async fn read(
        &self,
        spec: &SandboxSpec,
        extent: Extent,
        stop: Unwanted,
    ) -> Result<save::Read, NodeError> {
        let (place, layers, room) = (self.place.clone(), self.config.layers_dir.clone(), self.room.clone());
        let id = spec.id;
        blocking(move || save::read(&place, id, &layers, &room, extent, &stop)).await
    }

    async fn read_at_rest(
        &self,
        spec: &SandboxSpec,
        extent: Extent,
        stop: Unwanted,
    ) -> Result<save::Read, NodeError> {
        let id = spec.id;
        // What is left of a machine that ended still has the disk.
        self.stop(id).await?;
        let (place, below, shift) = (self.place.clone(), spec.layers.clone(), self.config.id_shift);
        let mounted = blocking(move || {
            disk::wait_released(&place, id)?;
            disk::mount(&place, id, &below, shift)
        });
        let read = match mounted.await {
            Ok(()) => self.read(spec, extent, stop).await,
            Err(error) => Err(error),
        };
        self.detach(id).await?;
        read
    }

    async fn thaw(&self, spec: &SandboxSpec) -> Result<(), NodeError> {
        let machine = if paused::is_saved(&self.place, spec.id) {
            self.restore(spec).await?
        } else {
            self.running(spec.id)?
        };
        self.gateway.attach(spec.id, self.guest(spec)?, &spec.network);
        if let Err(error) = machine.thaw().await {
            self.undo_resume(spec, machine.as_ref()).await;
            return Err(error.into());
        }
        paused::forget_resumed(&self.place, spec.id)?;
        agent::configure(machine.as_ref(), &spec.guest).await
    }

    /// A machine that did not go on stays paused, if it can.
    async fn undo_resume(&self, spec: &SandboxSpec, machine: &dyn Machine) {
        let id = spec.id;
        let undone = async {
            match machine.power().await {
                Ok(Power::Running) => return paused::forget_resumed(&self.place, id),
                Err(driver::DriverError::Gone) => {}
                // It waits, in memory now; or it cannot be said.
                Ok(Power::Frozen) | Err(_) => return Ok(()),
            }
            self.stop(id).await?;
            self.put_back(spec).await.map(drop)
        };
        if let Err(error) = undone.await {
            let cause = problem::of(id, error).chain();
            tracing::warn!(sandbox = %id, cause, "cannot undo a failed resume");
        }
    }
}

/// Which disk a machine starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Disk {
    /// An empty one.
    New,
    /// A copy of one that was kept, whose memory it begins with.
    Of(State),
    /// The one that is there.
    Kept,
    /// The same, and a memory that knows what was on it and on the template's.
    Remembered,
}

/// How a sandbox stands still while it is read.
enum Standstill {
    /// Its machine is frozen and stays so.
    Frozen,
    /// Its machine runs, and does again afterwards.
    Stopped(Arc<dyn Machine>),
    /// There is none.
    NoMachine,
}

fn captured(layer: templates::Layer) -> CapturedLayer {
    CapturedLayer { digest: layer.digest, size_bytes: layer.size_bytes }
}

/// Becomes true when nobody wants the outcome of work that takes long.
type Unwanted = Arc<AtomicBool>;

/// Ends such work when its caller goes away.
#[derive(Debug, Default)]
struct StopOnDrop(Unwanted);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.map_err(NodeError::Worker)?
}

#[async_trait]
impl Host for Node {
    fn can_start(&self, id: SandboxId, engine: Engine) -> Result<(), Problem> {
        self.host.engines.get(engine).map(drop).map_err(|error| problem::of(id, error))
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        let (host, spec) = (Arc::clone(&self.host), spec.clone());
        self.turns.take(spec.id, async move { host.create(&spec).await }).await
    }

    async fn boot(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        let (host, spec, guard) = (Arc::clone(&self.host), spec.clone(), StopOnDrop::default());
        let unwanted = Arc::clone(&guard.0);
        self.turns.take(spec.id, async move { host.boot(&spec, unwanted).await }).await
    }

    async fn freeze(&self, id: SandboxId) -> Result<(), Problem> {
        let host = Arc::clone(&self.host);
        self.turns.take(id, async move { host.freeze(id).await.map_err(|e| problem::of(id, e)) }).await
    }

    async fn thaw(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        let (host, spec) = (Arc::clone(&self.host), spec.clone());
        let id = spec.id;
        self.turns.take(id, async move { host.thaw(&spec).await.map_err(|e| problem::of(id, e)) }).await
    }

    async fn configure(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        let (host, spec) = (Arc::clone(&self.host), spec.clone());
        let id = spec.id;
        let configure = async move {
            let machine = host.running(id).map_err(|error| problem::of(id, error))?;
            agent::configure(machine.as_ref(), &spec.guest).await.map_err(|error| problem::of(id, error))
        };
        self.turns.take(id, configure).await
    }

    fn captures(&self, engine: Engine) -> bool {
        self.host.engines.promises(engine).is_ok_and(|promises| !promises.mounts_disks)
    }

    async fn capture(
        &self,
        id: SandboxId,
        except: Vec<String>,
        max_bytes: u64,
    ) -> Result<Option<CapturedLayer>, Problem> {
        let (host, guard) = (Arc::clone(&self.host), StopOnDrop::default());
        let stop = Arc::clone(&guard.0);
        let work = async move {
            host.capture(id, except, max_bytes, stop).await.map_err(|error| problem::of(id, error))
        };
        self.turns.take(id, work).await
    }

    async fn save(&self, spec: &SandboxSpec, extent: Extent) -> Saved {
        let (host, spec, guard) = (Arc::clone(&self.host), spec.clone(), StopOnDrop::default());
        let (id, stop) = (spec.id, Arc::clone(&guard.0));
        let work = async move { Ok(host.save(&spec, extent, stop).await) };
        match self.turns.take(id, work).await {
            Ok((read, runs)) => {
                // Not the sandbox's turn any more: however long the disk takes, nothing else of it waits.
                let layer = match read {
                    Ok(read) => blocking(move || read.commit()).await,
                    Err(error) => Err(error),
                };
                let told = |error| problem::of(id, error);
                Saved { layer: layer.map_err(told), stuck: runs.err().map(told) }
            }
            Err(problem) => Saved { layer: Err(problem), stuck: None },
        }
    }

    fn keeps_memory(&self, engine: Engine) -> bool {
        self.host.engines.promises(engine).is_ok_and(|promises| {
            // Others end when they are written (gVisor), and their disks are layers of the host's.
            promises.checkpoint_keeps_memory && promises.mounts_disks
        })
    }

    async fn keep(&self, spec: &SandboxSpec, snapshot: SnapshotId) -> Kept {
        let (host, spec, guard) = (Arc::clone(&self.host), spec.clone(), StopOnDrop::default());
        let (id, stop) = (spec.id, Arc::clone(&guard.0));
        let work = async move { Ok(host.keep(&spec, &snapshot.to_string(), stop).await) };
        let told = |error| problem::of(id, error);
        match self.turns.take(id, work).await {
            Ok((draft, runs)) => {
                // As with a layer: not the sandbox's turn any more.
                let size = match draft {
                    Ok(draft) => blocking(move || draft.commit()).await,
                    Err(error) => Err(error),
                };
                Kept { size_bytes: size.map_err(told), stuck: runs.err().map(told) }
            }
            Err(problem) => Kept { size_bytes: Err(problem), stuck: None },
        }
    }

    async fn fork(&self, spec: &SandboxSpec, snapshot: SnapshotId) -> Result<(), Problem> {
        let (host, spec) = (Arc::clone(&self.host), spec.clone());
        self.turns.take(spec.id, async move { host.fork(&spec, &snapshot.to_string()).await }).await
    }

    async fn forget(&self, snapshot: SnapshotId) -> Result<(), Problem> {
        self.host.forget(&snapshot.to_string()).await.map_err(problem::at_start)
    }

    async fn forget_others(&self, known: BTreeSet<SnapshotId>) -> Result<(), Problem> {
        let place = self.host.place.clone();
        let warm = Arc::clone(&self.host.warm);
        let known =
            move |name: &str| warm::is_template(name) || name.parse().is_ok_and(|id| known.contains(&id));
        let sweep = move || {
            states::sweep(&place, known)?;
            warm::sweep(&place, &warm)
        };
        blocking(sweep).await.map_err(problem::at_start)
    }

    async fn tidy(&self) -> Result<(), Problem> {
        self.host.sweep_templates().await.map_err(problem::at_start)
    }

    fn prepare(&self, spec: &SandboxSpec) {
        self.host.warm(spec);
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), Problem> {
        let host = Arc::clone(&self.host);
        self.turns.take(id, async move { host.remove(id).await.map_err(|e| problem::of(id, e)) }).await
    }

    async fn set_network(&self, id: SandboxId, rules: &EgressRules) -> Result<(), Problem> {
        if self.host.gateway.update(id, rules) { Ok(()) } else { Err(problem::of(id, NodeError::NotRunning)) }
    }

    async fn adopt(
        &self,
        known: Vec<SandboxSpec>,
        untouched: BTreeSet<SandboxId>,
    ) -> Result<BTreeMap<SandboxId, Found>, Problem> {
        let place = self.host.place.clone();
        let present = blocking(move || adopt::present(&place).map_err(NodeError::io("look for sandboxes")))
            .await
            .map_err(problem::at_start)?;
        let mut found = BTreeMap::new();
        for spec in known {
            let (host, id) = (Arc::clone(&self.host), spec.id);
            let take_over = async move { host.take_over(&spec).await.map_err(|e| problem::of(id, e)) };
            // One sandbox that cannot be used must not keep the others from being taken over.
            let state = self.turns.take(id, take_over).await.unwrap_or_else(|problem| {
                tracing::error!(sandbox = %id, cause = problem.chain(), "cannot take over a sandbox");
                Found::Broken
            });
            found.insert(id, state);
        }
        for id in present.into_iter().filter(|id| !found.contains_key(id) && !untouched.contains(id)) {
            tracing::info!(sandbox = %id, "removing what belongs to no sandbox");
            if let Err(problem) = self.destroy(id).await {
                tracing::error!(sandbox = %id, cause = problem.chain(), "cannot remove what belongs to no sandbox");
            }
        }
        Ok(found)
    }

    async fn agent(&self, id: SandboxId) -> Result<BoxStream, Problem> {
        let open = async { Ok(self.host.running(id)?.agent().await?) };
        open.await.map_err(|error| problem::of(id, error))
    }

    async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<BoxStream, Problem> {
        let open = async {
            let guest = self.host.machines.guest(id).ok_or(NodeError::NotRunning)?;
            let promises = self.host.machines.promises(id).ok_or(NodeError::NotRunning)?;
            if promises.ports_by_agent {
                return dial::through_agent(self.host.running(id)?.as_ref(), port).await;
            }
            let place = self.host.place.clone();
            let turn = self.dials.acquire().await;
            let sockets = blocking(move || dial::sockets(&place, id)).await?;
            drop(turn);
            dial::first(sockets, guest, port).await
        };
        open.await.map_err(|error| problem::of(id, error))
    }

    fn exits(&self) -> mpsc::Receiver<SandboxId> {
        self.host.machines.exits()
    }
}
