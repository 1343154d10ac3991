//! What the layer above asks of the machine that runs sandboxes. `Node` implements it; the boundary is plain
//! values, so that a network could lie between.
use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use domain::{EgressRules, Engine, PreviewPort, Problem, SandboxId, Shape, SnapshotId};
use tokio::sync::mpsc;

/// Everything the host needs to run one sandbox, rebuilt from the database whenever it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Whose machine.
    pub id: SandboxId,
    /// What it runs on: the same for as long as it has its disk.
    pub engine: Engine,
    /// Compute and disk.
    pub shape: Shape,
    /// Digests of the template's layers, lowest first.
    pub layers: Vec<String>,
    /// Number of the link: fixes the address pair; unique among live sandboxes, kept for life.
    pub link: u32,
    /// What it may reach; in force before anything of it runs.
    pub network: EgressRules,
    /// What new processes start with.
    pub guest: wire::agent::AgentConfig,
}

/// What exists on the host for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A machine that runs.
    Running,
    /// A machine whose processes are stopped.
    Frozen,
    /// A disk, but no machine.
    Disk,
    /// Nothing.
    Nothing,
    /// Something that cannot be used: a damaged disk, a machine that cannot be taken over.
    Broken,
}

/// What of a sandbox becomes a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What was written over its layers.
    Written,
    /// All that is to be seen: a layer that needs none below.
    Everything,
}

/// A layer made of what a sandbox wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedLayer {
    /// Names it among the layers of this host.
    pub digest: String,
    /// Bytes of file content.
    pub size_bytes: u64,
}

/// How a save ended.
#[derive(Debug)]
pub struct Saved {
    /// The layer; `None` when nothing was written.
    pub layer: Result<Option<CapturedLayer>, Problem>,
    /// Why a machine that ran before does not run again.
    pub stuck: Option<Problem>,
}

/// How keeping a sandbox with its memory ended.
#[derive(Debug)]
pub struct Kept {
    /// What it takes on the disk, bytes.
    pub size_bytes: Result<u64, Problem>,
    /// Why a machine that ran before does not run again.
    pub stuck: Option<Problem>,
}

fn no_memory() -> Problem {
    Problem::internal("this host keeps no memory of sandboxes", "unsupported")
}

/// The machine that runs sandboxes. All calls are idempotent; a cancelled call may leave its work half done, which the
/// next call or the next reconcile mends.
#[async_trait]
pub trait Host: Send + Sync + std::fmt::Debug {
    /// Says whether there is an engine for a sandbox now.
    ///
    /// # Errors
    /// `service_unavailable` that says why there is none.
    fn can_start(&self, _id: SandboxId, _engine: Engine) -> Result<(), Problem> {
        Ok(())
    }
    /// Makes disk and link, starts the machine, configures the agent; returns when commands can run. On an error
    /// nothing is left.
    async fn create(&self, spec: &SandboxSpec) -> Result<(), Problem>;
    /// Says that a sandbox was made from a template that will be asked for again: the host may do now what makes the next one
    /// faster.
    fn prepare(&self, _spec: &SandboxSpec) {}
    /// Starts a machine again on a disk that is there; its memory is gone.
    async fn boot(&self, spec: &SandboxSpec) -> Result<(), Problem>;
    /// Stops all processes and keeps them.
    async fn freeze(&self, id: SandboxId) -> Result<(), Problem>;
    /// Lets them continue, corrects the clock where needed, hands over the current configuration.
    async fn thaw(&self, spec: &SandboxSpec) -> Result<(), Problem>;
    /// Hands over the current configuration of a machine that runs: new processes start with it.
    async fn configure(&self, spec: &SandboxSpec) -> Result<(), Problem>;
    /// Whether layers can be made of an engine's disks alone, without their machines. What guests with a kernel of their own wrote is
    /// not for this host's kernel to read: [`Host::capture`] has them pack it, and [`Host::save`] refuses.
    fn captures(&self, _engine: Engine) -> bool {
        true
    }
    /// Makes a layer of what was written to its disk; `None` when nothing was. The machine runs. From somewhere during this call
    /// on its processes stand still, at least until all has been read: it is for machines that are destroyed next. `except` are
    /// paths from the root that are left out, `max_bytes` bounds the content. Takes as long as reading the disk does;
    /// a dropped call ends soon and leaves nothing.
    async fn capture(
        &self,
        id: SandboxId,
        except: Vec<String>,
        max_bytes: u64,
    ) -> Result<Option<CapturedLayer>, Problem>;
    /// The same of any sandbox: a machine that runs stands still while its disk is read and goes on then; one that is
    /// frozen stays so; and of one that is gone the disk is enough. Refused with `host_capacity` when the host would run
    /// out of room. After a dropped call the machine runs as before, or a thaw says why not.
    async fn save(&self, spec: &SandboxSpec, extent: Extent) -> Saved;
    /// Whether sandboxes of an engine can be kept with their memory, and others begin with that.
    fn keeps_memory(&self, _engine: Engine) -> bool {
        false
    }
    /// Keeps a sandbox with memory and processes under the name of a snapshot, for [`Host::fork`]: one that runs stands still
    /// meanwhile and goes on then, one that is paused stays so. On an error nothing is left. Refused with `host_capacity` when the
    /// host would run out of room. After a dropped call the machine runs as before, or a thaw says why not.
    ///
    /// Only where [`Host::keeps_memory`].
    async fn keep(&self, _spec: &SandboxSpec, _snapshot: SnapshotId) -> Kept {
        Kept { size_bytes: Err(no_memory()), stuck: None }
    }
    /// Like [`Host::create`], but the sandbox goes on where the one that was kept had been, with processes and files of its own.
    /// Whatever tells machines apart is its own before any of these processes runs. On an error nothing is left, and what was
    /// kept is as it was.
    async fn fork(&self, _spec: &SandboxSpec, _snapshot: SnapshotId) -> Result<(), Problem> {
        Err(no_memory())
    }
    /// Removes what was kept; succeeds when there is nothing. Sandboxes that began with it are not concerned.
    async fn forget(&self, _snapshot: SnapshotId) -> Result<(), Problem> {
        Ok(())
    }
    /// Removes all that was kept under other names than these.
    async fn forget_others(&self, _known: BTreeSet<SnapshotId>) -> Result<(), Problem> {
        Ok(())
    }
    /// Layers were removed: what the host has kept that depends on them is of no use.
    async fn tidy(&self) -> Result<(), Problem> {
        Ok(())
    }
    /// Removes everything of this sandbox; succeeds when there is nothing.
    async fn destroy(&self, id: SandboxId) -> Result<(), Problem>;
    /// Replaces what a sandbox may reach. When this returns, no new connection is judged by the former rules, not even
    /// one that was being opened; those that are open stay.
    async fn set_network(&self, id: SandboxId, rules: &EgressRules) -> Result<(), Problem>;
    /// After a restart: takes over what runs for the known sandboxes, leaves the untouched ones alone, removes
    /// everything that belongs to neither, and says what it found. What is wrong with one sandbox is found, not an error.
    async fn adopt(
        &self,
        known: Vec<SandboxSpec>,
        untouched: BTreeSet<SandboxId>,
    ) -> Result<BTreeMap<SandboxId, Found>, Problem>;
    /// Opens a stream to the agent of a running machine.
    async fn agent(&self, id: SandboxId) -> Result<driver::BoxStream, Problem>;
    /// Opens a stream to a port inside a running machine, however its server is bound: to all addresses, to loopback of
    /// either family, or to the link. `not_found` when nothing listens there. The caller sees to it that the machine is
    /// not frozen: such a machine accepts and stays silent.
    async fn dial(&self, id: SandboxId, port: PreviewPort) -> Result<driver::BoxStream, Problem>;
    /// Machines that ended by themselves are announced here; asked for once.
    fn exits(&self) -> mpsc::Receiver<SandboxId>;
}
