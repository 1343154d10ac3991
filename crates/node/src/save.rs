//! Makes a layer of a sandbox that stands still, bounded by the room there is: a host whose disk is full takes all
//! sandboxes with it. Reading comes first, and only that needs the standstill: a disk that has much to write may take long
//! to say that a layer is on it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SandboxId;
use templates::{Capture, LayerStore, Pending, Staged, TemplateError};

use crate::disk;
use crate::error::NodeError;
use crate::host::{CapturedLayer, Extent};
use crate::place::Place;

/// Left free beside what is saved, as with new disks.
const RESERVE: u64 = domain::DISK_RESERVE_MIB * 1024 * 1024;
/// The largest disk a template can have. More than that are files with holes, which take long to read.
const MOST: u64 = 64 << 30;

/// Room for saves under way: what each needs is promised to it, so that several together do not fill the disk either.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room(Arc<Mutex<u64>>);

impl Room {
    fn promised(&self) -> MutexGuard<'_, u64> {
        // A number is whole after each statement that changes it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For as long as what is returned lives.
    pub(crate) fn promise(&self, bytes: u64, layers: &Path) -> Result<Promise, NodeError> {
        let mut promised = self.promised();
        let room = space(layers)?.free.saturating_sub(RESERVE).saturating_sub(*promised);
        if bytes > room {
            return Err(NodeError::NoRoomToSave);
        }
        *promised += bytes;
        Ok(Promise { of: self.clone(), bytes, room })
    }
}

/// Ends with its save, whose bytes are then either on the disk or nowhere.
#[derive(Debug)]
pub(crate) struct Promise {
    of: Room,
    bytes: u64,
    /// All that was left when it was made.
    room: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        *self.of.promised() -= self.bytes;
    }
}

/// What has been read and is to become a layer.
pub(crate) struct Read {
    staged: Option<Staged>,
    _promise: Promise,
}

/// Reads what is to be saved; the disk is mounted, and nothing writes to it until this returns.
pub(crate) fn read(
    place: &Place,
    id: SandboxId,
    layers: &Path,
    room: &Room,
    extent: Extent,
    stop: &AtomicBool,
) -> Result<Read, NodeError> {
    let store = LayerStore::open(layers)?;
    let (upper, merged) = (disk::upper(place, id), place.root(id));
    let needed = match extent {
        Extent::Written => space(&place.disk(id))?.used,
        Extent::Everything => taken(&merged, stop)?,
    };
    let promise = room.promise(needed, layers)?;
    let room = promise.room;
    let upper = match extent {
        Extent::Written => &upper,
        // The kernel shows neither marks nor attributes of its own here: it reads as one layer.
        Extent::Everything => &merged,
    };
    let capture = Capture { upper, merged: &merged, except: &[], max_bytes: room.min(MOST), stop };
    match store.read(capture) {
        Ok(staged) => Ok(Read { staged, _promise: promise }),
        Err(TemplateError::TooLarge { unit: "bytes", .. }) if room < MOST => Err(NodeError::NoRoomToSave),
        Err(error) => Err(full(error)),
    }
}

impl Read {
    /// Makes it a layer.
    pub(crate) fn commit(self) -> Result<Option<CapturedLayer>, NodeError> {
        let layer = self.staged.map(Staged::commit).transpose().map_err(full)?;
        Ok(layer.map(|layer| CapturedLayer { digest: layer.digest, size_bytes: layer.size_bytes }))
    }
}

fn full(error: TemplateError) -> NodeError {
    match error {
        TemplateError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            NodeError::NoRoomToSave
        }
        error => error.into(),
    }
}

/// Bytes on the disk below a directory; files with several names count for each.
fn taken(root: &Path, stop: &AtomicBool) -> Result<u64, NodeError> {
    let failed = || NodeError::io("add up what is there");
    let (mut pending, mut bytes) = (Pending::below(root), 0);
    while let Some((dir, ())) = pending.pop() {
        for entry in std::fs::read_dir(dir).map_err(failed())? {
            if stop.load(Ordering::Relaxed) {
                return Err(failed()(io::Error::other("nobody wants it any more")));
            }
            let entry = entry.map_err(failed())?;
            // Of the entry itself: links are not followed.
            let of = entry.metadata().map_err(failed())?;
            bytes += of.blocks() * 512;
            if of.is_dir() {
                pending.push(entry.path(), ()).map_err(TemplateError::from)?;
            }
        }
    }
    Ok(bytes)
}

/// What there is of a file system, bytes.
pub(crate) struct Space {
    pub(crate) free: u64,
    used: u64,
}

pub(crate) fn space(of: &Path) -> Result<Space, NodeError> {
    let of = rustix::fs::statvfs(of).map_err(NodeError::system("ask for free disk space"))?;
    Ok(Space {
        free: of.f_bavail.saturating_mul(of.f_frsize),
        used: of.f_blocks.saturating_sub(of.f_bfree).saturating_mul(of.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_is_promised_once() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::default();
        let all = space(dir.path()).unwrap().free.saturating_sub(RESERVE);
        if all < 2 {
            eprintln!("SKIPPED: less than {RESERVE} bytes are free here");
            return;
        }
        // Others use the disk, too: halves are far from what they do meanwhile.
        let most = room.promise(all / 2, dir.path()).unwrap();
        assert!(room.promise(all / 4 * 3, dir.path()).is_err());
        drop(most);
        assert_eq!(*room.promised(), 0);
        room.promise(all / 4 * 3, dir.path()).unwrap();
    }

    #[test]
    fn all_below_counts_and_no_link_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("a/link")).unwrap();
        let stop = AtomicBool::new(false);
        let bytes = taken(dir.path(), &stop).unwrap();
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        stop.store(true, Ordering::Relaxed);
        assert!(taken(dir.path(), &stop).is_err());
    }
}
