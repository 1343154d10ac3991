//! Which layers the configured image of `superserve/base` became. Kept beside the layers, as the bootstrap's result is,
//! so that an image is pulled once and again only when another one is named.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use domain::RuntimeDefaults;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Access, Image, pull_image};
use crate::error::TemplateError;
use crate::progress::Phase;
use crate::store::{Layer, LayerStore};

/// A record is small; a larger file is not one.
const MAX_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Whole, since the file's name has only a part of its hash.
    reference: String,
    /// Digest and bytes, lowest first.
    layers: Vec<(String, u64)>,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
}

/// Finds the layers of an image pulled before, or pulls it.
///
/// # Errors
/// As [`pull_image`].
///
/// # Cancel safety
/// As [`pull_image`].
pub async fn base_from_image(
    store: &LayerStore,
    reference: &str,
    access: &Access,
    max_bytes: u64,
    progress: impl Fn(Phase) + Send + Sync + 'static,
) -> Result<Image, TemplateError> {
    if let Some(image) = recorded_base(store.dir(), reference) {
        return Ok(image);
    }
    let image = pull_image(store, reference, access, max_bytes, progress).await?;
    write(store, reference, &image)?;
    Ok(image)
}

/// What [`base_from_image`] would find in a layer directory. Changes nothing.
#[must_use]
pub fn recorded_base(layers_dir: &Path, reference: &str) -> Option<Image> {
    let path = path(layers_dir, reference);
    if fs::metadata(&path).ok()?.len() > MAX_BYTES {
        return None;
    }
    let record: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let there =
        |(digest, _): &(String, u64)| crate::store::is_digest(digest) && layers_dir.join(digest).is_dir();
    (record.reference == reference && !record.layers.is_empty() && record.layers.iter().all(there))
        .then_some(())?;
    Some(Image {
        layers: record.layers.into_iter().map(|(digest, size_bytes)| Layer { digest, size_bytes }).collect(),
        defaults: RuntimeDefaults {
            env: record.env,
            workdir: record.workdir,
            user: record.user,
            ..RuntimeDefaults::default()
        },
        // The base is recorded for its sandboxes, in which nothing runs by itself.
        command: None,
    })
}

fn path(layers_dir: &Path, reference: &str) -> PathBuf {
    let hash: String = Sha256::digest(reference).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    layers_dir.join(format!("base-image-{hash}"))
}

fn write(store: &LayerStore, reference: &str, image: &Image) -> Result<(), TemplateError> {
    let failed = || TemplateError::io("cannot record the base image");
    let record = Record {
        reference: reference.to_owned(),
        layers: image.layers.iter().map(|layer| (layer.digest.clone(), layer.size_bytes)).collect(),
        env: image.defaults.env.clone(),
        workdir: image.defaults.workdir.clone(),
        user: image.defaults.user.clone(),
    };
    let text = serde_json::to_vec(&record).map_err(std::io::Error::other).map_err(failed())?;
    let work = store.work_dir()?;
    let fresh = work.path().join("record");
    fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path(store.dir(), reference))).map_err(failed())
}
