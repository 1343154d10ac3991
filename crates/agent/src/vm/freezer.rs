//! Stops the workload where it is: a cgroup of the guest's own kernel, in which the agent proper and all that it starts are, and
//! this process is not. The workload can neither see nor leave it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::MountFlags;

use super::step;

const ROOT: &str = "/cgroup";
const WORKLOAD: &str = "/cgroup/workload";
/// A process that waits for a disk stops when that has answered.
const LIMIT: Duration = Duration::from_secs(20);

/// Makes the cgroup. Some kernels have none.
pub(super) fn prepare() -> io::Result<()> {
    std::fs::create_dir_all(ROOT)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    rustix::mount::mount("cgroup2", ROOT, "cgroup2", flags, None)
        .map_err(|error| step("mount the cgroups")(error.into()))?;
    std::fs::create_dir(WORKLOAD)
}

/// Moves this process in, so that a child begins there and its namespace ends there.
pub(super) fn enter() -> io::Result<()> {
    std::fs::write(Path::new(WORKLOAD).join("cgroup.procs"), "0")
}

/// And out again.
pub(super) fn leave() -> io::Result<()> {
    std::fs::write(Path::new(ROOT).join("cgroup.procs"), "0")
}

/// The workload stands still as long as there is one of these.
#[derive(Debug)]
pub(super) struct Frozen(());

/// Stops the workload; returns when all of it stands still.
pub(super) fn freeze() -> io::Result<Frozen> {
    let mut events = File::open(Path::new(WORKLOAD).join("cgroup.events"))?;
    set(true)?;
    // Undoes it on the way out of here.
    let frozen = Frozen(());
    let begun = Instant::now();
    loop {
        let mut state = String::new();
        events.rewind()?;
        events.read_to_string(&mut state)?;
        if state.lines().any(|line| line == "frozen 1") {
            return Ok(frozen);
        }
        let left = LIMIT.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the workload does not stop"));
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        rustix::event::poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))?;
    }
}

fn set(frozen: bool) -> io::Result<()> {
    std::fs::write(Path::new(WORKLOAD).join("cgroup.freeze"), if frozen { "1" } else { "0" })
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = set(false) {
            crate::log(format_args!("the workload stays frozen: {error}"));
        }
    }
}
