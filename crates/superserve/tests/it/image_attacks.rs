//! Images and archives that attack whoever unpacks them, by the ways in that clients and operators have: a registry and a
//! build, and `template import`. Each is refused with the right code, or harmless; and of everything around the state
//! directory nothing has changed, by a hash over the whole tree.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::BIN;
use crate::registry::Registry;
use crate::templates::Bed;

const FILE: u8 = b'0';
const HARD: u8 = b'1';
const LINK: u8 = b'2';
const CHAR: u8 = b'3';
const BLOCK: u8 = b'4';
const DIRECTORY: u8 = b'5';
const FIFO: u8 = b'6';
const PAX: u8 = b'x';
const LONG_NAME: u8 = b'L';
const SPARSE: u8 = b'S';

/// An archive as no honest tool writes it.
#[derive(Clone, Default)]
struct Archive(Vec<u8>);

impl Archive {
    /// Kind, name, link target, content.
    fn put(self, kind: u8, name: &str, link: &str, content: &[u8]) -> Self {
        self.put_as(kind, name, link, content, |_| {})
    }

    fn put_as(mut self, kind: u8, name: &str, link: &str, content: &[u8], edit: impl Fn(&mut [u8])) -> Self {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
        header[136..148].copy_from_slice(b"07346545000\0");
        header[156] = kind;
        header[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        edit(&mut header);
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str) -> Self {
        self.put(FILE, name, "", b"attack")
    }

    fn pax(self, key: &str, value: &str) -> Self {
        let body = key.len() + value.len() + 3;
        let length = body + (body + body.to_string().len()).to_string().len();
        self.put(PAX, "pax", "", format!("{length} {key}={value}\n").as_bytes())
    }

    fn bytes(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// What a registry is made to serve, honest unless changed.
struct Pushed {
    layer: Vec<u8>,
    kind: &'static str,
    /// Of what it unpacks to.
    diff_id: String,
    /// As the manifest has it.
    size: usize,
}

impl Pushed {
    fn of(archive: &[u8]) -> Self {
        Self {
            layer: archive.to_vec(),
            kind: "application/vnd.oci.image.layer.v1.tar",
            diff_id: digest(archive),
            size: archive.len(),
        }
    }

    async fn push(&self, http: &reqwest::Client, registry: &Registry, name: &str) {
        let at = format!("http://{}/v2/library/{name}", registry.address);
        let config = json!({
            "os": "linux", "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "config": {}, "rootfs": {"type": "layers", "diff_ids": [self.diff_id]},
        });
        let config = config.to_string().into_bytes();
        for blob in [&self.layer, &config] {
            let begun = http.post(format!("{at}/blobs/uploads/")).send().await.unwrap();
            let place = begun.headers()["location"].to_str().unwrap().to_owned();
            let put = http.put(format!("{place}&digest={}", digest(blob))).body(blob.clone());
            assert_eq!(put.send().await.unwrap().status(), 201);
        }
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len()},
            "layers": [{"mediaType": self.kind, "digest": digest(&self.layer), "size": self.size}],
        });
        let put = http
            .put(format!("{at}/manifests/latest"))
            .header("content-type", kind)
            .body(manifest.to_string());
        let put = put.send().await.unwrap();
        assert_eq!(put.status(), 201, "{name}: {}", put.text().await.unwrap());
    }
}

/// Everything below a directory but some places, content, owners, modes, links and times included.
fn hash(root: &Path, except: &[&Path]) -> String {
    let mut lines = BTreeSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        if except.contains(&path.as_path()) {
            continue;
        }
        let of = path.symlink_metadata().unwrap();
        let content = if of.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if of.is_file() {
            std::fs::read(&path).unwrap()
        } else if of.is_symlink() {
            std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            Vec::new()
        };
        lines.insert(format!(
            "{} {:o} {} {} {} {} {} {} {}",
            path.display(),
            of.mode(),
            of.uid(),
            of.gid(),
            of.nlink(),
            of.rdev(),
            of.mtime(),
            of.mtime_nsec(),
            digest(&content)
        ));
    }
    digest(lines.into_iter().collect::<Vec<_>>().join("\n").as_bytes())
}

/// What lies around a state directory, and might be reached.
fn surround(outer: &Path) {
    std::fs::create_dir_all(outer.join("victims/sub")).unwrap();
    for name in ["victim", "victims/a", "victims/sub/b"] {
        std::fs::write(outer.join(name), name).unwrap();
    }
    std::fs::set_permissions(outer.join("victims/a"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("victims/a", outer.join("link")).unwrap();
}

/// Name, archive, and the code of the build; `boot_failed` means that it was unpacked, and has no shell.
fn corpus(outer: &Path) -> Vec<(&'static str, Archive, &'static str)> {
    let new = Archive::default;
    let away = outer.to_str().unwrap();
    let victim = outer.join("victim");
    let victim = victim.to_str().unwrap();
    // However deep the layer lies, this leads to the root.
    let up = "../".repeat(20);
    let climbing = format!("{}{victim}", up.trim_end_matches('/'));
    let device = |header: &mut [u8]| {
        header[329..337].copy_from_slice(b"0000010\0");
        header[337..345].copy_from_slice(b"0000000\0");
    };
    let nothing = |header: &mut [u8]| {
        header[329..337].copy_from_slice(b"0000000\0");
        header[337..345].copy_from_slice(b"0000000\0");
    };
    let mode = |mode: &'static [u8]| move |header: &mut [u8]| header[100..108].copy_from_slice(mode);
    let unsafe_ = "image_unsafe";
    let harmless = "boot_failed";
    vec![
        ("absolute-name", new().file(victim), unsafe_),
        ("climbing-name", new().file(&climbing), unsafe_),
        ("climbing-inside", new().put(DIRECTORY, "a/", "", b"").file("a/../../../victim"), unsafe_),
        ("through-absolute-link", new().put(LINK, "out", away, b"").file("out/victim"), unsafe_),
        (
            "through-climbing-link",
            new().put(LINK, "out", &format!("{up}{away}"), b"").file("out/victim"),
            unsafe_,
        ),
        (
            "through-two-links",
            new().put(LINK, "a", away, b"").put(LINK, "b", "a", b"").file("b/victim"),
            unsafe_,
        ),
        (
            "directory-over-link",
            new().put(LINK, "out", away, b"").put(DIRECTORY, "out/", "", b"").file("out/victim"),
            unsafe_,
        ),
        ("whiteout-through-link", new().put(LINK, "out", away, b"").file("out/.wh.victim"), unsafe_),
        ("opaque-through-link", new().put(LINK, "out", away, b"").file("out/.wh..wh..opq"), unsafe_),
        ("hard-link-absolute", new().put(HARD, "a", victim, b""), unsafe_),
        ("hard-link-climbing", new().put(HARD, "a", &climbing, b""), unsafe_),
        (
            "hard-link-through-link",
            new().put(LINK, "out", away, b"").put(HARD, "a", "out/victim", b""),
            unsafe_,
        ),
        // A second name of the link itself, which the file then replaces.
        ("hard-link-to-link", new().put(LINK, "a", victim, b"").put(HARD, "b", "a", b"").file("b"), harmless),
        ("file-over-link", new().put(LINK, "a", victim, b"").file("a"), harmless),
        ("fifo-over-link", new().put(LINK, "a", victim, b"").put(FIFO, "a", "", b""), harmless),
        (
            "devices",
            new().put_as(BLOCK, "sda", "", b"", device).put_as(CHAR, "mem", "", b"", device).file("a"),
            harmless,
        ),
        ("forged-whiteout", new().put_as(CHAR, "bin", "", b"", nothing).file("a"), harmless),
        ("set-id", new().put_as(FILE, "su", "", b"x", mode(b"0006755\0")), harmless),
        (
            "forged-overlay",
            new()
                .pax("SCHILY.xattr.trusted.overlay.redirect", "/etc")
                .put(DIRECTORY, "d/", "", b"")
                .file("d/a"),
            harmless,
        ),
        ("forged-metacopy", new().pax("SCHILY.xattr.trusted.overlay.metacopy", "").file("a"), harmless),
        ("whiteout-of-dot", new().file("a/.wh.."), unsafe_),
        ("whiteout-of-dots", new().file("a/.wh..."), unsafe_),
        ("whiteout-of-nothing", new().file(".wh."), unsafe_),
        ("whiteout-of-mark", new().file(".wh..wh.plnk"), unsafe_),
        ("below-whiteout", new().file(".wh.a/b"), unsafe_),
        ("whiteout-as-link", new().put(LINK, ".wh.a", victim, b""), unsafe_),
        (
            "foreign-owner",
            new().put_as(FILE, "a", "", b"", |header| header[108..116].copy_from_slice(b"0300000\0")),
            unsafe_,
        ),
        ("long-name", new().put(LONG_NAME, "././@LongLink", "", &[b'a'; 5000]).file("a"), unsafe_),
        ("long-part", new().pax("path", &"a".repeat(300)).file("a"), unsafe_),
        ("large-pax", new().pax("comment", &"a".repeat(70_000)).file("a"), unsafe_),
        ("two-sizes", new().pax("size", "99999999").file("a"), unsafe_),
        ("sparse", new().put(SPARSE, "a", "", b"x"), unsafe_),
        ("sparse-pax", new().pax("GNU.sparse.realsize", "99999999999").file("a"), unsafe_),
        ("unknown-kind", new().put(b'Z', "a", "", b""), unsafe_),
        (
            "negative-size",
            new().put_as(FILE, "a", "", b"", |header| header[124..136].copy_from_slice(&[0xff; 12])),
            "image_pull_failed",
        ),
        (
            "beyond-the-end",
            new().put_as(FILE, "a", "", b"x", |header| header[124..136].copy_from_slice(b"00000077777\0")),
            "image_pull_failed",
        ),
    ]
}

#[tokio::test]
async fn whatever_an_image_has_nothing_outside_changes() {
    let Some(registry) = Registry::start().await else { return };
    registry.push_small("library/small:latest");
    let outer = tempfile::Builder::new().prefix("ss-test-").tempdir().unwrap();
    let outer_path = outer.path().canonicalize().unwrap();
    surround(&outer_path);
    let state = tempfile::Builder::new().prefix("state-").tempdir_in(&outer_path).unwrap();
    let state_path = state.path().to_owned();
    let Some(bed) = Bed::over_state(registry, state, &state_path.join("layers"), &[]).await else { return };
    // Another sandbox's view, the keys, and the layers of others are around it as well.
    bed.ready("innocent", json!({"from": "small"})).await;
    let innocent: Vec<_> = bed.layers();
    let own: Vec<_> = innocent
        .iter()
        .map(|layer| state_path.join("layers").join(layer))
        .filter(|path| !path.is_symlink())
        .collect();
    let own = own.first().unwrap().clone();
    let all = || {
        let keys = ["tls", "master.key", "secret.keys", "api-key"].map(|name| state_path.join(name));
        let mut found = vec![hash(&outer_path, &[&state_path]), hash(&own, &[])];
        found.extend(keys.iter().map(|key| hash(key, &[])));
        found
    };
    let before = all();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let archive_file = bed.registry.dir().join("attack.tar");
    for (name, archive, code) in corpus(&outer_path) {
        let bytes = archive.bytes();
        Pushed::of(&bytes).push(&http, &bed.registry, name).await;
        let why = bed.failed(name, json!({"from": name})).await;
        assert!(why.starts_with(&format!("{code}: ")), "{name}: {why}");
        // The same bytes by the operator's way in.
        std::fs::write(&archive_file, &bytes).unwrap();
        let output = Command::new(BIN)
            .args(["template", "--state-dir", state_path.to_str().unwrap(), "import", "--name", "attack"])
            .args(["--layers-dir", state_path.join("layers").to_str().unwrap()])
            .arg(&archive_file)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), code == "boot_failed", "{name}: {told}");
        if output.status.success() {
            look_at_layers(&bed, name);
            assert_eq!(bed.delete("attack").await, 204);
        } else {
            assert!(told.contains("the archive"), "{name}: {told}");
        }
        assert_eq!(all(), before, "{name} changed something");
    }

    lies(&bed, &http).await;
    bombs(&bed, &http).await;
    assert_eq!(all(), before);
    bed.nothing_runs();
    // Nothing half-made is left, and what nothing refers to goes.
    let names = || {
        let names = std::fs::read_dir(state_path.join("layers")).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert!(!names().iter().any(|name| name.starts_with(".tmp-")), "{:?}", names());
    let (id, token) = bed.p.create(json!({"from_template": "innocent"})).await;
    assert_eq!(bed.p.run(&id, &token, "cat /srv/old/a").await, "srv/old/a");
}

/// Of what was unpacked, nothing is a device, and nothing belongs to an owner outside.
fn look_at_layers(bed: &Bed, name: &str) {
    let layers = bed.p.state_dir().join("layers");
    for layer in bed.layers() {
        let mut pending = vec![layers.join(layer)];
        while let Some(path) = pending.pop() {
            let of = path.symlink_metadata().unwrap();
            if of.is_symlink() && of.uid() == 0 {
                // The shared base layer.
                continue;
            }
            let device = of.file_type().is_char_device() || of.file_type().is_block_device();
            assert!(!device || of.rdev() == 0, "{name}: {}", path.display());
            assert!(of.uid() >= 1_000_000 && of.gid() >= 1_000_000 || device, "{name}: {}", path.display());
            if of.is_dir() {
                pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
}

/// What a registry says about an image is not so.
async fn lies(bed: &Bed, http: &reqwest::Client) {
    let honest = Archive::default().file("a").bytes();
    let other = Archive::default().file("b").bytes();
    let cases = [
        (
            "wrong-content",
            Pushed { diff_id: digest(&other), ..Pushed::of(&honest) },
            "unpacks to something else",
        ),
        ("longer", Pushed { size: honest.len() - 512, ..Pushed::of(&honest) }, "longer than"),
        ("shorter", Pushed { size: honest.len() + 512, ..Pushed::of(&honest) }, "shorter than its manifest"),
        ("xz", Pushed::of(&[0xfd, b'7', b'z', b'X', b'Z', 0, 1, 2]), "xz"),
        ("noise", Pushed::of(&[7; 4096]), "cannot be read"),
    ];
    for (name, pushed, told) in cases {
        pushed.push(http, &bed.registry, name).await;
        let why = bed.failed(name, json!({"from": name})).await;
        assert!(why.starts_with("image_pull_failed: ") && why.contains(told), "{name}: {why}");
    }
    // Other bytes under the digest, as a broken or bought registry would have them.
    Pushed::of(&other).push(http, &bed.registry, "tampered").await;
    let hex = digest(&other).split_off("sha256:".len());
    let data = bed
        .registry
        .dir()
        .join("data/docker/registry/v2/blobs/sha256")
        .join(&hex[..2])
        .join(&hex)
        .join("data");
    std::fs::write(data, &honest).unwrap();
    let why = bed.failed("tampered", json!({"from": "tampered"})).await;
    assert!(why.starts_with("image_pull_failed: ") && why.contains("not what its digest says"), "{why}");
}

/// Small in the registry, larger than the disk of the template when unpacked.
async fn bombs(bed: &Bed, http: &reqwest::Client) {
    let dir = bed.registry.dir();
    std::fs::File::create(dir.join("zeros")).unwrap().set_len(1_100 << 20).unwrap();
    for (name, packer, kind) in [
        ("gzip-bomb", "gzip", "application/vnd.oci.image.layer.v1.tar+gzip"),
        ("zstd-bomb", "zstd", "application/vnd.oci.image.layer.v1.tar+zstd"),
    ] {
        if Command::new(packer).arg("--version").output().is_err() {
            eprintln!("SKIPPED: {packer} is not installed");
            continue;
        }
        let script = format!("tar -cf - zeros | {packer} -1 -c > bomb");
        bed.registry.run("sh", &["-c", &script]);
        let layer = std::fs::read(dir.join("bomb")).unwrap();
        assert!(layer.len() < 10_000_000);
        let size = layer.len();
        Pushed { layer, kind, diff_id: digest(b""), size }.push(http, &bed.registry, name).await;
        let why = bed.failed(name, json!({"from": name})).await;
        assert!(why.starts_with("image_too_large: ") && why.contains("1024 MiB"), "{name}: {why}");
    }
}
