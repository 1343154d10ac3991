//! `<run_dir>/host`: what the host keeps about one machine, closed to everyone else.
//!
//! ```text
//! jail            where Firecracker's is made (`firecracker::jail`), instead of the two sockets
//! agent.sock      listened on by QEMU (inherited descriptor): the guest's port
//! control.sock    the same: QMP
//! process.json    process id and its start time
//! memory          with Firecracker: its size, MiB
//! still           whether the workload stood still before the machine did (`checkpoint::STILL`)
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use driver::DriverError;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

const RECORD: &str = "process.json";
const MEMORY: &str = "memory";

/// Which socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Socket {
    Agent,
    Control,
}

/// Finds the process again; its number alone may be another's by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) pid: i32,
    pub(crate) start: u64,
}

#[derive(Debug)]
pub(crate) struct HostDir {
    path: PathBuf,
    /// Socket paths are limited to 107 bytes; through this descriptor they are short wherever the directory lies.
    fd: OwnedFd,
}

impl HostDir {
    pub(crate) fn create(run_dir: &Path) -> Result<Self, DriverError> {
        let path = run_dir.join("host");
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(DriverError::io("make the machine's directory"))?;
        Self::open(path).map_err(DriverError::io("open the machine's directory"))
    }

    /// The directory of a machine that may not be there.
    pub(crate) fn find(run_dir: &Path) -> Result<Option<Self>, DriverError> {
        match Self::open(run_dir.join("host")) {
            Ok(host) => Ok(Some(host)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DriverError::io("open the machine's directory")(error)),
        }
    }

    pub(crate) fn remove(run_dir: &Path) -> Result<(), DriverError> {
        match std::fs::remove_dir_all(run_dir.join("host")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(DriverError::io("remove the machine's directory")(error))
            }
            _ => Ok(()),
        }
    }

    fn open(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        Ok(Self { path, fd })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self, which: Socket) -> PathBuf {
        let name = match which {
            Socket::Agent => "agent.sock",
            Socket::Control => "control.sock",
        };
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Connections queue up from here on, until QEMU takes them.
    pub(crate) fn listen(&self, which: Socket) -> io::Result<UnixListener> {
        UnixListener::bind(self.socket(which))
    }

    pub(crate) fn record(&self, process: Recorded) -> io::Result<()> {
        let unfinished = self.path.join("process.new");
        std::fs::write(&unfinished, serde_json::to_vec(&process)?)?;
        std::fs::rename(unfinished, self.path.join(RECORD))
    }

    /// Notes the size of a machine, MiB.
    pub(crate) fn record_memory(&self, mib: u32) -> io::Result<()> {
        std::fs::write(self.path.join(MEMORY), mib.to_string())
    }

    /// That size; of one that is not noted nothing is known, so that it counts as too large for anything.
    pub(crate) fn memory(&self) -> u64 {
        let noted = std::fs::read_to_string(self.path.join(MEMORY)).ok();
        noted.and_then(|mib| mib.parse::<u32>().ok()).unwrap_or(u32::MAX).into()
    }

    pub(crate) fn recorded(&self) -> Option<Recorded> {
        serde_json::from_slice(&std::fs::read(self.path.join(RECORD)).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_unknown_size_is_too_large_to_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostDir::create(dir.path()).unwrap();
        let can_write =
            || crate::firecracker::can_write(host.memory(), std::time::Duration::from_secs(9)).is_ok();
        assert!(!can_write());
        for (mib, writable) in [(512, true), (1_800, true), (1_801, false), (u32::MAX, false)] {
            host.record_memory(mib).unwrap();
            assert_eq!(can_write(), writable, "{mib} MiB");
        }
        std::fs::write(host.path().join(MEMORY), "99999999999999999999").unwrap();
        assert!(!can_write());
    }
}
