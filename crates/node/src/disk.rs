//! A sandbox's root: the template's layers, read-only, under a writable top that lies in an ext4 image of the
//! template's disk size. The image is the quota: a full one answers `ENOSPC` to that sandbox alone. It is sparse, so it
//! takes from the host what was written, and gives back what was deleted.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::{DISK_RESERVE_MIB, SandboxId};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::mount::MountFlags;

use crate::error::NodeError;
use crate::place::{MountedBy, Place, remove_all, remove_file, unmount};
use crate::{save, sys};

/// Small enough to leave a small disk to its owner, large enough for bursts of small files.
const JOURNAL_MIB: u32 = 16;
/// A container's start copies the host's mounts and lets go of them some 10 ms later, on a busy host seconds.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);
/// The kernel offers no event for it.
const RELEASE_POLL: Duration = Duration::from_millis(2);

/// The top of the overlay, on the disk.
const UPPER: &str = "upper";

/// Former releases had disks of one kind only in a state directory, and this said which.
const KIND_FILE: &str = "base/kind";
const OF_GUESTS: &str = "mounted by guests";

/// Whether a former release left disks that guests mount, and no others: until a node has been opened on them.
#[must_use]
pub fn guests_mount_disks(state_dir: &Path) -> bool {
    // A record that says something else is none: disks without one are the host's.
    std::fs::read_to_string(state_dir.join("disks").join(KIND_FILE)).is_ok_and(|kind| kind == OF_GUESTS)
}

/// Gives disks of a former release the name of those that guests mount. The record goes last: as long as it is there, nothing
/// else has made a disk.
pub(crate) fn settle_names(place: &Place, state_dir: &Path) -> io::Result<()> {
    let disks = place.disks();
    if guests_mount_disks(state_dir) {
        for entry in std::fs::read_dir(&disks)? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "img") {
                std::fs::rename(&path, path.with_extension("guest"))?;
            }
        }
        File::open(&disks)?.sync_all()?;
    }
    remove_file(&disks.join(KIND_FILE))?;
    File::open(place.bases())?.sync_all()
}

/// Makes a new, empty image.
pub(crate) fn create(place: &Place, id: SandboxId, mib: u32, mounted_by: MountedBy) -> Result<(), NodeError> {
    check_room(place, 0)?;
    let blank = place.blank(mib);
    if !blank.exists() {
        format(place, &blank, id, mib)?;
    }
    copy(place, id, &blank, mounted_by)
}

/// Makes an image that is a copy.
pub(crate) fn copy(
    place: &Place,
    id: SandboxId,
    from: &Path,
    mounted_by: MountedBy,
) -> Result<(), NodeError> {
    let unfinished = place.disks().join(format!("{id}.new"));
    copy_sparse(from, &unfinished, &AtomicBool::new(false))
        .and_then(|()| std::fs::rename(&unfinished, place.image(id, mounted_by)))
        .inspect_err(|_| drop(remove_file(&unfinished)))
        .map_err(NodeError::io("make the disk"))
}

/// Whether there is room for so much more beside the reserve.
pub(crate) fn check_room(place: &Place, mib: u64) -> Result<(), NodeError> {
    if save::space(&place.disks())?.free / (1024 * 1024) < DISK_RESERVE_MIB + mib {
        return Err(NodeError::HostDiskFull);
    }
    Ok(())
}

/// Formats the blank of one size. Two at once each make their own; the last one stays.
fn format(place: &Place, blank: &Path, id: SandboxId, mib: u32) -> Result<(), NodeError> {
    let unfinished = place.disks().join(format!("{id}.blank"));
    let made = File::create(&unfinished)
        .and_then(|file| file.set_len(u64::from(mib) * 1024 * 1024))
        .map_err(NodeError::io("make a blank disk"))
        .and_then(|()| {
            let output = std::process::Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-I", "256"])
                // Tables are zero already, the file being sparse: writing them would only fill it.
                .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
                .arg("-J")
                .arg(format!("size={JOURNAL_MIB}"))
                .arg(&unfinished)
                .stdin(Stdio::null())
                .output()
                .map_err(NodeError::command("mke2fs"))?;
            if output.status.success() {
                return Ok(());
            }
            let detail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(NodeError::Command { program: "mke2fs", detail })
        })
        .and_then(|()| std::fs::rename(&unfinished, blank).map_err(NodeError::io("keep a blank disk")));
    if made.is_err() {
        drop(remove_file(&unfinished));
    }
    made
}

/// So much is copied before anybody looks whether it is still wanted.
const COPY_BYTES: u64 = 64 * 1024 * 1024;

/// Copies what holds data and leaves the holes; shares it where the file system can.
pub(crate) fn copy_sparse(from: &Path, to: &Path, stop: &AtomicBool) -> io::Result<()> {
    let source = File::open(from)?;
    let target = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&source, SeekFrom::Hole(start))?;
        let (mut read, mut write) = (start, start);
        while read < end {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("nobody wants it any more"));
            }
            let left = usize::try_from((end - read).min(COPY_BYTES)).map_err(io::Error::other)?;
            if rustix::fs::copy_file_range(&source, Some(&mut read), &target, Some(&mut write), left)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
    Ok(())
}

/// Writes out what a mounted disk has in the host's memory; nobody writes to it.
pub(crate) fn settle(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    match File::open(place.disk(id)) {
        Ok(mounted) => rustix::fs::syncfs(mounted).map_err(NodeError::system("write out the disk")),
        // Its machine is gone, and the mount with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(NodeError::io("write out the disk")(error)),
    }
}

/// The directory of a machine, with places to mount on.
pub(crate) fn mount_points(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    for (path, mode) in [(place.machine(id), 0o711), (place.disk(id), 0o700), (place.root(id), 0o755)] {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&path)
            .map_err(NodeError::io("make a mount point"))?;
    }
    Ok(())
}

/// The layers as one tree, read-only; to be unmounted from the sandbox's root.
pub(crate) fn mount_layers(
    place: &Place,
    id: SandboxId,
    layers: &[String],
) -> Result<std::path::PathBuf, NodeError> {
    mount_points(place, id)?;
    let lower = open_layers(place, layers)?;
    // An overlay without a top wants two.
    if let [digest] = layers {
        return Ok(place.layer(digest));
    }
    let options = format!("lowerdir={},xino=off", lower.iter().map(by_fd).collect::<Vec<_>>().join(":"));
    mount_overlay(&place.root(id), options, MountFlags::NODEV | MountFlags::RDONLY)?;
    Ok(place.root(id))
}

/// Mounts the image and, over the layers, the root.
pub(crate) fn mount(place: &Place, id: SandboxId, layers: &[String], id_shift: u32) -> Result<(), NodeError> {
    // Whatever way led here.
    if place.guest_disk(id).exists() {
        return Err(NodeError::OtherKind);
    }
    mount_points(place, id)?;
    let device = sys::attach_loop(&place.image(id, MountedBy::Host))
        .map_err(NodeError::io("bind the disk to a loop device"))?;
    let disk = place.disk(id);
    rustix::mount::mount(
        device.path.as_str(),
        &disk,
        "ext4",
        // No `nosuid`: `sudo` must work in the guest, and its root is nobody here.
        MountFlags::NODEV | MountFlags::NOATIME,
        Some(c"noinit_itable,discard"),
    )
    .map_err(NodeError::system("mount the disk"))?;
    let [upper, work] = [UPPER, "work"].map(|name| disk.join(name));
    if !upper.exists() {
        new_top(&upper, id_shift).map_err(NodeError::io("prepare the disk"))?;
        std::fs::DirBuilder::new().mode(0o700).create(&work).map_err(NodeError::io("prepare the disk"))?;
    }
    overlay(place, id, layers, &upper, &work)
}

/// What the sandbox has written, while its disk is mounted.
pub(crate) fn upper(place: &Place, id: SandboxId) -> std::path::PathBuf {
    place.disk(id).join(UPPER)
}

/// The upper directory gives the root directory its owner and mode. Made under another name, so that a disk either has
/// a whole one or none.
fn new_top(upper: &Path, owner: u32) -> io::Result<()> {
    let unfinished = upper.with_extension("new");
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&unfinished)?;
    std::os::unix::fs::chown(&unfinished, Some(owner), Some(owner))?;
    std::fs::rename(unfinished, upper)
}

fn overlay(
    place: &Place,
    id: SandboxId,
    layers: &[String],
    upper: &Path,
    work: &Path,
) -> Result<(), NodeError> {
    let lower = open_layers(place, layers)?;
    let (upper, work) = (open_dir(upper)?, open_dir(work)?);
    let options = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=on,metacopy=off,index=off,xino=off",
        lower.iter().map(by_fd).collect::<Vec<_>>().join(":"),
        by_fd(&upper),
        by_fd(&work),
    );
    mount_overlay(&place.root(id), options, MountFlags::NODEV)
}

fn mount_overlay(root: &Path, options: String, flags: MountFlags) -> Result<(), NodeError> {
    let options = CString::new(options).map_err(|error| NodeError::io("mount the root")(error.into()))?;
    rustix::mount::mount("superserve", root, "overlay", flags, Some(options.as_c_str()))
        .map_err(NodeError::system("mount the root"))
}

/// Through descriptors: mount options have room for a page and know no escaping, paths are long and may hold commas.
fn by_fd(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn open_dir(path: &Path) -> Result<OwnedFd, NodeError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(NodeError::system("open a directory of the root"))
}

/// The topmost first, as the kernel wants them, and each once: what a layer says again below is said above already.
fn open_layers(place: &Place, layers: &[String]) -> Result<Vec<OwnedFd>, NodeError> {
    let mut lower = Vec::with_capacity(layers.len());
    let mut seen = HashSet::new();
    for digest in layers.iter().rev().filter(|digest| seen.insert(digest.as_str())) {
        let path = place.layer(digest);
        if !path.is_dir() {
            return Err(NodeError::LayerMissing { digest: digest.clone() });
        }
        lower.push(open_dir(&path)?);
    }
    Ok(lower)
}

/// Tells the file system of a disk that is about to be deleted to write nothing more: a sandbox that has just written a
/// gigabyte would otherwise hold up its own removal, and its neighbours.
pub(crate) fn abandon(place: &Place, id: SandboxId) {
    use std::os::unix::fs::MetadataExt;
    let disk = place.disk(id);
    let device = |path: &Path| std::fs::metadata(path).map(|of| of.dev()).ok();
    // Only a mount point is another device than its parent; anything else is the host's own file system.
    if device(&disk).is_none() || device(&disk) == device(&place.machine(id)) {
        return;
    }
    if let Err(error) = File::open(&disk).and_then(|dir| sys::abandon(dir.as_fd())) {
        tracing::debug!(sandbox = %id, %error, "the disk is written out before it is deleted");
    }
}

/// Whether the image begins as one of ours does: what was cut off or written over is found at the start, not when its
/// owner needs it. The kernel checks the rest when it mounts it.
pub(crate) fn check(image: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::FileExt;
    /// Of an ext4 super block, which begins 1024 bytes into the image (kernel doc, filesystems/ext4/super.rst).
    const MAGIC: [u8; 2] = [0x53, 0xef];
    const MAGIC_AT: u64 = 1024 + 0x38;
    let mut magic = [0; 2];
    File::open(image)
        .and_then(|file| file.read_exact_at(&mut magic, MAGIC_AT))
        .map_err(NodeError::io("read the disk"))?;
    if magic == MAGIC { Ok(()) } else { Err(NodeError::DiskDamaged) }
}

/// Waits until no loop device uses the image: a mount namespace that was being made while the disk was unmounted
/// holds it a moment longer, and two mounts of one image would destroy it.
pub(crate) fn wait_released(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    let image = place.image(id, MountedBy::Host);
    let start = std::time::Instant::now();
    while in_use(&image).map_err(NodeError::io("look at loop devices"))? {
        if start.elapsed() > RELEASE_LIMIT {
            return Err(NodeError::DiskBusy);
        }
        std::thread::sleep(RELEASE_POLL);
    }
    Ok(())
}

fn in_use(image: &Path) -> io::Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        if entry.file_name().as_bytes().starts_with(b"loop") {
            // Absent while the device is unbound.
            let backing = std::fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
            if backing.strip_suffix(b"\n").unwrap_or(&backing) == image.as_os_str().as_bytes() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Unmounts root and image; the loop device goes with its last user.
pub(crate) fn unmount_all(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    for path in [place.root(id), place.disk(id)] {
        unmount(&path).map_err(NodeError::io("unmount the disk"))?;
    }
    Ok(())
}

/// Removes the image.
pub(crate) fn delete(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    for name in ["img", "guest", "new", "blank", "mem", "saving", "resuming", "base"]
        .map(|kind| format!("{id}.{kind}"))
    {
        remove_all(&place.disks().join(name)).map_err(NodeError::io("remove the disk"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn disks_of_a_former_release_are_named_for_who_mounts_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let record = place.disks().join(KIND_FILE);
        let (id, other) = (SandboxId::new(), SandboxId::new());
        let [disk, kept] = [id, other].map(|id| place.image(id, MountedBy::Host));
        // Cut off, or something else: as if there were none.
        for of_the_host in [&b""[..], b"mounted by", b"\xff\xfe", b"mounted by the host"] {
            std::fs::write(&record, of_the_host).unwrap();
            std::fs::write(&disk, "").unwrap();
            assert!(!guests_mount_disks(&at("state")));
            settle_names(&place, &at("state")).unwrap();
            assert!(disk.exists() && !record.exists());
        }
        std::fs::write(&record, OF_GUESTS).unwrap();
        assert!(guests_mount_disks(&at("state")));
        settle_names(&place, &at("state")).unwrap();
        assert!(!disk.exists() && place.guest_disk(id).exists() && !guests_mount_disks(&at("state")));
        // From here on both kinds are together, and what a guest wrote is mounted by nobody here.
        std::fs::write(&kept, "").unwrap();
        settle_names(&place, &at("state")).unwrap();
        assert!(kept.exists());
        assert!(matches!(mount(&place, id, &[], 0), Err(NodeError::OtherKind)));
        delete(&place, id).unwrap();
        assert!(!place.guest_disk(id).exists() && kept.exists());
    }
}
