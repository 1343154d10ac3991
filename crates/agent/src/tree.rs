//! Ends a command with everything it started: found below its supervisor (see `sys::child`), frozen first so that
//! nothing can fork away while the rest is looked for, then killed until nothing is left.
//!
//! Daemons of commands that ended before are not below this supervisor and are never touched.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::pool::Pool;
use crate::proc;

/// A process may sit in the kernel where no signal reaches it (a dead network mount); the answer does not wait for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Killed processes are gone within a scheduler tick or two.
const AGAIN: Duration = Duration::from_millis(1);

/// A running command's processes. Dropped while armed, it ends them all.
#[derive(Debug)]
pub(crate) struct Leash {
    killer: Pool,
    supervisor: Pid,
    session: Option<Pid>,
    gone: Arc<AtomicBool>,
    armed: bool,
}

impl Leash {
    pub(crate) fn new(killer: Pool, supervisor: Pid) -> Self {
        Self { killer, supervisor, session: None, gone: Arc::new(AtomicBool::new(false)), armed: true }
    }

    /// The command's own session: the leader's, or on a terminal the supervisor's.
    pub(crate) fn session(&mut self, pid: Pid) {
        self.session = Some(pid);
    }

    pub(crate) fn supervisor(&self) -> Pid {
        self.supervisor
    }

    /// The leader ended by itself: what it left behind may live.
    pub(crate) fn release(&mut self) {
        self.armed = false;
    }

    /// The supervisor was reaped, so its number no longer belongs to it.
    pub(crate) fn supervisor_gone(&mut self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Ends the whole tree and waits for it.
    pub(crate) async fn kill(&mut self) {
        self.armed = false;
        let job = self.job();
        // The job cannot fail; were its thread gone, there would be nobody to do better.
        let _ = self
            .killer
            .run(move || {
                job();
                Ok(())
            })
            .await;
    }

    fn job(&self) -> impl FnOnce() + Send + 'static {
        let (supervisor, session, gone) = (self.supervisor, self.session, Arc::clone(&self.gone));
        // At once, so that the supervisor cannot leave before its turn comes and let go of its tree.
        if !gone.load(Ordering::Acquire) {
            let _ = rustix::process::kill_process(supervisor, Signal::STOP);
        }
        move || end(supervisor, session, &gone)
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        if self.armed {
            self.killer.leave(None, self.job());
        }
    }
}

/// Signals to processes that have just gone fail, which is as good.
fn end(supervisor: Pid, session: Option<Pid>, gone: &AtomicBool) {
    let deadline = Instant::now() + PATIENCE;
    let mut frozen = Vec::new();
    while Instant::now() < deadline {
        let fresh: Vec<Pid> =
            living(supervisor, session).into_iter().filter(|pid| !frozen.contains(pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            let _ = rustix::process::kill_process(pid, Signal::STOP);
            frozen.push(pid);
        }
    }
    loop {
        let left = living(supervisor, session);
        for &pid in &left {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        if left.is_empty() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(AGAIN);
    }
    if !gone.load(Ordering::Acquire) {
        let _ = rustix::process::kill_process(supervisor, Signal::KILL);
    }
}

/// What one line of `/proc/<pid>/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    session: i32,
    dead: bool,
}

/// Processes of the tree that still run: below the supervisor or, should the guest have killed the supervisor, in the
/// command's session.
fn living(supervisor: Pid, session: Option<Pid>) -> Vec<Pid> {
    let table = processes();
    let root = supervisor.as_raw_pid();
    let session = session.map(Pid::as_raw_pid);
    let inside = |mut pid: i32| {
        // A chain of parents is never longer than the table; the bound guards against a torn reading.
        for _ in 0..table.len() {
            match table.get(&pid) {
                Some(stat) if stat.parent == root => return true,
                Some(stat) => pid = stat.parent,
                None => return false,
            }
        }
        false
    };
    table
        .iter()
        .filter(|(pid, stat)| !stat.dead && **pid != root && (Some(stat.session) == session || inside(**pid)))
        .filter_map(|(pid, _)| Pid::from_raw(*pid))
        .collect()
}

fn processes() -> HashMap<i32, Stat> {
    let stat = |pid: i32| Some((pid, parse(&proc::read(&format!("{pid}/stat")).ok()?)?));
    proc::pids().unwrap_or_default().into_iter().filter_map(stat).collect()
}

/// The name in parentheses is the guest's and may hold anything, also `)`: the numbers follow the last one.
fn parse(text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Stat { parent, session, dead: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_forge_the_line() {
        let stat = parse(b"77 (a) R 1 1 1 (b) S 5 6 7 0 -1 4194560").unwrap();
        assert_eq!(stat, Stat { parent: 5, session: 7, dead: false });
        assert!(parse(b"77 (x) Z 5 6 7 0").unwrap().dead);
        assert_eq!(parse(b"77 (x"), None);
        assert_eq!(parse(b"77 (\xff\xfe) S 1 2 3"), Some(Stat { parent: 1, session: 3, dead: false }));
    }

    #[test]
    fn this_process_is_found() {
        proc::hold().unwrap();
        let own = std::process::id().cast_signed();
        assert!(processes().get(&own).is_some_and(|stat| !stat.dead));
    }
}
