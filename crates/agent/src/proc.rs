//! The kernel's process file system as it was when the agent started. The guest's root may mount anything over `/proc`,
//! also a file system of its own that never answers; this descriptor still leads to the kernel.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{Dir, Mode, OFlags};

/// Larger files are cut.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

static ROOT: OnceLock<OwnedFd> = OnceLock::new();

/// Takes hold of `/proc`; once, before the guest runs.
pub(crate) fn hold() -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/proc", flags, Mode::empty())?;
    // A second call would change nothing.
    let _ = ROOT.set(root);
    Ok(())
}

/// The content of a file, by its path below `/proc`.
pub(crate) fn read(path: &str) -> io::Result<Vec<u8>> {
    let file = rustix::fs::openat(root()?, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut content = Vec::new();
    std::fs::File::from(file).take(MAX_BYTES).read_to_end(&mut content)?;
    Ok(content)
}

/// All processes.
pub(crate) fn pids() -> io::Result<Vec<i32>> {
    let entries = Dir::read_from(root()?)?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect())
}

fn root() -> io::Result<&'static OwnedFd> {
    ROOT.get().ok_or_else(|| io::Error::other("/proc is not held"))
}
