//! A host that lives in memory and remembers what it was asked. Any call can be made to fail or to hang; what happens
//! to the machine is as the contract in `node::Host` says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Action, Code, EgressRules, Engine, NextStep, PreviewPort, Problem, SandboxId, SnapshotId};
use node::{CapturedLayer, Extent, Found, Host, Kept, SandboxSpec, Saved};
use tokio::sync::{mpsc, watch};

/// A call that can be tampered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Create,
    Boot,
    Freeze,
    Thaw,
    SetNetwork,
    Configure,
    Save,
    Keep,
    Fork,
    Destroy,
}

/// What goes wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, having done nothing.
    Fail,
    /// The next one fails like that.
    FailOnce,
    /// It does its work, but only after the gate opens.
    Wait,
}

#[derive(Debug)]
pub(crate) struct FakeHost {
    machines: Mutex<BTreeMap<SandboxId, Found>>,
    faults: Mutex<HashMap<Call, Fault>>,
    calls: Mutex<Vec<(Call, SandboxId)>>,
    networks: Mutex<BTreeMap<SandboxId, EgressRules>>,
    variables: Mutex<BTreeMap<SandboxId, BTreeMap<String, String>>>,
    gate: watch::Sender<bool>,
    exit: Mutex<mpsc::Sender<SandboxId>>,
    exits: Mutex<Option<mpsc::Receiver<SandboxId>>>,
    /// Where layers lie.
    layers: PathBuf,
    /// What it saves is gone when it says so.
    pub(crate) loses_layers: AtomicBool,
    /// It makes no layers.
    pub(crate) own_kernel: AtomicBool,
    /// It has no engine.
    pub(crate) no_engine: AtomicBool,
    /// It keeps memory.
    pub(crate) memory: AtomicBool,
    /// What it has kept.
    pub(crate) kept: Mutex<BTreeSet<SnapshotId>>,
}

impl FakeHost {
    pub(crate) fn new(layers: PathBuf) -> Arc<Self> {
        let (exit, exits) = mpsc::channel(64);
        Arc::new(Self {
            machines: Mutex::default(),
            faults: Mutex::default(),
            calls: Mutex::default(),
            networks: Mutex::default(),
            variables: Mutex::default(),
            gate: watch::Sender::new(false),
            exit: Mutex::new(exit),
            exits: Mutex::new(Some(exits)),
            layers,
            loses_layers: AtomicBool::default(),
            own_kernel: AtomicBool::default(),
            no_engine: AtomicBool::default(),
            memory: AtomicBool::default(),
            kept: Mutex::default(),
        })
    }

    /// A new server connects: exits are asked for again.
    pub(crate) fn reconnect(&self) {
        let (exit, exits) = mpsc::channel(64);
        *self.exit.lock().unwrap() = exit;
        *self.exits.lock().unwrap() = Some(exits);
    }

    pub(crate) fn fault(&self, call: Call, fault: Fault) {
        self.gate.send_replace(false);
        self.faults.lock().unwrap().insert(call, fault);
    }

    /// Lets waiting calls go on and new ones through.
    pub(crate) fn mend(&self) {
        self.faults.lock().unwrap().clear();
        self.gate.send_replace(true);
    }

    pub(crate) fn found(&self, id: SandboxId) -> Found {
        self.machines.lock().unwrap().get(&id).copied().unwrap_or(Found::Nothing)
    }

    pub(crate) fn put(&self, id: SandboxId, found: Found) {
        self.machines.lock().unwrap().insert(id, found);
    }

    pub(crate) fn destroy_quietly(&self, id: SandboxId) {
        self.machines.lock().unwrap().remove(&id);
    }

    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        self.machines.lock().unwrap().keys().copied().collect()
    }

    /// The rules in force.
    pub(crate) fn network(&self, id: SandboxId) -> Option<EgressRules> {
        self.networks.lock().unwrap().get(&id).cloned()
    }

    /// What new processes start with.
    pub(crate) fn variables(&self, id: SandboxId) -> BTreeMap<String, String> {
        self.variables.lock().unwrap().get(&id).cloned().unwrap_or_default()
    }

    fn hand_over(&self, spec: &SandboxSpec) {
        self.networks.lock().unwrap().insert(spec.id, spec.network.clone());
        self.variables.lock().unwrap().insert(spec.id, spec.guest.env.clone());
    }

    pub(crate) fn forget_network(&self, id: SandboxId) {
        self.networks.lock().unwrap().remove(&id);
    }

    pub(crate) fn count(&self, call: Call, id: SandboxId) -> usize {
        self.calls.lock().unwrap().iter().filter(|made| **made == (call, id)).count()
    }

    /// The machine dies; its disk stays.
    pub(crate) async fn kill(&self, id: SandboxId) {
        self.put(id, Found::Disk);
        let exit = self.exit.lock().unwrap().clone();
        exit.send(id).await.unwrap();
    }

    async fn enter(&self, call: Call, id: SandboxId) -> Result<(), Problem> {
        self.calls.lock().unwrap().push((call, id));
        let fault = self.faults.lock().unwrap().get(&call).copied();
        if fault == Some(Fault::FailOnce) {
            self.faults.lock().unwrap().remove(&call);
        }
        match fault {
            None => Ok(()),
            Some(Fault::Fail | Fault::FailOnce) => {
                Err(Problem::internal("the host failed", format!("{call:?}")))
            }
            Some(Fault::Wait) => {
                let mut gate = self.gate.subscribe();
                gate.wait_for(|open| *open).await.unwrap();
                Ok(())
            }
        }
    }

    fn step(&self, id: SandboxId, from: &[Found], to: Found) -> Result<(), Problem> {
        let mut machines = self.machines.lock().unwrap();
        let found = machines.get(&id).copied().unwrap_or(Found::Nothing);
        if found != to && !from.contains(&found) {
            let next = NextStep::Retry { after: Duration::from_secs(1) };
            return Err(Problem::new(Code::Internal, format!("{found:?} cannot become {to:?}"), next));
        }
        machines.insert(id, to);
        Ok(())
    }
}

/// What it calls the layer over so many others.
pub(crate) fn layer(below: usize) -> String {
    format!("{below:064x}")
}

#[async_trait]
impl Host for FakeHost {
    fn can_start(&self, _id: SandboxId, _engine: Engine) -> Result<(), Problem> {
        if !self.no_engine.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next = NextStep::AskOperator("install it".to_owned());
        Err(Problem::new(Code::ServiceUnavailable, "the engine is not here", next))
    }
    fn captures(&self, _engine: Engine) -> bool {
        !self.own_kernel.load(Ordering::Relaxed)
    }
    async fn create(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.enter(Call::Create, spec.id).await?;
        self.hand_over(spec);
        self.step(spec.id, &[Found::Nothing], Found::Running)
    }
    async fn boot(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.enter(Call::Boot, spec.id).await?;
        self.hand_over(spec);
        self.step(spec.id, &[Found::Disk], Found::Running)
    }
    async fn freeze(&self, id: SandboxId) -> Result<(), Problem> {
        self.enter(Call::Freeze, id).await?;
        self.step(id, &[Found::Running], Found::Frozen)
    }
    async fn thaw(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.enter(Call::Thaw, spec.id).await?;
        self.hand_over(spec);
        self.step(spec.id, &[Found::Frozen], Found::Running)
    }
    async fn capture(
        &self,
        _id: SandboxId,
        _except: Vec<String>,
        _max_bytes: u64,
    ) -> Result<Option<CapturedLayer>, Problem> {
        Ok(None)
    }
    async fn save(&self, spec: &SandboxSpec, extent: Extent) -> Saved {
        let ran = self.found(spec.id) == Found::Running;
        if ran {
            self.put(spec.id, Found::Frozen);
        }
        let entered = self.enter(Call::Save, spec.id).await;
        // Unless it died meanwhile.
        let thawed = ran && self.found(spec.id) == Found::Frozen;
        let stuck = if thawed { self.thaw(spec).await.err() } else { None };
        if let Err(why) = entered {
            return Saved { layer: Err(why), stuck };
        }
        // Named by how high it lies, so that a test sees it.
        let digest = match extent {
            Extent::Written => layer(spec.layers.len()),
            Extent::Everything => layer(0),
        };
        if !self.loses_layers.load(Ordering::Relaxed) {
            std::fs::create_dir_all(self.layers.join(&digest)).unwrap();
        }
        Saved { layer: Ok(Some(CapturedLayer { digest, size_bytes: 7 })), stuck }
    }
    fn keeps_memory(&self, _engine: Engine) -> bool {
        self.memory.load(Ordering::Relaxed)
    }
    async fn keep(&self, spec: &SandboxSpec, snapshot: SnapshotId) -> Kept {
        let ran = self.found(spec.id) == Found::Running;
        if ran {
            self.put(spec.id, Found::Frozen);
        }
        let entered = self.enter(Call::Keep, spec.id).await;
        let stuck = if ran { self.thaw(spec).await.err() } else { None };
        if entered.is_ok() {
            self.kept.lock().unwrap().insert(snapshot);
        }
        Kept { size_bytes: entered.map(|()| 9), stuck }
    }
    async fn fork(&self, spec: &SandboxSpec, snapshot: SnapshotId) -> Result<(), Problem> {
        self.enter(Call::Fork, spec.id).await?;
        let kept = self.kept.lock().unwrap().contains(&snapshot);
        assert!(kept || !self.memory.load(Ordering::Relaxed), "what it begins with is there");
        self.hand_over(spec);
        self.step(spec.id, &[Found::Nothing], Found::Running)
    }
    async fn forget(&self, snapshot: SnapshotId) -> Result<(), Problem> {
        self.kept.lock().unwrap().remove(&snapshot);
        Ok(())
    }
    async fn forget_others(&self, known: BTreeSet<SnapshotId>) -> Result<(), Problem> {
        self.kept.lock().unwrap().retain(|snapshot| known.contains(snapshot));
        Ok(())
    }
    async fn destroy(&self, id: SandboxId) -> Result<(), Problem> {
        self.enter(Call::Destroy, id).await?;
        self.machines.lock().unwrap().remove(&id);
        Ok(())
    }
    async fn configure(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.enter(Call::Configure, spec.id).await?;
        self.variables.lock().unwrap().insert(spec.id, spec.guest.env.clone());
        Ok(())
    }
    async fn set_network(&self, id: SandboxId, rules: &EgressRules) -> Result<(), Problem> {
        self.enter(Call::SetNetwork, id).await?;
        self.networks.lock().unwrap().insert(id, rules.clone());
        Ok(())
    }
    async fn adopt(
        &self,
        known: Vec<SandboxSpec>,
        untouched: BTreeSet<SandboxId>,
    ) -> Result<BTreeMap<SandboxId, Found>, Problem> {
        let mut machines = self.machines.lock().unwrap();
        machines.retain(|id, _| untouched.contains(id) || known.iter().any(|spec| spec.id == *id));
        Ok(machines
            .iter()
            .filter(|(id, _)| !untouched.contains(id))
            .map(|(id, found)| (*id, *found))
            .collect())
    }
    async fn agent(&self, id: SandboxId) -> Result<driver::BoxStream, Problem> {
        if self.found(id) != Found::Running {
            let next = NextStep::Do(Action::Resume(id));
            return Err(Problem::new(Code::SandboxUnavailable, "the machine does not run", next));
        }
        let (here, _there) = tokio::io::duplex(1024);
        Ok(Box::new(here))
    }
    async fn dial(&self, id: SandboxId, _port: PreviewPort) -> Result<driver::BoxStream, Problem> {
        self.agent(id).await
    }
    fn exits(&self) -> mpsc::Receiver<SandboxId> {
        self.exits.lock().unwrap().take().expect("asked for once")
    }
}
