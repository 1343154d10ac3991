//! Makes a template out of an OCI or Docker image of a registry: finds the image for this machine, downloads its
//! layers side by side, and unpacks each into a layer of its own. Layers that are there already are not fetched again.
//!
//! ```text
//! reference ─▶ index ─▶ … ─▶ manifest ─▶ config ─▶ blobs (files) ─▶ layers, lowest first
//! ```
//!
//! A client names the image, so where registries may be, and where they may lead, is checked ([`guard`]). Nothing a registry
//! says is believed: sizes are bounded, each document and blob is compared with its digest before it is
//! looked at, and each unpacked layer with the image's own list. What an archive may contain is the layer store's matter.

mod auth;
mod blob;
mod fetch;
mod guard;
mod manifest;
mod parents;
mod push;
mod record;
mod reference;
mod registry;
#[cfg(test)]
mod tests;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::RuntimeDefaults;

use self::manifest::{Descriptor, Digest, Document, ImageConfig, Manifest};
use self::reference::Reference;
use self::registry::Registry;
use crate::error::TemplateError;
use crate::progress::Phase;
use crate::store::{Layer, LayerStore};

pub use push::push_image;
pub use record::{base_from_image, recorded_base};

/// Longest pull; as long as the bootstrap it stands in for.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// How deep indexes may lie in each other; two levels are rare already.
const MAX_DEPTH: usize = 4;
/// Documents fetched for one image: an index with many candidates must not keep the search going.
const MAX_DOCUMENTS: usize = 32;

/// How registries are reached.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Registries (`host` or `host:port`) that are spoken to without TLS; those on this machine always are.
    pub plain_http: Vec<String>,
    /// A `config.json` with credentials.
    pub auth_file: Option<PathBuf>,
    /// Registries (`host` or `host:port`) that are asked before the default one for its images, in this order.
    pub mirrors: Vec<String>,
    /// Registries (`host` or `host:port`), and places they lead to, that are not on the public internet. The two lists above
    /// count as well; nothing else of this machine or its networks is ever spoken to.
    pub internal: Vec<String>,
}

impl Access {
    /// For an image that the operator names, not a client: its registry may be anywhere.
    #[must_use]
    pub fn trusting(&self, reference: &str) -> Self {
        let mut access = self.clone();
        // What is no reference is refused where it is used.
        access.internal.extend(Reference::parse(reference, self).ok().map(|known| known.host().to_owned()));
        access
    }
}

/// An image whose layers are in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Lowest first; never empty, no layer twice.
    pub layers: Vec<Layer>,
    /// What the image wants its processes to start with.
    pub defaults: RuntimeDefaults,
    /// Its own command for a shell, `ENTRYPOINT` with `CMD`. Not run unless somebody asks for it.
    pub command: Option<String>,
}

impl Image {
    /// Bytes of file content of all layers.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size_bytes).sum()
    }
}

/// A root file system without a word about processes.
impl From<Layer> for Image {
    fn from(layer: Layer) -> Self {
        Self { layers: vec![layer], defaults: RuntimeDefaults::default(), command: None }
    }
}

/// Brings an image into the store. `max_bytes` bounds the file content of all its layers.
///
/// # Errors
/// `Registry` when the registry does not answer, and a later attempt may succeed; `Image`, `UnsupportedPlatform`,
/// `ImageTooLarge` or an archive's error when it has answered and the image cannot be used.
///
/// # Cancel safety
/// Dropping the future ends downloads and unpacking; layers that were complete by then stay.
pub async fn pull_image(
    store: &LayerStore,
    reference: &str,
    access: &Access,
    max_bytes: u64,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Image, TemplateError> {
    let reference = Reference::parse(reference, access)?;
    let progress: Progress = Arc::new(progress);
    let mut of_mirror = None;
    for mirror in reference.mirrored(access) {
        match pull_from(store, mirror, access, max_bytes, &progress).await {
            // The registry itself may do better.
            Err(error @ (TemplateError::Registry { .. } | TemplateError::Image { .. })) => {
                tracing::info!(%error, "a mirror does not help");
                of_mirror = Some(error);
            }
            other => return other,
        }
    }
    match (pull_from(store, reference, access, max_bytes, &progress).await, of_mirror) {
        // That a mirror has it, and what is wrong with it, tells more than that the registry cannot be reached.
        (Err(TemplateError::Registry { .. }), Some(error @ TemplateError::Image { .. })) => Err(error),
        (pulled, _) => pulled,
    }
}

async fn pull_from(
    store: &LayerStore,
    reference: Reference,
    access: &Access,
    max_bytes: u64,
    progress: &Progress,
) -> Result<Image, TemplateError> {
    let registry = Arc::new(Registry::new(reference, access)?);
    match tokio::time::timeout(LIMIT, pull(store, &registry, max_bytes, progress)).await {
        Ok(pulled) => pulled,
        Err(_) => Err(TemplateError::Registry {
            registry: registry.reference().host().to_owned(),
            reason: format!("the image did not arrive within {} s", LIMIT.as_secs()),
        }),
    }
}

type Progress = Arc<dyn Fn(Phase) + Send + Sync>;

async fn pull(
    store: &LayerStore,
    registry: &Arc<Registry>,
    max_bytes: u64,
    progress: &Progress,
) -> Result<Image, TemplateError> {
    progress(Phase::Manifest);
    let (manifest, config) = resolve(registry).await?;
    let refuse =
        |reason: String| TemplateError::Image { reference: registry.reference().to_string(), reason };
    if manifest.layers.len() != config.diff_ids().len() {
        return Err(refuse("its manifest and its configuration disagree about its layers".to_owned()));
    }
    if let Some(foreign) = manifest.layers.iter().find(|layer| !is_layer(&layer.media_type)) {
        let kind: String = foreign.media_type.chars().take(100).collect();
        return Err(refuse(format!("it has a layer of the kind `{kind}`, which is not understood")));
    }
    let diff_ids = config.diff_ids().to_vec();
    let too_large = || TemplateError::ImageTooLarge {
        reference: registry.reference().to_string(),
        limit_mib: max_bytes / (1024 * 1024),
    };
    let command = config.command();
    let defaults = config.defaults().map_err(refuse)?;

    // Of a layer that occurs twice only the upper one counts: it hides the lower one entirely.
    let mut seen = BTreeSet::new();
    let mut wanted: Vec<(Descriptor, Digest)> =
        manifest.layers.into_iter().zip(diff_ids).rev().filter(|(_, id)| seen.insert(id.clone())).collect();
    wanted.reverse();

    let mut known = BTreeMap::new();
    for (_, id) in &wanted {
        let (store, id) = (store.clone(), id.hex().to_owned());
        let found = blocking(move || Ok(if store.keep(&id)? { store.measure(&id) } else { None })).await?;
        known.extend(found.map(|layer| (layer.digest.clone(), layer)));
    }
    let missing: Vec<(Descriptor, Digest)> =
        wanted.iter().filter(|(_, id)| !known.contains_key(id.hex())).cloned().collect();
    let kept: u64 = known.values().map(|layer| layer.size_bytes).sum();
    // Compressed sizes are a lower bound in practice, and spare a download that cannot end well.
    let announced = missing.iter().fold(kept, |sum, (blob, _)| sum.saturating_add(blob.size));
    if announced > max_bytes {
        return Err(too_large());
    }
    let room = max_bytes - kept;
    let fetched =
        fetch::layers(store, registry, missing, room, progress).await.map_err(|error| match error {
            TemplateError::TooLarge { unit: "bytes", .. } => too_large(),
            TemplateError::BadArchive(_) => refuse(error.to_string()),
            TemplateError::Refused { .. } | TemplateError::TooLarge { .. } => TemplateError::ImageUnsafe {
                reference: registry.reference().to_string(),
                reason: error.to_string(),
            },
            other => other,
        })?;
    known.extend(fetched.into_iter().map(|layer| (layer.digest.clone(), layer)));
    // Archives without entries are not among them.
    let mut layers: Vec<Layer> = wanted.iter().filter_map(|(_, id)| known.remove(id.hex())).collect();
    // Nothing of the layers below an opaque root is ever seen. Overlayfs looks at the mark of directories only.
    if let Some(lowest) = layers.iter().rposition(|layer| store.hides_all_below(&layer.digest)) {
        layers.drain(..lowest);
    }
    if layers.is_empty() {
        return Err(TemplateError::Image {
            reference: registry.reference().to_string(),
            reason: "it has no content".to_owned(),
        });
    }
    let (store, checked) = (store.clone(), layers.clone());
    layers.extend(blocking(move || parents::restored(&store, &checked)).await?);
    progress(Phase::Done);
    Ok(Image { layers, defaults, command })
}

/// Descends from the reference to the one image for this machine.
async fn resolve(registry: &Registry) -> Result<(Manifest, ImageConfig), TemplateError> {
    let refuse =
        |reason: String| TemplateError::Image { reference: registry.reference().to_string(), reason };
    let mut pending = vec![(registry.reference().version().to_owned(), 0)];
    let mut found: Vec<String> = Vec::new();
    let mut fetched = 0;
    while let Some((name, depth)) = pending.pop() {
        fetched += 1;
        if fetched > MAX_DOCUMENTS || depth > MAX_DEPTH {
            return Err(refuse("its indexes lead too far".to_owned()));
        }
        let (body, _) = registry.manifest(&name).await?;
        match manifest::parse(&body).map_err(refuse)? {
            Document::Index(index) => {
                found.extend(index.platforms());
                let names: Vec<_> =
                    index.candidates().map(|entry| (entry.digest.with_algorithm(), depth + 1)).collect();
                // Taken from the end, so the best comes last.
                pending.extend(names.into_iter().rev());
            }
            Document::Manifest(manifest) => {
                let config = registry.document(&manifest.config).await?;
                let config = ImageConfig::parse(&config).map_err(refuse)?;
                if config.fits_this_machine() {
                    return Ok((manifest, config));
                }
                found.push(config.platform());
            }
        }
    }
    found.retain(|platform| platform.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)));
    found.sort();
    found.dedup();
    found.truncate(20);
    Err(TemplateError::UnsupportedPlatform {
        reference: registry.reference().to_string(),
        wanted: format!("{}/{}", manifest::OS, manifest::ARCHITECTURE),
        found: found.join(", "),
    })
}

/// Tar archives, however compressed; Docker's and OCI's names. A missing name is left to the archive's own first bytes.
fn is_layer(media_type: &str) -> bool {
    media_type.is_empty()
        || media_type.starts_with("application/vnd.oci.image.layer.")
        || media_type.starts_with("application/vnd.docker.image.rootfs.diff.")
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| TemplateError::Io { what: "unpacking a layer", source: io::Error::other(error) })?
}
