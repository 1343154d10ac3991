//! The workload and the agent as one group that can stand still while this process goes on: the kernel's freezer for cgroups.
//! Nobody in the group can reach it. On a kernel without it nothing stands still, and machines that continue the same memory run
//! for a moment before they are told who they are.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::MountFlags;
use tokio::time::Instant;

use super::step;

const CGROUPS: &str = "/cgroups";
/// Running processes stop within a millisecond. One that waits inside a system call goes nowhere even if it takes longer: it
/// stops before it is back in its program.
const STOP_LIMIT: Duration = Duration::from_millis(500);
const STOP_POLL: Duration = Duration::from_millis(2);

/// The group; `None` on such a kernel.
#[derive(Debug)]
pub(super) struct Workload(Option<PathBuf>);

impl Workload {
    pub(super) fn new() -> io::Result<Self> {
        std::fs::create_dir_all(CGROUPS)?;
        let mounted = rustix::mount::mount("cgroups", CGROUPS, "cgroup2", MountFlags::empty(), None);
        if mounted == Err(rustix::io::Errno::NODEV) {
            return Ok(Self(None));
        }
        mounted.map_err(|error| step("mount the cgroups")(error.into()))?;
        let group = Path::new(CGROUPS).join("workload");
        std::fs::create_dir(&group)?;
        Ok(Self(Some(group)))
    }

    /// In the child that becomes the agent: all that it will start is in the group.
    pub(super) fn enter(&self) -> io::Result<()> {
        let Some(group) = &self.0 else { return Ok(()) };
        std::fs::write(group.join("cgroup.procs"), "0").map_err(step("enter the group"))
    }

    /// Stops all in it.
    pub(super) async fn stop(&self) -> io::Result<()> {
        let Some(group) = &self.0 else { return Ok(()) };
        set(group, "1")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP_LIMIT && !stands_still(group)? {
            tokio::time::sleep(STOP_POLL).await;
        }
        Ok(())
    }

    /// Lets them go on.
    pub(super) fn go_on(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |group| set(group, "0"))
    }
}

fn set(group: &Path, frozen: &str) -> io::Result<()> {
    File::options().write(true).open(group.join("cgroup.freeze"))?.write_all(frozen.as_bytes())
}

fn stands_still(group: &Path) -> io::Result<bool> {
    Ok(std::fs::read_to_string(group.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"))
}
