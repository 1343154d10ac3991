//! States: what was kept of a sandbox that an engine with memory ran, so that others can begin with it. Each is whole and on
//! its own, whatever becomes of the sandbox, the template or the other sandboxes that began with it.
//!
//! ```text
//! <state_dir>/states/<name>/disk.img     a copy of the sandbox's disk; disk.guest if only guests mount it
//!                           base.img     the template's image, where guests mount their disks: one file with several names
//!                           checkpoint/  its memory, as the engine wrote it when the disk was as in the copy
//!                           note         of a template's: what it depends on
//!                    <name>.new          one that is being kept; <name>.gone one that is being removed
//! ```
//!
//! Nothing in a state is ever written again. A disk in it is as hostile as the one it was copied from.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use domain::SandboxId;

use crate::error::NodeError;
use crate::place::{MountedBy, Place, remove_all};
use crate::save::{Promise, Room};
use crate::{base, disk};

const NEW: &str = "new";
const GONE: &str = "gone";

/// One that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State(PathBuf);

impl State {
    pub(crate) fn find(place: &Place, name: &str) -> Result<Self, NodeError> {
        let path = place.state(name);
        if path.is_dir() { Ok(Self(path)) } else { Err(NodeError::NoState) }
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// The name says who mounts it, as with disks of sandboxes.
    fn disk(&self, mounted_by: MountedBy) -> PathBuf {
        self.0.join(match mounted_by {
            MountedBy::Host => "disk.img",
            MountedBy::Guest => "disk.guest",
        })
    }

    fn base(&self) -> PathBuf {
        self.0.join("base.img")
    }

    /// Who mounts its disk.
    pub(crate) fn mounted_by(&self) -> MountedBy {
        if self.disk(MountedBy::Host).exists() { MountedBy::Host } else { MountedBy::Guest }
    }

    fn note_file(&self) -> PathBuf {
        self.0.join("note")
    }

    pub(crate) fn note(&self) -> String {
        std::fs::read_to_string(self.note_file()).unwrap_or_default()
    }

    /// Remembers that somebody has begun with it.
    pub(crate) fn touch(&self) {
        // It is used all the same.
        let _best_effort = File::open(&self.0).and_then(|dir| dir.set_modified(SystemTime::now()));
    }

    pub(crate) fn used(&self) -> SystemTime {
        let modified = std::fs::metadata(&self.0).and_then(|of| of.modified());
        modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Gives a sandbox its disks: a copy of the one, a name for the other.
    pub(crate) fn furnish(&self, place: &Place, id: SandboxId, room: &Room) -> Result<(), NodeError> {
        let failed = || NodeError::io("copy the snapshot's disk");
        let mounted_by = self.mounted_by();
        let disk = self.disk(mounted_by);
        let bytes = std::fs::metadata(&disk).map_err(|_| NodeError::NoState)?.blocks() * 512;
        let _promise = room.promise(bytes, &place.disks()).map_err(|_| NodeError::HostDiskFull)?;
        disk::copy(place, id, &disk, mounted_by)?;
        if mounted_by == MountedBy::Guest {
            std::fs::hard_link(self.base(), base::of(place, id)).map_err(failed())?;
        }
        Ok(())
    }
}

/// One that is being kept. Dropped before it is whole, it is gone.
#[derive(Debug)]
pub(crate) struct Draft {
    state: State,
    whole: PathBuf,
    /// The sandbox's disk.
    disk: PathBuf,
    mounted_by: MountedBy,
    _promise: Promise,
}

impl Draft {
    /// Makes its directory if there is room for so many bytes of memory and for the disk.
    pub(crate) fn new(
        place: &Place,
        name: &str,
        (of, mounted_by): (SandboxId, MountedBy),
        memory_bytes: u64,
        room: &Room,
    ) -> Result<Self, NodeError> {
        let failed = || NodeError::io("make a snapshot");
        let disk = place.image(of, mounted_by);
        let bytes = std::fs::metadata(&disk).map_err(|_| NodeError::NoDisk)?.blocks() * 512;
        let promise = room.promise(bytes.saturating_add(memory_bytes), &place.states())?;
        let whole = place.state(name);
        let path = whole.with_extension(NEW);
        // An earlier attempt at the same.
        remove_all(&path).map_err(failed())?;
        DirBuilder::new().mode(0o700).create(&path).map_err(failed())?;
        Ok(Self { state: State(path), whole, disk, mounted_by, _promise: promise })
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.state.checkpoint()
    }

    /// The memory of a machine that is paused: nobody writes to it, and whoever continues from it only forgets its own name for it.
    pub(crate) fn link_checkpoint(&self, from: &Path) -> Result<(), NodeError> {
        let link = || {
            DirBuilder::new().mode(0o700).create(self.checkpoint())?;
            for entry in std::fs::read_dir(from)? {
                let entry = entry?;
                std::fs::hard_link(entry.path(), self.checkpoint().join(entry.file_name()))?;
            }
            Ok(())
        };
        link().map_err(NodeError::io("keep a memory"))
    }

    /// Copies the disk of the sandbox, which stands still.
    pub(crate) fn copy_disk(&self, place: &Place, of: SandboxId, stop: &AtomicBool) -> Result<(), NodeError> {
        match self.mounted_by {
            MountedBy::Guest => std::fs::hard_link(base::of(place, of), self.state.base())
                .map_err(NodeError::io("keep the template"))?,
            MountedBy::Host => disk::settle(place, of)?,
        }
        disk::copy_sparse(&self.disk, &self.state.disk(self.mounted_by), stop).map_err(full)
    }

    pub(crate) fn write_note(&self, note: &str) -> Result<(), NodeError> {
        std::fs::write(self.state.note_file(), note).map_err(NodeError::io("keep a template"))
    }

    /// Makes it whole, as far as a loss of power is concerned, too. Returns what it takes on the disk, bytes.
    pub(crate) fn commit(self) -> Result<u64, NodeError> {
        let failed = || NodeError::io("keep a snapshot");
        let commit = || {
            let mut bytes = sync(&self.state.0)?;
            bytes += sync(&self.state.checkpoint())?;
            std::fs::rename(&self.state.0, &self.whole)?;
            self.whole.parent().map_or(Ok(()), |all| File::open(all)?.sync_all())?;
            Ok(bytes)
        };
        commit().map_err(failed())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Not there any more when it is whole.
        if let Err(error) = remove_all(&self.state.0) {
            tracing::warn!(%error, "cannot remove half a snapshot");
        }
    }
}

/// Flushes the files of a directory, and it. Returns what its own take: a file that has other names is the template's, or a
/// paused sandbox's as well, but may be this one's alone soon.
fn sync(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let file = File::open(&path)?;
        let of = file.metadata()?;
        if of.is_file() && !path.ends_with("base.img") {
            file.sync_all()?;
            bytes += of.blocks() * 512;
        }
    }
    File::open(dir)?.sync_all()?;
    Ok(bytes)
}

fn full(error: io::Error) -> NodeError {
    match error.kind() {
        io::ErrorKind::StorageFull => NodeError::NoRoomToSave,
        _ => NodeError::io("copy the disk")(error),
    }
}

/// Removes one; there may be none.
pub(crate) fn remove(place: &Place, name: &str) -> Result<(), NodeError> {
    let failed = || NodeError::io("remove a snapshot");
    let path = place.state(name);
    let gone = path.with_extension(GONE);
    remove_all(&gone).map_err(failed())?;
    // As a whole: nobody begins with half of one.
    match std::fs::rename(&path, &gone) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| remove_all(&gone)).map_err(failed()),
    }
}

/// Removes what is half made or half removed, and the whole ones that `known` does not name.
pub(crate) fn sweep(place: &Place, known: impl Fn(&str) -> bool) -> Result<(), NodeError> {
    for name in names(place)? {
        if Path::new(&name).extension().is_some() {
            remove_all(&place.states().join(name)).map_err(NodeError::io("remove a snapshot"))?;
        } else if !known(&name) {
            tracing::info!(state = name, "removing a state that nobody knows");
            remove(place, &name)?;
        }
    }
    Ok(())
}

pub(crate) fn names(place: &Place) -> Result<BTreeSet<String>, NodeError> {
    let entries = std::fs::read_dir(place.states()).map_err(NodeError::io("look at snapshots"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_state_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let (room, id, never) = (Room::default(), SandboxId::new(), AtomicBool::new(false));
        let one = |id| (id, MountedBy::Guest);
        let count = || names(&place).unwrap().len();
        assert!(matches!(State::find(&place, "one"), Err(NodeError::NoState)));
        assert!(matches!(Draft::new(&place, "one", one(id), 0, &room), Err(NodeError::NoDisk)));

        let memory = at("memory");
        std::fs::create_dir(&memory).unwrap();
        std::fs::write(memory.join("state"), "memory").unwrap();
        std::fs::write(base::of(&place, id), "base").unwrap();
        let disk = File::create(place.guest_disk(id)).unwrap();
        disk.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&disk, b"written", 1 << 20).unwrap();
        let draft = |name| {
            let draft = Draft::new(&place, name, one(id), 0, &room).unwrap();
            draft.link_checkpoint(&memory).unwrap();
            draft.copy_disk(&place, id, &never).unwrap();
            draft
        };
        drop(draft("one"));
        assert_eq!(count(), 0, "nothing is left of it");
        let bytes = draft("one").commit().unwrap();
        assert!((1..1 << 20).contains(&bytes), "holes take nothing: {bytes}");
        let whole = State::find(&place, "one").unwrap();
        assert_eq!(whole.mounted_by(), MountedBy::Guest);
        assert_eq!(std::fs::metadata(&whole.0).unwrap().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(whole.disk(MountedBy::Guest)).unwrap().mode() & 0o777, 0o600);
        // Neither the sandbox's end nor what it writes is a matter of the state's.
        std::os::unix::fs::FileExt::write_all_at(&disk, b"changed", 1 << 20).unwrap();
        disk::delete(&place, id).unwrap();
        std::fs::remove_dir_all(&memory).unwrap();
        let other = SandboxId::new();
        whole.furnish(&place, other, &room).unwrap();
        let mut read = [0; 7];
        std::os::unix::fs::FileExt::read_exact_at(
            &File::open(place.guest_disk(other)).unwrap(),
            &mut read,
            1 << 20,
        )
        .unwrap();
        assert_eq!(&read, b"written");
        assert_eq!(std::fs::read_to_string(base::of(&place, other)).unwrap(), "base");
        assert_eq!(std::fs::read_to_string(whole.checkpoint().join("state")).unwrap(), "memory");

        // Nobody waits for it any more.
        let cut = Draft::new(&place, "two", one(other), 0, &room).unwrap();
        assert!(cut.copy_disk(&place, other, &AtomicBool::new(true)).is_err());
        std::mem::forget(cut);
        assert_eq!(count(), 2);
        sweep(&place, |name| name == "one").unwrap();
        assert_eq!(count(), 1);
        sweep(&place, |_| false).unwrap();
        assert_eq!(count(), 0);
        assert!(whole.furnish(&place, other, &room).is_err());
        remove(&place, "one").unwrap();
        assert!(matches!(
            Draft::new(&place, "one", one(other), u64::MAX / 2, &room),
            Err(NodeError::NoRoomToSave)
        ));
        assert_eq!(count(), 0);
    }
}
