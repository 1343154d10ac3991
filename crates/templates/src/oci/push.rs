//! Sends layers to a registry as an image. Each is packed anew from its tree, so what arrives has the digests of these
//! archives; what a registry has already is not sent again.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use domain::RuntimeDefaults;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::manifest::{ARCHITECTURE, OS};
use super::reference::Reference;
use super::registry::{Registry, digest_of};
use super::{Access, blocking};
use crate::error::TemplateError;
use crate::store::LayerStore;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A packed layer.
struct Packed {
    file: PathBuf,
    /// Of the archive.
    diff_id: String,
    /// Of what is sent.
    digest: String,
    size: u64,
}

/// Pushes an image of these layers, lowest first. `progress` hears how many layers have arrived.
///
/// # Errors
/// `Registry` when the registry does not answer, `Image` when it refuses, `NoSuchLayer`, or `Io`.
///
/// # Cancel safety
/// Blobs that have arrived stay in the registry; the tag is written last.
pub async fn push_image(
    store: &LayerStore,
    reference: &str,
    access: &Access,
    layers: &[String],
    defaults: &RuntimeDefaults,
    progress: impl Fn(usize),
) -> Result<(), TemplateError> {
    let registry = Arc::new(Registry::for_push(Reference::parse(reference, access)?, access)?);
    let work = store.work_dir()?;
    let mut described = Vec::new();
    let mut diff_ids = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        progress(number);
        let root = store.path(layer).ok_or_else(|| TemplateError::NoSuchLayer(layer.clone()))?;
        let file = work.path().join(format!("{number}.tar.gz"));
        let packed = blocking(move || pack(&root, file)).await?;
        registry.push_file(&packed.file, &packed.digest, packed.size).await?;
        let _the_directory_goes_anyway = std::fs::remove_file(&packed.file);
        described.push(json!({"mediaType": LAYER, "digest": packed.digest, "size": packed.size}));
        diff_ids.push(packed.diff_id);
    }
    let env: Vec<String> = defaults.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut process = json!({"Env": env});
    for (key, value) in [("WorkingDir", &defaults.workdir), ("User", &defaults.user)] {
        if let Some(value) = value {
            process[key] = value.as_str().into();
        }
    }
    if let Some(command) = &defaults.start_cmd {
        process["Cmd"] = json!(["/bin/sh", "-c", command]);
    }
    let config = json!({
        "architecture": ARCHITECTURE,
        "os": OS,
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = config.to_string().into_bytes();
    let digest = digest_of(&config).with_algorithm();
    let size = config.len();
    registry.push_bytes(&digest, config).await?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest, "size": size},
        "layers": described,
    });
    registry.push_manifest(MANIFEST, manifest.to_string().into_bytes()).await?;
    progress(layers.len());
    Ok(())
}

/// Packs a layer into a file. Blocking.
fn pack(root: &Path, file: PathBuf) -> Result<Packed, TemplateError> {
    let failed = || TemplateError::io("cannot pack a layer");
    let out = BufWriter::new(std::fs::File::create(&file).map_err(failed())?);
    let compressed = Hashed::new(GzEncoder::new(Hashed::new(out), Compression::fast()));
    let compressed = crate::capture::pack_layer(root, compressed)?;
    let (encoder, diff_id, _) = compressed.finish();
    let inner = encoder.finish().map_err(failed())?;
    let (mut out, digest, size) = inner.finish();
    out.flush().map_err(failed())?;
    Ok(Packed { file, diff_id, digest, size })
}

/// Hashes and counts what goes through.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    count: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), count: 0 }
    }

    fn finish(self) -> (W, String, u64) {
        let hex: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        (self.inner, format!("sha256:{hex}"), self.count)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(buf)?;
        self.hash.update(&buf[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}
