//! Archives as attackers and ordinary tools write them, against a real directory. Needs root, as the product does.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use tar::{EntryType, Header};

use crate::error::TemplateError;
use crate::source::Source;
use crate::store::{Layer, LayerStore, Limits};
use crate::tree::Tree;
use crate::{ID_SHIFT, archive, base_is_made, bootstrap_base};

/// Writes archives entry by entry, also such as no honest tool writes.
#[derive(Default)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        name: &[u8],
        link: &[u8],
        data: &[u8],
        edit: impl Fn(&mut Header),
    ) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.set_mode(0o640);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        edit(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, data: &str) -> Self {
        self.entry(EntryType::Regular, name.as_bytes(), b"", data.as_bytes(), |_| {})
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name.as_bytes(), b"", b"", |h| h.set_mode(0o750))
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name.as_bytes(), target.as_bytes(), b"", |_| {})
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let body = key.len() + value.len() + 3;
            let length = body + (body + body.to_string().len()).to_string().len();
            data.extend_from_slice(format!("{length} {key}=").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.entry(EntryType::XHeader, b"pax", b"", &data, |_| {})
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) store: LayerStore,
}

pub(crate) fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = LayerStore::open(dir.path().join("layers")).unwrap();
    Place { dir, store }
}

impl Place {
    pub(crate) fn import(&self, archive: Archive) -> Result<Layer, TemplateError> {
        self.store.import_tar(&archive.bytes()[..], &|_| {})
    }

    /// What lies in the layer directory, locks and notes aside.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("layers")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with("lock") && name != ".adding").collect()
    }
}

#[test]
fn a_layer_is_what_the_archive_says_with_shifted_owners() {
    let place = place();
    let long = "n".repeat(200);
    let archive = Archive::default()
        .directory("./")
        .directory("bin/")
        .entry(EntryType::Regular, b"bin/su", b"", b"suid", |h| h.set_mode(0o4755))
        .symlink("etc/link", "/etc/passwd")
        .hard_link("bin/su2", "bin/su")
        .hard_link("etc/link2", "etc/link")
        .entry(EntryType::Fifo, b"run/fifo", b"", b"", |_| {})
        .entry(EntryType::Char, b"dev/null", b"", b"", |_| {})
        .entry(EntryType::Block, b"dev/sda", b"", b"", |_| {})
        .pax(&[("path", long.as_bytes()), ("mtime", b"12.75"), ("uid", b"65535"), ("comment", b"a\nb")])
        .file("short", "long")
        .entry(EntryType::GNULongName, b"././@LongLink", b"", format!("{long}2\0").as_bytes(), |_| {})
        .file("short", "gnu")
        .directory("empty/");
    let bytes = archive.bytes();
    let layer = place.store.import_tar(&bytes[..], &|_| {}).unwrap();
    assert_eq!(layer.size_bytes, 4 + 4 + 3);

    let root = place.store.path(&layer.digest).unwrap();
    let meta = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    let su = meta("bin/su");
    assert_eq!((su.uid(), su.gid(), su.mode() & 0o7777), (ID_SHIFT + 7, ID_SHIFT + 8, 0o4755));
    assert_eq!((su.nlink(), su.mtime()), (2, 1_000_000_000));
    assert_eq!((meta("bin").mode() & 0o7777, meta("bin").mtime()), (0o750, 1_000_000_000));
    assert_eq!((meta("etc").uid(), meta("etc").mode() & 0o7777), (ID_SHIFT, 0o755));
    assert_eq!(fs::read_link(root.join("etc/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!((meta("etc/link").uid(), meta("etc/link").nlink()), (ID_SHIFT + 7, 2));
    assert!(meta("run/fifo").file_type().is_fifo());
    assert!(!root.join("dev").exists());
    assert_eq!(fs::read_to_string(root.join(&long)).unwrap(), "long");
    assert_eq!((meta(&long).uid(), meta(&long).mtime()), (ID_SHIFT + 65_535, 12));
    assert_eq!(fs::read_to_string(root.join(format!("{long}2"))).unwrap(), "gnu");

    // The same bytes, packed or not, are the same layer.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&bytes).unwrap();
    let again = place.store.import_tar(&packed.finish().unwrap()[..], &|_| {}).unwrap();
    assert_eq!(again, layer);
    assert_eq!(place.names(), std::slice::from_ref(&layer.digest));
    assert_eq!(place.store.list().unwrap(), std::slice::from_ref(&layer.digest));

    place.store.remove(&layer.digest).unwrap();
    assert!(place.names().is_empty());
    assert!(matches!(place.store.remove(&layer.digest), Err(TemplateError::NoSuchLayer(_))));
    assert!(matches!(place.store.remove("../layers"), Err(TemplateError::NoSuchLayer(_))));
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let place = place();
    let archive = Archive::default()
        .file("a", "1")
        .symlink("b", "a")
        .file("b", "2")
        .file("a", "3")
        .directory("d")
        .directory("d");
    let root = place.store.path(&place.import(archive).unwrap().digest).unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "3");
    assert_eq!(fs::read_to_string(root.join("b")).unwrap(), "2");
    assert!(fs::symlink_metadata(root.join("b")).unwrap().is_file());
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let place = place();
    let outside = place.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "intact").unwrap();
    let away = outside.to_str().unwrap();
    let up = "../../../outside";
    let huge_name = vec![b'n'; 9000];
    let cases: Vec<(&str, Archive)> = vec![
        ("absolute name", Archive::default().file(&format!("{away}/new"), "x")),
        ("..", Archive::default().file("a/../../new", "x")),
        ("symbolic link", Archive::default().symlink("out", away).file("out/new", "x")),
        ("symbolic link", Archive::default().symlink("out", up).file("out/new", "x")),
        ("symbolic link", Archive::default().symlink("out", up).directory("out/sub")),
        ("symbolic link", Archive::default().symlink("out", away).hard_link("mine", "out/victim")),
        ("symbolic link", Archive::default().symlink("self", ".").file("self/new", "x")),
        ("directory and something else", Archive::default().symlink("out", away).directory("out")),
        ("would replace a directory", Archive::default().directory("d").file("d", "x")),
        ("..", Archive::default().hard_link("mine", "../outside/victim")),
        ("absolute name", Archive::default().hard_link("mine", &format!("{away}/victim"))),
        ("hard link to nothing", Archive::default().hard_link("mine", "no/where")),
        ("hard link to a directory", Archive::default().directory("d").hard_link("mine", "d")),
        ("no directory", Archive::default().file("f", "x").file("f/g", "x")),
        ("is the root", Archive::default().symlink("./", away)),
        ("empty", Archive::default().file("", "x")),
        ("65535", Archive::default().entry(EntryType::Regular, b"a", b"", b"", |h| h.set_uid(65_536))),
        ("65535", Archive::default().pax(&[("gid", b"4294967295")]).file("a", "")),
        ("overlong", Archive::default().pax(&[("path", &[b'n'; 300])]).file("a", "")),
        (
            "bytes",
            Archive::default().entry(EntryType::GNULongName, b"x", b"", &huge_name, |_| {}).file("a", ""),
        ),
        ("bytes", Archive::default().pax(&[("x", &vec![b'x'; 70_000])]).file("a", "")),
        ("two different sizes", Archive::default().pax(&[("size", b"9999999")]).file("a", "x")),
        ("sparse", Archive::default().pax(&[("GNU.sparse.major", b"1")]).file("a", "x")),
        ("unknown type", Archive::default().entry(EntryType::GNUSparse, b"a", b"", b"", |_| {})),
        ("unknown type", Archive::default().entry(EntryType::new(b'V'), b"a", b"", b"", |_| {})),
        ("whiteout of nothing", Archive::default().file(".wh.", "")),
        ("whiteout of nothing", Archive::default().file("d/.wh..", "")),
        ("whiteout of nothing", Archive::default().file("d/.wh...", "")),
        ("whiteout of nothing", Archive::default().file(".wh..wh.aufs", "")),
        ("lies below a whiteout", Archive::default().file(".wh.../x", "")),
        ("lies below a whiteout", Archive::default().directory(".wh..wh.plnk/x")),
        ("not a file", Archive::default().directory(".wh.d")),
        ("not a file", Archive::default().symlink("d/.wh..wh..opq", away)),
        ("symbolic link", Archive::default().symlink("out", away).file("out/.wh.victim", "")),
        ("symbolic link", Archive::default().symlink("out", away).file("out/.wh..wh..opq", "")),
        ("hard link to nothing", Archive::default().file(".wh.a", "").hard_link("b", "a")),
        ("hard link to nothing", Archive::default().file(".wh.a", "").hard_link("b", ".wh.a")),
        ("malformed", Archive::default().pax(&[("SCHILY.xattr.security.capability", b"x")]).file("a", "")),
    ];
    for (expected, archive) in cases {
        let error = place.import(archive).unwrap_err().to_string();
        assert!(error.contains(expected), "expected {expected:?} in: {error}");
        assert!(place.names().is_empty(), "after {expected}: {:?}", place.names());
    }
    let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["victim"]);
    assert_eq!(fs::metadata(outside.join("victim")).unwrap().nlink(), 1);
}

#[test]
fn links_out_of_the_layer_may_exist_but_are_never_used() {
    let place = place();
    let outside = place.dir.path().join("victim");
    fs::write(&outside, "intact").unwrap();
    let away = outside.to_str().unwrap();
    // The entry of the same name replaces the link instead of writing through it.
    let archive = Archive::default().symlink("a", away).file("a", "mine").symlink("b", away);
    let root = place.store.path(&place.import(archive).unwrap().digest).unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "intact");
    assert_eq!(fs::metadata(&outside).unwrap().uid(), 0);
}

#[test]
fn only_capabilities_and_own_attributes_survive() {
    let place = place();
    let mut capability = 0x0200_0001_u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let archive = Archive::default()
        .pax(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.security.selinux", b"x"),
            ("SCHILY.xattr.user.note", b"x"),
        ])
        .file("ping", "x");
    let root = place.store.path(&place.import(archive).unwrap().digest).unwrap();
    let mut names = [0_u8; 256];
    let length = rustix::fs::listxattr(root.join("ping"), &mut names).unwrap();
    let names: Vec<_> = names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    // A security module of the host may add its own label.
    assert!(names.contains(&&b"security.capability"[..]), "{names:?}");
    assert!(!names.iter().any(|n| n.starts_with(b"trusted.") || n.starts_with(b"user.overlay")), "{names:?}");
    assert!(names.contains(&&b"user.note"[..]), "{names:?}");
    let mut value = [0_u8; 64];
    let length = rustix::fs::getxattr(root.join("ping"), "security.capability", &mut value).unwrap();
    assert_eq!(value[..length][20..], ID_SHIFT.to_le_bytes());
}

#[test]
fn limits_hold() {
    let Place { dir: _dir, store } = place();
    let tight = store.clone().with_limits(Limits { bytes: 4096, entries: 3, ..Limits::default() });
    let big = Archive::default().file("a", &"x".repeat(8192)).bytes();
    assert!(matches!(
        tight.import_tar(&big[..], &|_| {}),
        Err(TemplateError::TooLarge { unit: "bytes", .. })
    ));
    let many = (0..4).fold(Archive::default(), |a, n| a.file(&n.to_string(), "")).bytes();
    assert!(matches!(
        tight.import_tar(&many[..], &|_| {}),
        Err(TemplateError::TooLarge { unit: "entries", .. })
    ));
    assert!(store.import_tar(&big[..], &|_| {}).is_ok());
    // One entry, and four directories that it implies.
    let deep = Archive::default().file("a/b/c/d/e", "").bytes();
    let five = |entries| Limits { entries, ..Limits::default() };
    assert!(matches!(
        store.clone().with_limits(five(4)).import_tar(&deep[..], &|_| {}),
        Err(TemplateError::TooLarge { unit: "entries", .. })
    ));
    assert!(store.clone().with_limits(five(5)).import_tar(&deep[..], &|_| {}).is_ok());
}

/// A few hundred bytes may stand for dozens of directories.
#[test]
fn room_is_asked_for_by_what_is_made_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let deep = "/d".repeat(45);
    let archive = (0..100).fold(Archive::default(), |archive, n| archive.file(&format!("{n}{deep}/f"), ""));
    let bytes = archive.bytes();
    let asked = std::cell::Cell::new(0);
    let room = || {
        asked.set(asked.get() + 1);
        false
    };
    let mut source = Source::new(&bytes[..], u64::MAX, &room).unwrap();
    let mut tree = Tree::new(fs::File::open(dir.path()).unwrap().into()).unwrap();
    let unpacked = archive::unpack(&mut source, &mut tree, Limits::default(), &|_| {});
    assert!(matches!(unpacked, Err(TemplateError::DiskFull)), "{unpacked:?}");
    assert_eq!(asked.get(), 1);
    // 43 entries of 46 directories and a file are more than 2,000 objects.
    let made = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(made, 43);
}

#[test]
fn broken_streams_are_no_layers() {
    let place = place();
    let whole = Archive::default().file("a", &"x".repeat(2000)).bytes();
    for bytes in [&b""[..], b"not an archive", &whole[..1000], &whole[..512], &[0; 1024]] {
        let error = place.store.import_tar(bytes, &|_| {}).unwrap_err();
        assert!(matches!(error, TemplateError::BadArchive(_)), "{error}");
    }
    assert!(place.names().is_empty());
}

#[test]
fn an_interrupted_import_is_swept_away_but_not_a_running_one() {
    let place = place();
    let layers = place.dir.path().join("layers");
    let left = layers.join(".tmp-1-0");
    fs::create_dir_all(left.join("root/sub")).unwrap();
    // The store is still open: somebody may be writing there.
    let second = LayerStore::open(&layers).unwrap();
    assert!(left.exists());
    drop((second, place.store));
    LayerStore::open(&layers).unwrap();
    assert!(!left.exists());
}

#[tokio::test]
async fn a_base_made_before_is_found() {
    let place = place();
    let layers = place.dir.path().join("layers");
    let layer = place.import(Archive::default().file("a", "base")).unwrap();
    assert!(!base_is_made(&layers));
    let record = crate::bootstrap::base_record(&layers);
    fs::write(&record, format!("{} {}\n", layer.digest, layer.size_bytes)).unwrap();
    assert!(base_is_made(&layers));
    let found =
        bootstrap_base(&place.store, |phase| panic!("nothing is to be done, not even {phase:?}")).await;
    assert_eq!(found.unwrap(), layer);
    // A record of a layer that is gone means nothing.
    place.store.remove(&layer.digest).unwrap();
    assert!(!base_is_made(&layers));
    assert!(!base_is_made(&layers.join("nowhere")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_bootstrap_leaves_neither_processes_nor_files() {
    if !Path::new("/usr/bin/mmdebstrap").exists() {
        eprintln!("SKIPPED: mmdebstrap is not installed; scripts/install-test-deps.sh installs it");
        return;
    }
    let place = place();
    let layers = place.dir.path().join("layers");
    let mine = || {
        let mut found = 0;
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let needle = layers.as_os_str().as_encoded_bytes();
            let child = entry.file_name() != *std::process::id().to_string();
            found += usize::from(child && environ.windows(needle.len()).any(|w| w == needle));
        }
        found
    };
    let (seen, mut phases) = tokio::sync::mpsc::unbounded_channel();
    let store = place.store.clone();
    let work =
        tokio::spawn(
            async move { bootstrap_base(&store, move |phase| seen.send(phase).unwrap_or(())).await },
        );
    let phase = tokio::time::timeout(Duration::from_secs(20), phases.recv()).await.unwrap();
    assert_eq!(phase, Some(crate::Phase::Lists));
    tokio::time::timeout(Duration::from_secs(20), async {
        while mine() == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    // Far enough in for apt to be at work.
    tokio::time::sleep(Duration::from_secs(1)).await;
    work.abort();
    tokio::time::timeout(Duration::from_secs(20), async {
        while mine() > 0 || !place.names().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{} processes and {:?} are left", mine(), place.names()));
}
