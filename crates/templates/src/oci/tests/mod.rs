//! Images in a real registry, made by hand and by the usual tools, and a registry that lies. Needs root, as the product
//! does, and the Debian packages that `scripts/install-deps.sh tests` installs.

mod hops;
mod hostile;
mod real;
mod resume;
mod serve;

use std::io::Write;

use sha2::{Digest, Sha256};

use super::{Access, Image, pull_image};
use crate::error::TemplateError;
use crate::tests::{Archive, Place};

const GIB: u64 = 1 << 30;

async fn pull(place: &Place, reference: &str) -> Result<Image, TemplateError> {
    pull_image(&place.store, reference, &Access::default().trusting(reference), GIB, |_| {}).await
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A blob and the media type it is described with.
#[derive(Clone)]
struct Blob {
    kind: &'static str,
    bytes: Vec<u8>,
}

impl Blob {
    fn layer(archive: Archive) -> (Self, String) {
        let plain = archive.bytes();
        let packed = Self { kind: "application/vnd.oci.image.layer.v1.tar+gzip", bytes: gzip(&plain) };
        (packed, digest(&plain))
    }

    fn descriptor(&self) -> serde_json::Value {
        serde_json::json!({"mediaType": self.kind, "digest": digest(&self.bytes), "size": self.bytes.len()})
    }
}

/// An image as it is pushed: the manifest, and the blobs it names.
#[derive(Clone)]
struct Pushed {
    blobs: Vec<Blob>,
    manifest: Blob,
}

/// Puts an image together; the configuration's `process` is what Docker calls `Config`.
fn image(layers: Vec<(Blob, String)>, architecture: &str, process: serde_json::Value) -> Pushed {
    let (mut blobs, ids): (Vec<Blob>, Vec<String>) = layers.into_iter().unzip();
    let config = serde_json::json!({
        "os": "linux", "architecture": architecture, "config": process,
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = Blob { kind, bytes: config.to_string().into_bytes() };
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor(),
        "layers": blobs.iter().map(Blob::descriptor).collect::<Vec<_>>(),
    });
    blobs.push(config);
    let kind = "application/vnd.oci.image.manifest.v1+json";
    Pushed { blobs, manifest: Blob { kind, bytes: manifest.to_string().into_bytes() } }
}

/// An index over images for platforms (`None`: it does not say).
fn index(entries: &[(&Blob, Option<&str>)]) -> Blob {
    let manifests: Vec<_> = entries
        .iter()
        .map(|(blob, architecture)| {
            let mut entry = blob.descriptor();
            if let Some(architecture) = architecture {
                entry["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
            }
            entry
        })
        .collect();
    let kind = "application/vnd.oci.image.index.v1+json";
    let body = serde_json::json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests});
    Blob { kind, bytes: body.to_string().into_bytes() }
}
