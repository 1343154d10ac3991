//! The engines of this host. Each sandbox has one for life, and nothing that one engine left is given to another.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use domain::{Engine, SandboxId};
use driver::{Driver, Promises};

use crate::error::NodeError;
use crate::place::{Place, remove_file};

/// What is said of an engine of which nothing is known.
const NOT_THERE: &str = "it is not part of this host";

/// The engines of this host.
#[derive(Debug, Default)]
pub struct Engines(BTreeMap<Engine, Slot>);

#[derive(Debug)]
struct Slot {
    /// Finds and removes machines, whatever else it can.
    driver: Option<Arc<dyn Driver>>,
    /// Why it cannot start any.
    absent: Option<String>,
}

impl Engines {
    /// Adds one that works.
    #[must_use]
    pub fn with(mut self, driver: Arc<dyn Driver>) -> Self {
        self.0.insert(driver.promises().engine, Slot { driver: Some(driver), absent: None });
        self
    }

    /// Adds one that can only remove what it left here, and why.
    #[must_use]
    pub fn only_removing(mut self, driver: Arc<dyn Driver>, why: String) -> Self {
        self.0.insert(driver.promises().engine, Slot { driver: Some(driver), absent: Some(why) });
        self
    }

    /// Notes why there is none.
    #[must_use]
    pub fn without(mut self, engine: Engine, why: String) -> Self {
        self.0.insert(engine, Slot { driver: None, absent: Some(why) });
        self
    }

    /// Those that can start machines, weakest first.
    pub fn working(&self) -> impl Iterator<Item = Engine> + '_ {
        self.0
            .iter()
            .filter(|(_, slot)| slot.driver.is_some() && slot.absent.is_none())
            .map(|(engine, _)| *engine)
    }

    /// Why an engine can start none; `None` when it can.
    #[must_use]
    pub fn absence(&self, engine: Engine) -> Option<&str> {
        self.0.get(&engine).map_or(Some(NOT_THERE), |slot| slot.absent.as_deref())
    }

    /// One that can start machines.
    pub(crate) fn get(&self, engine: Engine) -> Result<&Arc<dyn Driver>, NodeError> {
        if let Some(why) = self.absence(engine) {
            return Err(NodeError::EngineAbsent { engine, why: why.to_owned() });
        }
        self.remover(engine)
    }

    /// What one that can start machines promises.
    pub(crate) fn promises(&self, engine: Engine) -> Result<Promises, NodeError> {
        Ok(self.get(engine)?.promises())
    }

    /// One that can at least remove them.
    pub(crate) fn remover(&self, engine: Engine) -> Result<&Arc<dyn Driver>, NodeError> {
        self.0.get(&engine).and_then(|slot| slot.driver.as_ref()).ok_or_else(|| {
            let why = self.absence(engine).unwrap_or(NOT_THERE).to_owned();
            NodeError::EngineAbsent { engine, why }
        })
    }
}

/// Notes which engine starts a machine, before it does: whoever removes it needs no database for that.
pub(crate) fn mark(place: &Place, id: SandboxId, engine: Engine) -> io::Result<()> {
    std::fs::write(marker(place, id), engine.as_str())
}

/// Which engine has started a machine, if any has. Servers of former releases left no mark: they had two engines, which are
/// told apart by their disks.
pub(crate) fn marked(place: &Place, id: SandboxId) -> Option<Engine> {
    let known = std::fs::read_to_string(marker(place, id)).ok().and_then(|name| name.parse().ok());
    known.or_else(|| {
        let before = if place.guest_disk(id).exists() { Engine::Qemu } else { Engine::Container };
        place.machine(id).join("host").exists().then_some(before)
    })
}

/// Goes with the machine's directory.
pub(crate) fn unmark(machine: &Path) -> io::Result<()> {
    remove_file(&machine.join(MARKER))
}

const MARKER: &str = "engine";

fn marker(place: &Place, id: SandboxId) -> std::path::PathBuf {
    place.machine(id).join(MARKER)
}
