//! The one place that waits for processes: the agent's own children and, as PID 1 (or subreaper), every orphan of the
//! sandbox. Nothing else in the agent may call `wait`, or a status would be stolen.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;

use rustix::process::{Pid, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Hands out the ends of processes.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    awaited: RefCell<HashMap<Pid, oneshot::Sender<i32>>>,
}

impl Reaper {
    /// The raw wait status of `pid`, once it has ended. Ask before control returns to the runtime after the fork: the
    /// reaper runs on the same thread and so cannot have taken the status yet.
    pub(crate) fn watch(&self, pid: Pid) -> oneshot::Receiver<i32> {
        let (sender, receiver) = oneshot::channel();
        let mut awaited = self.awaited.borrow_mut();
        awaited.retain(|_, waiting| !waiting.is_closed());
        awaited.insert(pid, sender);
        receiver
    }

    /// Reaps for ever.
    pub(crate) async fn run(&self) -> io::Result<std::convert::Infallible> {
        let mut ended = signal(SignalKind::child())?;
        loop {
            // Before the first signal too: children may have ended before the handler was there.
            self.reap();
            ended.recv().await;
        }
    }

    fn reap(&self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if let Some(waiting) = self.awaited.borrow_mut().remove(&pid) {
                // Whoever asked may have gone.
                let _ = waiting.send(status.as_raw());
            }
        }
    }
}
