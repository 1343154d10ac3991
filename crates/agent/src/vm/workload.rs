//! The workload and the agent as one group that can stand still while this process goes on: a cgroup of the guest's own kernel.
//! Nobody in the group can see or leave it. On a kernel without it nothing stands still: machines that continue the same
//! memory run for a moment before they are told who they are, and nothing can be packed.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::MountFlags;

use super::step;

const CGROUPS: &str = "/cgroups";
/// Running processes stop within a millisecond; one that waits for a disk inside a system call when that has answered. The host
/// waits 3 s in all.
const STOP_LIMIT: Duration = Duration::from_millis(1_500);
/// What is packed must not change any more, also not by a system call; one that waits for a disk stops when that has answered.
const PACK_LIMIT: Duration = Duration::from_secs(20);

/// The group; `None` on such a kernel.
#[derive(Debug)]
pub(super) struct Workload {
    group: Option<PathBuf>,
    reasons: Mutex<Reasons>,
}

/// Why it stands still: it goes on when there is no reason left.
#[derive(Debug, Default, Clone, Copy)]
struct Reasons {
    stopped: bool,
    packing: bool,
}

impl Workload {
    /// Makes the group.
    pub(super) fn new() -> io::Result<Self> {
        let group = Path::new(CGROUPS).join("workload");
        std::fs::create_dir_all(CGROUPS)?;
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
        let group = match rustix::mount::mount("cgroup2", CGROUPS, "cgroup2", flags, None) {
            Err(rustix::io::Errno::NODEV) => None,
            Err(error) => return Err(step("mount the cgroups")(error.into())),
            Ok(()) => {
                std::fs::create_dir(&group)?;
                Some(group)
            }
        };
        Ok(Self { group, reasons: Mutex::default() })
    }

    /// Runs something in the group: a child that it makes begins there, and its view of cgroups ends there.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let Some(group) = &self.group else { return work() };
        let enter = |group: &Path| std::fs::write(group.join("cgroup.procs"), "0");
        enter(group).map_err(step("enter the group"))?;
        let done = work();
        enter(Path::new(CGROUPS)).map_err(step("leave the group"))?;
        done
    }

    /// Stops all in it; an error if that cannot be, or not in time: then it stops later, unless it is to go on by then.
    pub(super) async fn stop(self: &Arc<Self>) -> io::Result<()> {
        // Here and now: done by a thread, it could come after the call that lets them go on.
        self.change(|reasons| reasons.stopped = true)?;
        let this = Arc::clone(self);
        let wait = move || this.stands_still(STOP_LIMIT);
        if tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)?? {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the workload does not stand still"))
    }

    /// Lets them go on.
    pub(super) fn go_on(&self) -> io::Result<()> {
        self.change(|reasons| reasons.stopped = false)
    }

    /// Stops all in it for a packer; returns when nothing moves. `ResourceBusy` while another packs.
    pub(super) fn pack(self: &Arc<Self>) -> io::Result<Packing> {
        if self.group.is_none() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no cgroups"));
        }
        let mut taken = false;
        let changed = self.change(|reasons| taken = std::mem::replace(&mut reasons.packing, true));
        if taken {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        // Undoes it on the way out of here.
        let packing = Packing(Arc::clone(self));
        changed?;
        if self.stands_still(PACK_LIMIT)? {
            Ok(packing)
        } else {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the workload does not stop"))
        }
    }

    fn change(&self, change: impl FnOnce(&mut Reasons)) -> io::Result<()> {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut reasons);
        let frozen = reasons.stopped || reasons.packing;
        let Some(group) = &self.group else { return Ok(()) };
        std::fs::write(group.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Whether all in it stand still before the time is over.
    fn stands_still(&self, limit: Duration) -> io::Result<bool> {
        let Some(group) = &self.group else { return Ok(false) };
        let mut events = File::open(group.join("cgroup.events"))?;
        let begun = Instant::now();
        loop {
            let mut state = String::new();
            events.rewind()?;
            events.read_to_string(&mut state)?;
            if state.lines().any(|line| line == "frozen 1") {
                return Ok(true);
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            rustix::event::poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))?;
        }
    }
}

/// The workload stands still as long as there is one of these.
#[derive(Debug)]
pub(super) struct Packing(Arc<Workload>);

impl Drop for Packing {
    fn drop(&mut self) {
        if let Err(error) = self.0.change(|reasons| reasons.packing = false) {
            crate::log(format_args!("the workload stays frozen: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_not_stop_the_workload_is_not_in_the_way_of_the_next() {
        let group = Some(PathBuf::from("/nonexistent/group"));
        let workload = Arc::new(Workload { group, reasons: Mutex::default() });
        for _ in 0..2 {
            assert_eq!(workload.pack().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    /// A group as a directory, with files like the kernel's; `frozen` is what it says all the time.
    fn group(dir: &Path, frozen: &str) -> Arc<Workload> {
        std::fs::write(dir.join("cgroup.events"), format!("populated 1\nfrozen {frozen}\n")).unwrap();
        Arc::new(Workload { group: Some(dir.to_owned()), reasons: Mutex::default() })
    }

    #[tokio::test]
    async fn whoever_is_to_go_on_goes_on_whenever_the_stop_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let said = || std::fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap();
        let workload = group(dir.path(), "0");
        let mut stop = Box::pin(workload.stop());
        assert!(futures_util::poll!(&mut stop).is_pending());
        assert_eq!(said(), "1", "from the first moment on");
        workload.go_on().unwrap();
        assert_eq!(stop.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(said(), "0");
        group(dir.path(), "1").stop().await.unwrap();
    }

    #[tokio::test]
    async fn without_cgroups_nothing_stands_still() {
        let workload = Arc::new(Workload { group: None, reasons: Mutex::default() });
        assert!(workload.stop().await.is_err());
        workload.go_on().unwrap();
    }
}
