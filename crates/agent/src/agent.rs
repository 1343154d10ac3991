//! What all requests share. Everything here lives on one thread.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;

use tokio::task::JoinSet;
use wire::agent::AgentConfig;

use crate::boot::Boot;
use crate::desktop::Desktop;
use crate::pool::Pool;
use crate::reaper::Reaper;
use crate::session::Sessions;
use crate::ws::LargeFrames;

/// Enough to keep a disk busy.
const FILE_THREADS: usize = 3;
/// As many as a careful client may leave stuck on a file system that stopped.
const SPARE_FILE_THREADS: usize = 16;
/// A look at two small files each; one for the case that the guest mounts something over them and thinks better of it.
const ACCOUNT_THREADS: usize = 1;
const SPARE_ACCOUNT_THREADS: usize = 2;

/// The agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) boot: Boot,
    /// `None` until the platform has sent the first one.
    pub(crate) config: RefCell<Option<Rc<AgentConfig>>>,
    pub(crate) reaper: Reaper,
    /// Acts on files as the sandbox's user.
    pub(crate) files: Pool,
    /// Finds the sandbox's user; apart from files, so that a stalled file system does not keep commands from starting.
    pub(crate) accounts: Pool,
    /// Ends process trees; apart from files, so that a stalled file system cannot delay a timeout.
    pub(crate) killer: Pool,
    /// Commands running now.
    pub(crate) commands: Cell<usize>,
    /// Bytes of output, as JSON, of answers that are being collected or sent.
    pub(crate) retained: Cell<usize>,
    /// Finished commands whose daemons still hold their pipes.
    pub(crate) held: Cell<usize>,
    /// Commands by name.
    pub(crate) sessions: Sessions,
    /// Whether there ever was a session: gVisor has been seen not to continue such a guest.
    pub(crate) conversed: Cell<bool>,
    /// WebSockets of sessions open now.
    pub(crate) sockets: Cell<usize>,
    pub(crate) large_frames: LargeFrames,
    /// Zip archives being written now, each with a thread of its own.
    pub(crate) archives: Cell<usize>,
    pub(crate) desktop: Desktop,
    /// Work that outlives its request: streams whose client went, pipes of daemons.
    tasks: RefCell<JoinSet<()>>,
}

impl Agent {
    pub(crate) fn new(boot: Boot) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            boot,
            config: RefCell::default(),
            reaper: Reaper::default(),
            files: Pool::new("files", FILE_THREADS, SPARE_FILE_THREADS)?,
            accounts: Pool::new("accounts", ACCOUNT_THREADS, SPARE_ACCOUNT_THREADS)?,
            killer: Pool::new("killer", 1, 0)?,
            commands: Cell::default(),
            retained: Cell::default(),
            held: Cell::default(),
            sessions: Sessions::default(),
            conversed: Cell::default(),
            sockets: Cell::default(),
            large_frames: LargeFrames::default(),
            archives: Cell::default(),
            desktop: Desktop::new()?,
            tasks: RefCell::default(),
        }))
    }

    /// Runs work that outlives its request; it ends at the latest with the agent.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(work);
    }
}

/// Counts one while it lives.
#[derive(Debug)]
pub(crate) struct Counted {
    agent: Rc<Agent>,
    which: fn(&Agent) -> &Cell<usize>,
}

impl Counted {
    /// `None` when `most` are counted already.
    pub(crate) fn new(agent: &Rc<Agent>, which: fn(&Agent) -> &Cell<usize>, most: usize) -> Option<Self> {
        let cell = which(agent);
        if cell.get() >= most {
            return None;
        }
        cell.set(cell.get() + 1);
        Some(Self { agent: Rc::clone(agent), which })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let cell = (self.which)(&self.agent);
        cell.set(cell.get() - 1);
    }
}
