//! Makes a layer of a sandbox that stands still, bounded by the room there is: a host whose disk is full takes all
//! sandboxes with it.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use domain::SandboxId;
use templates::{Capture, LayerStore, TemplateError};

use crate::disk;
use crate::error::NodeError;
use crate::host::{CapturedLayer, Extent};
use crate::place::Place;

/// Left free beside what is saved, as with new disks.
const RESERVE: u64 = 1 << 30;
/// The largest disk a template can have. More than that are files with holes, which take long to read.
const MOST: u64 = 64 << 30;

/// The disk is mounted, and nothing writes to it.
pub(crate) fn layer(
    place: &Place,
    id: SandboxId,
    layers: &Path,
    extent: Extent,
    stop: &AtomicBool,
) -> Result<Option<CapturedLayer>, NodeError> {
    let store = LayerStore::open(layers)?;
    let room = space(layers)?.free.saturating_sub(RESERVE);
    if space(&place.disk(id))?.used > room {
        return Err(NodeError::NoRoomToSave);
    }
    let (upper, merged) = (disk::upper(place, id), place.root(id));
    let upper = match extent {
        Extent::Written => &upper,
        // The kernel shows neither marks nor attributes of its own here: it reads as one layer.
        Extent::Everything => &merged,
    };
    let capture = Capture { upper, merged: &merged, except: &[], max_bytes: room.min(MOST), stop };
    match store.capture(capture) {
        Ok(layer) => {
            Ok(layer.map(|layer| CapturedLayer { digest: layer.digest, size_bytes: layer.size_bytes }))
        }
        Err(TemplateError::TooLarge { unit: "bytes", .. }) if room < MOST => Err(NodeError::NoRoomToSave),
        Err(TemplateError::Io { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
            Err(NodeError::NoRoomToSave)
        }
        Err(error) => Err(error.into()),
    }
}

struct Space {
    free: u64,
    used: u64,
}

fn space(of: &Path) -> Result<Space, NodeError> {
    let of = rustix::fs::statvfs(of).map_err(NodeError::system("ask for free disk space"))?;
    Ok(Space {
        free: of.f_bavail.saturating_mul(of.f_frsize),
        used: of.f_blocks.saturating_sub(of.f_bfree).saturating_mul(of.f_frsize),
    })
}
