//! What the gofer holds open of the sandbox's root. This release of the sentry ends when it is to write itself out while the guest
//! has a file that was deleted; the machine being frozen, the host can see that before.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the kernel puts behind the name of what has none any more.
const DELETED: &[u8] = b" (deleted)";
/// What the agent makes and removes so that the gofer learns of everything else (`agent/src/settle.rs`); the last of it stays.
const SCRATCH: &[u8] = b"/.superserve/settle (deleted)";
/// Never had a name: what it shares with the sentry.
const MEMORY: &[u8] = b"/memfd:";
/// As the gofer calls itself.
const NAME: &[u8] = b"runsc-gofer";

/// The gofer among a machine's processes.
pub(super) fn of(processes: &[i32]) -> Option<i32> {
    processes.iter().copied().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).next() == Some(NAME)
    })
}

/// Whether it holds anything that was deleted. A file whose name looks like that counts as well.
pub(super) fn holds_deleted(gofer: i32) -> io::Result<bool> {
    holds_deleted_in(Path::new(&format!("/proc/{gofer}/fd")))
}

fn holds_deleted_in(descriptors: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(descriptors)? {
        let target = std::fs::read_link(entry?.path())?;
        let target = target.as_os_str().as_bytes();
        if target.ends_with(DELETED) && !target.ends_with(SCRATCH) && !target.starts_with(MEMORY) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_file_is_seen_as_long_as_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let own = Path::new("/proc/thread-self/fd");
        let path = dir.path().join("file");
        let held = std::fs::File::create(&path).unwrap();
        let mine = |held: &std::fs::File| {
            use std::os::fd::AsRawFd;
            let link = dir.path().join("links");
            let _former = std::fs::remove_dir_all(&link);
            std::fs::create_dir(&link).unwrap();
            let target = std::fs::read_link(own.join(held.as_raw_fd().to_string())).unwrap();
            std::os::unix::fs::symlink(target, link.join("3")).unwrap();
            holds_deleted_in(&link).unwrap()
        };
        assert!(!mine(&held));
        std::fs::remove_file(&path).unwrap();
        assert!(mine(&held));
    }
}
