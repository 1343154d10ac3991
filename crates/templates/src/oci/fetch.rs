//! The layers of an image that are not there yet: downloaded side by side, and each unpacked as soon as it has come, while
//! others are still on their way. They appear in the store together, after one flush.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::blob::Heard;
use super::manifest::{Descriptor, Digest};
use super::registry::Registry;
use super::{Progress, blocking};
use crate::error::TemplateError;
use crate::progress::Phase;
use crate::store::{Layer, LayerStore, Limits, Staged};
use pack::Stoppable;

/// Blobs fetched at once: enough to fill a line, few enough for registries that count connections.
const DOWNLOADS: usize = 3;
/// Archives unpacked at once; each keeps a processor busy.
const UNPACKING: usize = 2;

/// What the tasks of one pull share.
struct Shared {
    registry: Arc<Registry>,
    store: LayerStore,
    /// Of the content of one layer.
    max_bytes: u64,
    downloads: Semaphore,
    unpacking: Semaphore,
    stop: CancellationToken,
    told: Told,
}

/// Fetches layers; those without entries are not among what is returned.
///
/// # Errors
/// The first one of any layer; then nothing is added.
///
/// # Cancel safety
/// Dropping the future ends downloads and unpacking.
pub(super) async fn layers(
    store: &LayerStore,
    registry: &Arc<Registry>,
    missing: Vec<(Descriptor, Digest)>,
    max_bytes: u64,
    progress: &Progress,
) -> Result<Vec<Layer>, TemplateError> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let digests: BTreeSet<_> = missing.iter().map(|(blob, _)| &blob.digest).collect();
    if digests.len() < missing.len() {
        let cause = "two layers of it are the same bytes and should be different";
        return Err(TemplateError::BadArchive(io::Error::new(io::ErrorKind::InvalidData, cause)));
    }
    let stop = CancellationToken::new();
    let _whoever_leaves_stops_it = stop.clone().drop_guard();
    let work = store.work_dir()?;
    let told = Told {
        progress: Arc::clone(progress),
        bytes: missing.iter().map(|(blob, _)| blob.size).sum(),
        came: AtomicU64::new(0),
        layers: missing.len() as u64,
        unpacked: AtomicU64::new(0),
    };
    let shared = Arc::new(Shared {
        registry: Arc::clone(registry),
        store: store.clone(),
        max_bytes,
        downloads: Semaphore::new(DOWNLOADS),
        unpacking: Semaphore::new(UNPACKING),
        stop,
        told,
    });
    let mut running = JoinSet::new();
    for (blob, id) in missing {
        let file = work.path().join(blob.digest.hex());
        running.spawn(Arc::clone(&shared).layer(blob, id, file));
    }
    let mut staged = Vec::new();
    let mut failed = None;
    while let Some(ended) = running.join_next().await {
        let ended = ended.unwrap_or_else(|error| {
            Err(TemplateError::Io { what: "fetching a layer", source: io::Error::other(error) })
        });
        match ended {
            Ok(layer) => staged.extend(layer),
            // Later ones only say that they were stopped.
            Err(error) => {
                failed.get_or_insert(error);
                shared.stop.cancel();
            }
        }
    }
    drop(work);
    if let Some(error) = failed {
        return Err(error);
    }
    if staged.iter().map(Staged::size_bytes).sum::<u64>() > max_bytes {
        return Err(TemplateError::TooLarge { limit: max_bytes, unit: "bytes" });
    }
    let store = store.clone();
    blocking(move || {
        store.flush()?;
        staged.into_iter().map(Staged::publish).collect()
    })
    .await
}

impl Shared {
    async fn layer(
        self: Arc<Self>,
        blob: Descriptor,
        id: Digest,
        file: std::path::PathBuf,
    ) -> Result<Option<Staged>, TemplateError> {
        tokio::select! {
            downloaded = self.download(&blob, &file) => downloaded?,
            () = self.stop.cancelled() => return Err(stopped()),
        }
        let turn = self.unpacking.acquire().await;
        let this = Arc::clone(&self);
        let staged = blocking(move || this.unpack(&file, &id)).await;
        drop(turn);
        self.told.unpacked();
        staged
    }

    async fn download(&self, blob: &Descriptor, file: &Path) -> Result<(), TemplateError> {
        let _turn = self.downloads.acquire().await;
        self.registry.blob(blob, file, &self.store, &|heard| self.told.heard(heard)).await
    }

    /// Unpacks one blob and compares it with the image's own list; `None` for an archive without entries. Blocking.
    fn unpack(&self, file: &Path, id: &Digest) -> Result<Option<Staged>, TemplateError> {
        let limits = Limits::default();
        let store =
            self.store.clone().with_limits(Limits { bytes: limits.bytes.min(self.max_bytes), ..limits });
        let archive =
            std::fs::File::open(file).map_err(TemplateError::io("cannot read a downloaded layer"))?;
        let staged =
            store.unpack(Stoppable { inner: archive, unwanted: || self.stop.is_cancelled() }, &|_| {})?;
        if staged.digest() != id.hex() {
            return Err(TemplateError::BadArchive(io::Error::new(
                io::ErrorKind::InvalidData,
                "a layer unpacks to something else than the configuration says",
            )));
        }
        // The archive is never needed again, and images are large.
        let _the_directory_goes_anyway = std::fs::remove_file(file);
        Ok(Some(staged).filter(|staged| !staged.is_empty()))
    }
}

/// What is told of the whole.
struct Told {
    progress: Progress,
    bytes: u64,
    came: AtomicU64,
    layers: u64,
    unpacked: AtomicU64,
}

impl Told {
    fn heard(&self, heard: Heard) {
        let total = self.bytes;
        match heard {
            Heard::Came(count) => {
                let done = self.came.fetch_add(count, Ordering::Relaxed) + count;
                (self.progress)(Phase::Pulling { done, total });
                if done == total {
                    self.unpacking(0);
                }
            }
            Heard::Lost(count) => {
                self.came.fetch_sub(count, Ordering::Relaxed);
            }
            Heard::Again => (self.progress)(Phase::Again { done: self.came.load(Ordering::Relaxed), total }),
        }
    }

    fn unpacked(&self) {
        self.unpacking(1);
    }

    /// Told once everything has come: before, the downloads are what takes the time.
    fn unpacking(&self, more: u64) {
        let done = self.unpacked.fetch_add(more, Ordering::Relaxed) + more;
        if self.came.load(Ordering::Relaxed) == self.bytes {
            (self.progress)(Phase::Unpacking { done, total: self.layers });
        }
    }
}

fn stopped() -> TemplateError {
    TemplateError::Io { what: "fetching a layer", source: pack::stopped() }
}
