//! Paused machines of engines that keep memory: it lies in a directory beside their disk, and nothing of them runs. That survives a restart of
//! server and host alike.
//!
//! ```text
//! frozen ─ checkpoint ─▶ <id>.saving ─ rename ─▶ <id>.mem, machine destroyed
//!        ◀─ restore ─ <id>.mem ─ rename ─▶ <id>.resuming ─ it runs ─▶ removed
//! ```
//!
//! From the one rename until the other the checkpoint is what the sandbox is: the disk is not written in between, and a machine that
//! is found beside it is a remnant. So a step that fails, or a server that ends half-way, leaves one of the two. A machine that ends
//! before it has gone on has not written its disk, which the disk's time says: then the checkpoint is put back. The time says it only of
//! disks that guests mount; with another one the checkpoint is removed.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use domain::SandboxId;
use driver::{Machine, Power};
use rustix::fs::{CWD, RenameFlags};

use crate::error::NodeError;
use crate::place::{Place, remove_all, remove_file};
use crate::{disk, problem};

/// Writes the memory of a machine; `false` when it stays frozen in memory instead.
pub(crate) async fn save(place: &Place, id: SandboxId, machine: &dyn Machine) -> Result<bool, NodeError> {
    let unfinished = unfinished(place, id);
    let written = async {
        let used = machine.checkpoint_bytes().await? / (1024 * 1024);
        disk::check_room(place, used)?;
        forget_unfinished(place, id)?;
        Ok::<_, NodeError>(machine.checkpoint(&unfinished).await?)
    };
    if let Err(error) = written.await {
        drop(remove_all(&unfinished));
        // Paused all the same, unless it is gone.
        if machine.power().await? != Power::Frozen {
            return Err(error);
        }
        let cause = problem::of(id, error).chain();
        tracing::warn!(sandbox = %id, cause, "a paused sandbox stays in memory: it cannot be written to disk");
        return Ok(false);
    }
    std::fs::rename(&unfinished, place.memory(id)).map_err(NodeError::io("keep a checkpoint"))?;
    settle(place).await?;
    Ok(true)
}

fn unfinished(place: &Place, id: SandboxId) -> PathBuf {
    place.disks().join(format!("{id}.saving"))
}

/// Removes what a server left that ended half-way.
pub(crate) fn forget_unfinished(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    remove_all(&unfinished(place, id)).map_err(NodeError::io("remove a checkpoint"))
}

/// What was renamed or removed stays so when the host loses power: a memory must not be lost, nor come back.
async fn settle(place: &Place) -> Result<(), NodeError> {
    let disks = place.disks();
    tokio::task::spawn_blocking(move || File::open(disks)?.sync_all())
        .await
        .map_err(NodeError::Worker)?
        .map_err(NodeError::io("write the list of disks"))
}

/// Whether the memory of a sandbox is on disk.
pub(crate) fn is_saved(place: &Place, id: SandboxId) -> bool {
    place.memory(id).exists()
}

pub(crate) fn resuming(place: &Place, id: SandboxId) -> PathBuf {
    place.disks().join(format!("{id}.resuming"))
}

/// The machine is about to run: what is on disk will be the past.
pub(crate) async fn set_aside(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    forget_resumed(place, id)?;
    let memory = place.memory(id);
    note_boot(&memory).map_err(NodeError::io("put a checkpoint away"))?;
    std::fs::rename(memory, resuming(place, id)).map_err(NodeError::io("put a checkpoint away"))?;
    settle(place).await
}

/// Says during which start of the host it was put away.
const BOOT: &str = "boot";

fn this_boot() -> io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

fn note_boot(memory: &Path) -> io::Result<()> {
    // Its own: the former one may be a snapshot's, too.
    remove_file(&memory.join(BOOT))?;
    std::fs::write(memory.join(BOOT), this_boot()?)
}

/// Former releases kept a memory in one file: it becomes the state in a directory. Exchanged as a whole, so that whoever is cut off here
/// finds one or the other.
pub(crate) fn settle_memories(place: &Place) -> io::Result<()> {
    let disks = place.disks();
    for entry in std::fs::read_dir(&disks)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let (path, unfinished) = (entry.path(), entry.path().with_extension("saving"));
        match path.extension().and_then(OsStr::to_str) {
            Some("saving") => remove_file(&path)?,
            Some("mem") => {
                remove_all(&unfinished)?;
                DirBuilder::new().mode(0o700).create(&unfinished)?;
                std::fs::hard_link(&path, unfinished.join("state"))?;
                File::open(&unfinished)?.sync_all()?;
                rustix::fs::renameat_with(CWD, &unfinished, CWD, &path, RenameFlags::EXCHANGE)?;
                remove_file(&unfinished)?;
            }
            _ => {}
        }
    }
    File::open(disks)?.sync_all()
}

/// It runs: what is on disk is the past.
pub(crate) fn forget_resumed(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    remove_all(&resuming(place, id)).map_err(NodeError::io("remove a checkpoint"))
}

/// It has ended. Whether it is still what was put away: it is not once the disk was written.
pub(crate) async fn put_back(place: &Place, id: SandboxId) -> Result<bool, NodeError> {
    let (aside, disk) = (resuming(place, id), place.guest_disk(id));
    // What host and machine write to alike has no time that says anything: it is the past.
    if !disk.exists() {
        return forget_resumed(place, id).map(|()| false);
    }
    let written = || {
        let (put_away, written) = (std::fs::symlink_metadata(&aside)?, std::fs::symlink_metadata(disk)?);
        // What a disk had not yet written when the host lost power is not known.
        let lost = std::fs::read_to_string(aside.join(BOOT)).ok() != Some(this_boot()?);
        io::Result::Ok(
            lost || (written.mtime(), written.mtime_nsec()) >= (put_away.ctime(), put_away.ctime_nsec()),
        )
    };
    match written() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(NodeError::io("look at a checkpoint")(error)),
        Ok(true) => return forget_resumed(place, id).map(|()| false),
        Ok(false) => {}
    }
    std::fs::rename(&aside, place.memory(id)).map_err(NodeError::io("put a checkpoint back"))?;
    settle(place).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::MountedBy;

    #[tokio::test]
    async fn a_checkpoint_is_put_back_until_the_disk_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(dir.path(), passable).unwrap();
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let id = SandboxId::new();
        std::fs::write(place.guest_disk(id), "disk").unwrap();
        std::fs::create_dir(place.memory(id)).unwrap();
        std::fs::write(place.memory(id).join("state"), "memory").unwrap();
        // The kernel's clock of files moves in steps.
        let step = || std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!put_back(&place, id).await.unwrap(), "nothing was put away");
        for _ in 0..2 {
            step();
            set_aside(&place, id).await.unwrap();
            assert!(!is_saved(&place, id));
            assert!(put_back(&place, id).await.unwrap());
            assert_eq!(std::fs::read(place.memory(id).join("state")).unwrap(), b"memory");
        }
        set_aside(&place, id).await.unwrap();
        step();
        std::fs::write(place.guest_disk(id), "written").unwrap();
        assert!(!put_back(&place, id).await.unwrap());
        assert!(!is_saved(&place, id) && !resuming(&place, id).exists(), "its memory is of another time");
        // A disk that the host mounts.
        std::fs::rename(place.guest_disk(id), place.image(id, MountedBy::Host)).unwrap();
        std::fs::create_dir(place.memory(id)).unwrap();
        set_aside(&place, id).await.unwrap();
        assert!(!put_back(&place, id).await.unwrap());
        assert!(!is_saved(&place, id) && !resuming(&place, id).exists(), "nothing is left of it");
    }

    #[tokio::test]
    async fn what_was_put_away_before_the_host_started_again_is_the_past() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        for boot in [Some("another"), Some(""), None] {
            let id = SandboxId::new();
            std::fs::write(place.guest_disk(id), "disk").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            std::fs::create_dir(place.memory(id)).unwrap();
            set_aside(&place, id).await.unwrap();
            match boot {
                Some(boot) => std::fs::write(resuming(&place, id).join(BOOT), boot).unwrap(),
                None => std::fs::remove_file(resuming(&place, id).join(BOOT)).unwrap(),
            }
            assert!(!put_back(&place, id).await.unwrap(), "{boot:?}");
            assert!(!is_saved(&place, id) && !resuming(&place, id).exists());
        }
    }

    #[test]
    fn memories_of_a_former_release_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let [paused, cut_off, half, present] = [(); 4].map(|()| SandboxId::new());
        std::fs::write(place.memory(paused), "old").unwrap();
        std::fs::write(unfinished(&place, cut_off), "half").unwrap();
        // A server was ended while it did this.
        std::fs::write(place.memory(half), "old").unwrap();
        std::fs::create_dir(unfinished(&place, half)).unwrap();
        std::fs::hard_link(place.memory(half), unfinished(&place, half).join("state")).unwrap();
        std::fs::create_dir(place.memory(present)).unwrap();
        std::fs::write(place.memory(present).join("state"), "new").unwrap();
        for _ in 0..2 {
            settle_memories(&place).unwrap();
            for (id, memory) in [(paused, "old"), (half, "old"), (present, "new")] {
                assert_eq!(std::fs::read_to_string(place.memory(id).join("state")).unwrap(), memory);
                assert!(!unfinished(&place, id).exists());
            }
            assert_eq!(std::fs::metadata(place.memory(paused)).unwrap().mode() & 0o777, 0o700);
            assert!(!unfinished(&place, cut_off).exists());
        }
    }
}
