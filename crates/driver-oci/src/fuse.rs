//! Breaking FUSE connections of a guest that cannot be killed otherwise.
//!
//! A thread that waits for the answer of a FUSE server which has read the request sleeps without hearing `SIGKILL`. The
//! server's death ends the wait, unless the waiting thread is the server's own: then it keeps open the very descriptor
//! whose closing would wake it, and so neither ever ends. The kernel offers one way out, the connection's `abort` file.
//!
//! Connections are found by what the machine's threads hold. Only those made by an id of guests are touched: host file
//! systems that are FUSE themselves (`lxcfs`) can be visible in a guest, too.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A guest may have 100,000 mounts (`fs.mount-max`), some 100 bytes each; what lies behind this is not looked at.
const MAX_TABLE_BYTES: u64 = 32 * 1024 * 1024;

/// Ends the connections that the given processes hold or wait for. Best effort: processes end while they are looked at.
///
/// # Errors
/// The kernel does not show connections.
pub(crate) fn abort(processes: &[i32], guests: &Range<u32>) -> io::Result<()> {
    let mut connections = Vec::new();
    let mut namespaces = Vec::new();
    for process in processes {
        for task in entries(&PathBuf::from(format!("/proc/{process}/task"))) {
            for fdinfo in entries(&task.join("fdinfo")) {
                connections.extend(read(&fdinfo).as_deref().and_then(held));
            }
            // Threads may have mounts of their own; most share them.
            let namespace = fs::read_link(task.join("ns/mnt"));
            if let Ok(namespace) = namespace
                && !namespaces.contains(&namespace)
            {
                connections.extend(mounted(&read(&task.join("mountinfo")).unwrap_or_default()));
                namespaces.push(namespace);
            }
        }
    }
    connections.sort_unstable();
    connections.dedup();
    if connections.is_empty() {
        return Ok(());
    }
    let control = control()?;
    for connection in connections {
        abort_one(&control, connection, guests)?;
    }
    Ok(())
}

/// The kernel's table of connections, mounted where nobody sees it.
fn control() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn abort_one(control: &OwnedFd, connection: u32, guests: &Range<u32>) -> io::Result<()> {
    let path = format!("{connection}/abort");
    let file = match rustix::fs::openat(control, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        // It ended by itself.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Its owner is the id that mounted.
    if guests.contains(&rustix::fs::fstat(&file)?.st_uid) {
        rustix::io::write(&file, b"1")?;
    }
    Ok(())
}

/// The connection behind an open `/dev/fuse`; kernels before 6.16 do not say.
fn held(fdinfo: &[u8]) -> Option<u32> {
    let line = fdinfo.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(b"fuse_connection:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The connections behind a mount table: the minor numbers of its FUSE file systems. Every name in the table is the
/// guest's, with its blanks escaped.
fn mounted(table: &[u8]) -> Vec<u32> {
    let connection = |line: &[u8]| {
        let mut fields = line.split(|&b| b == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        let fuse = kind == b"fuse" || kind.starts_with(b"fuse.");
        device.strip_prefix("0:").filter(|_| fuse)?.parse().ok()
    };
    table.split(|&b| b == b'\n').filter_map(connection).collect()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path).ok()?.take(MAX_TABLE_BYTES).read_to_end(&mut content).ok()?;
    Some(content)
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.as_bytes().iter().all(u8::is_ascii_digit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_read_from_the_kernels_tables() {
        let table = b"21 1 0:20 / / rw - overlay superserve rw,lowerdir=/x\n\
                      48 62 0:49 / /mnt/f rw,relatime - fuse test rw,user_id=0\n\
                      49 62 0:50 / /mnt/-\\040fuse rw shared:1 master:2 - fuse.sshfs 0:77 rw\n\
                      50 62 8:1 / /mnt/b rw - fuseblk /dev/sda1 rw\n\
                      51 62 0:51 / /mnt/c rw - fusectl none rw\nbroken\n";
        assert_eq!(mounted(table), [49, 50]);
        assert_eq!(held(b"pos:\t0\nino:\t3\nfuse_connection:\t49\n"), Some(49));
        assert_eq!(held(b"pos:\t0\nino:\t3\n"), None);
    }
}
