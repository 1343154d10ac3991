//! The machines this server knows, and who is told when one ends by itself.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SandboxId;
use driver::{DriverError, Machine, Promises};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Exits that wait to be read; a watcher waits for room, so none is lost.
const EXIT_QUEUE: usize = 256;

#[derive(Debug)]
pub(crate) struct Machines {
    known: Mutex<HashMap<SandboxId, Entry>>,
    exits: mpsc::Sender<SandboxId>,
    receiver: Mutex<Option<mpsc::Receiver<SandboxId>>>,
}

#[derive(Debug)]
struct Entry {
    machine: Arc<dyn Machine>,
    /// Of the engine that runs it.
    promises: Promises,
    /// Its address on its link.
    guest: Ipv4Addr,
    /// Set before its end is announced: whoever hears of it finds the machine gone.
    ended: Arc<AtomicBool>,
    watcher: JoinHandle<()>,
}

impl Entry {
    fn runs(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Machines {
    pub(crate) fn new() -> Self {
        let (exits, receiver) = mpsc::channel(EXIT_QUEUE);
        Self { known: Mutex::default(), exits, receiver: Mutex::new(Some(receiver)) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SandboxId, Entry>> {
        // The map is whole after each statement that changes it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine that has not ended.
    pub(crate) fn get(&self, id: SandboxId) -> Option<Arc<dyn Machine>> {
        self.known().get(&id).filter(|entry| entry.runs()).map(|entry| Arc::clone(&entry.machine))
    }

    /// What the engine of a machine that has not ended promises.
    pub(crate) fn promises(&self, id: SandboxId) -> Option<Promises> {
        self.known().get(&id).filter(|entry| entry.runs()).map(|entry| entry.promises)
    }

    /// The link address of a machine that has not ended.
    pub(crate) fn guest(&self, id: SandboxId) -> Option<Ipv4Addr> {
        self.known().get(&id).filter(|entry| entry.runs()).map(|entry| entry.guest)
    }

    /// Takes a machine in and watches for its end.
    pub(crate) fn insert(
        &self,
        id: SandboxId,
        machine: Arc<dyn Machine>,
        promises: Promises,
        guest: Ipv4Addr,
    ) -> Result<(), DriverError> {
        let exit = machine.exit_fd()?;
        let exits = self.exits.clone();
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let watcher = tokio::spawn(async move {
            match driver::exited(exit).await {
                Ok(()) => {
                    seen.store(true, Ordering::Release);
                    let _server_is_going_down = exits.send(id).await;
                }
                Err(error) => tracing::error!(sandbox = %id, %error, "cannot watch a machine"),
            }
        });
        self.known().insert(id, Entry { machine, promises, guest, ended, watcher });
        Ok(())
    }

    /// Its end is nobody's news from here on.
    pub(crate) fn expect_end(&self, id: SandboxId) {
        if let Some(entry) = self.known().get(&id) {
            entry.watcher.abort();
        }
    }

    /// It is, again; also if it has come meanwhile.
    pub(crate) fn watch_again(&self, id: SandboxId) -> Result<(), DriverError> {
        let known = self.known().get(&id).map(|one| (Arc::clone(&one.machine), one.promises, one.guest));
        known.map_or(Ok(()), |(machine, promises, guest)| self.insert(id, machine, promises, guest))
    }

    /// Forgets a machine, also one that has ended and left its remains: from here on its end is nobody's news.
    pub(crate) fn remove(&self, id: SandboxId) -> Option<Arc<dyn Machine>> {
        self.known().remove(&id).map(|entry| Arc::clone(&entry.machine))
    }

    /// Whether no machine runs.
    pub(crate) fn is_empty(&self) -> bool {
        !self.known().values().any(Entry::runs)
    }

    /// The list of exits; a second caller gets one that is already over.
    pub(crate) fn exits(&self) -> mpsc::Receiver<SandboxId> {
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.take().unwrap_or_else(|| mpsc::channel(1).1)
    }
}
