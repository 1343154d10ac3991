//! A machine that always works; freezing can be held up, and the agent's end of a stream comes out here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use domain::{EgressRules, PreviewPort, Problem, SandboxId};
use node::{CapturedLayer, Extent, Found, Host, SandboxSpec, Saved};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};

#[derive(Debug)]
pub(crate) struct TestHost {
    /// While it is false, a freeze does not end.
    pub(crate) may_freeze: watch::Sender<bool>,
    /// While it is false, a save does not end.
    pub(crate) may_save: watch::Sender<bool>,
    agents: mpsc::Sender<DuplexStream>,
    served: Mutex<Option<mpsc::Receiver<DuplexStream>>>,
    /// Kept open, so that nothing seems to have ended.
    exit: Mutex<Option<mpsc::Sender<SandboxId>>>,
    pub(crate) specs: Mutex<Vec<SandboxSpec>>,
    layers: PathBuf,
}

impl TestHost {
    pub(crate) fn new(layers: PathBuf) -> Arc<Self> {
        let (agents, served) = mpsc::channel(8);
        Arc::new(Self {
            may_freeze: watch::Sender::new(true),
            may_save: watch::Sender::new(true),
            agents,
            served: Mutex::new(Some(served)),
            exit: Mutex::default(),
            specs: Mutex::default(),
            layers,
        })
    }

    /// The agents' ends of all streams; asked for once.
    pub(crate) fn served(&self) -> mpsc::Receiver<DuplexStream> {
        self.served.lock().unwrap().take().unwrap()
    }
}

#[async_trait]
impl Host for TestHost {
    async fn create(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.specs.lock().unwrap().push(spec.clone());
        Ok(())
    }
    async fn boot(&self, _spec: &SandboxSpec) -> Result<(), Problem> {
        Ok(())
    }
    async fn freeze(&self, _id: SandboxId) -> Result<(), Problem> {
        let mut gate = self.may_freeze.subscribe();
        gate.wait_for(|open| *open).await.unwrap();
        Ok(())
    }
    async fn thaw(&self, _spec: &SandboxSpec) -> Result<(), Problem> {
        Ok(())
    }
    async fn capture(
        &self,
        _id: SandboxId,
        _except: Vec<String>,
        _max_bytes: u64,
    ) -> Result<Option<CapturedLayer>, Problem> {
        Ok(None)
    }
    async fn save(&self, _spec: &SandboxSpec, _extent: Extent) -> Saved {
        let mut gate = self.may_save.subscribe();
        gate.wait_for(|open| *open).await.unwrap();
        let digest = "b".repeat(64);
        std::fs::create_dir_all(self.layers.join(&digest)).unwrap();
        Saved { layer: Ok(Some(CapturedLayer { digest, size_bytes: 7 })), stuck: None }
    }
    async fn destroy(&self, _id: SandboxId) -> Result<(), Problem> {
        Ok(())
    }
    async fn configure(&self, spec: &SandboxSpec) -> Result<(), Problem> {
        self.specs.lock().unwrap().push(spec.clone());
        Ok(())
    }
    async fn set_network(&self, _id: SandboxId, _rules: &EgressRules) -> Result<(), Problem> {
        Ok(())
    }
    async fn adopt(
        &self,
        _known: Vec<SandboxSpec>,
        _untouched: BTreeSet<SandboxId>,
    ) -> Result<BTreeMap<SandboxId, Found>, Problem> {
        Ok(BTreeMap::new())
    }
    async fn agent(&self, _id: SandboxId) -> Result<driver::BoxStream, Problem> {
        let (here, there) = tokio::io::duplex(64 * 1024);
        self.agents.send(there).await.map_err(|_| Problem::internal("no agent", "test"))?;
        Ok(Box::new(here))
    }
    async fn dial(&self, id: SandboxId, _port: PreviewPort) -> Result<driver::BoxStream, Problem> {
        self.agent(id).await
    }
    fn exits(&self) -> mpsc::Receiver<SandboxId> {
        let (exit, exits) = mpsc::channel(1);
        *self.exit.lock().unwrap() = Some(exit);
        exits
    }
}
