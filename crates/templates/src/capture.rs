//! Makes a layer out of what a sandbox has written: the upper directory of its overlay. What was written is hostile, so it
//! takes the same way as any archive: it is packed, whiteouts in the spelling of images, and unpacked into the store. The
//! layer is thereby named by its content, and can be sent to a registry as it is.
//!
//! What is on a disk that the host must not mount is packed by the guest, and only unpacked here.

use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use pack::{Owners, PackError, Source};

use crate::error::TemplateError;
use crate::store::{Layer, LayerStore, Limits, Staged};
use crate::{ID_COUNT, ID_SHIFT};

/// Headers and padding on top of the content.
const OVERHEAD_BYTES: u64 = 512 << 20;
/// As the layers have them.
const OWNERS: Owners = Owners::Shifted { root: ID_SHIFT, count: ID_COUNT };

/// What to make a layer of.
#[derive(Debug, Clone, Copy)]
pub struct Capture<'a> {
    /// The upper directory of the overlay.
    pub upper: &'a Path,
    /// The mounted overlay.
    pub merged: &'a Path,
    /// Paths from the root that are left out.
    pub except: &'a [&'a str],
    /// Most bytes of content.
    pub max_bytes: u64,
    /// Becomes true when nobody wants the layer any more; reading ends soon then.
    pub stop: &'a AtomicBool,
}

impl LayerStore {
    /// Makes a layer of what was written; `None` when nothing was. Nothing may write while this reads. Blocking.
    ///
    /// # Errors
    /// `Refused` or `TooLarge` when what was written cannot be a layer, `Io` when the host is at fault.
    pub fn capture(&self, capture: Capture<'_>) -> Result<Option<Layer>, TemplateError> {
        self.read(capture)?.map(Staged::commit).transpose()
    }

    /// The first part of [`LayerStore::capture`]: when it returns, everything has been read, and may change again.
    ///
    /// # Errors
    /// As for [`LayerStore::capture`].
    pub fn read(&self, capture: Capture<'_>) -> Result<Option<Staged>, TemplateError> {
        let Capture { upper, merged, except, max_bytes, stop } = capture;
        let source = Source { upper, merged, except, max_bytes, owners: OWNERS, stop };
        let (read, write) = io::pipe().map_err(TemplateError::io("cannot read what was written"))?;
        std::thread::scope(|scope| {
            let packing = scope
                .spawn(move || pack::pack(source, BufWriter::with_capacity(256 * 1024, write)).map(drop));
            let unpacked = self.receive(read, max_bytes);
            let packed = packing.join().unwrap_or_else(|_| {
                let source = io::Error::other("a thread ended early");
                Err(PackError::Io { path: Vec::new(), source })
            });
            match (packed, unpacked) {
                // Whoever gave up first knows why; the other one only finds the pipe closed.
                (Err(PackError::Io { source, .. }), Err(error))
                    if source.kind() == io::ErrorKind::BrokenPipe =>
                {
                    Err(error)
                }
                (Err(error), _) => Err(error.into()),
                (Ok(()), unpacked) => unpacked,
            }
        })
    }

    /// Unpacks what somebody else has packed, perhaps a guest; `None` when nothing is in it but the root. Whether the archive
    /// was whole is for the caller to know: it may end between two entries. Blocking.
    ///
    /// # Errors
    /// As for [`LayerStore::capture`]; nothing is left then.
    pub fn receive(&self, archive: impl Read, max_bytes: u64) -> Result<Option<Staged>, TemplateError> {
        let limits = Limits { bytes: max_bytes.saturating_add(OVERHEAD_BYTES), ..self.limits() };
        let staged = self.clone().with_limits(limits).unpack(archive, &|_| {})?;
        Ok(if staged.says_nothing()? { None } else { Some(staged) })
    }
}

/// Packs a layer as it would be sent to others, and gives the writer back. Blocking.
pub(crate) fn pack_layer<W: Write>(root: &Path, out: W) -> Result<W, TemplateError> {
    let stop = AtomicBool::new(false);
    let (upper, merged) = (root, root);
    let source = Source { upper, merged, except: &[], max_bytes: u64::MAX, owners: OWNERS, stop: &stop };
    Ok(pack::pack(source, out)?)
}
