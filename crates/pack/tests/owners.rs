//! The same tree with the ids of a user namespace on the host, and with its own in a guest, is the same archive. Runs as root.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use pack::{OPAQUE, Owners, PackError, Source, capability, pack};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

const ROOT: u32 = 1_000_000;
const SHIFTED: Owners = Owners::Shifted { root: ROOT, count: 65_536 };

/// A capability as archives have it: version 2, effective, one bit.
fn plain_capability() -> Vec<u8> {
    [&0x0200_0001_u32.to_le_bytes()[..], &[0, 0x20, 0, 0], &[0; 12]].concat()
}

/// All that an upper directory can hold.
fn tree(at: &Path, shift: u32) -> PathBuf {
    let upper = at.join(format!("upper-{shift}"));
    let path = |name: &str| upper.join(name);
    for dir in ["d/sub", "opaque", "long"] {
        std::fs::create_dir_all(path(dir)).unwrap();
    }
    let long = format!("long/{}", "n".repeat(200));
    for file in ["d/one", "d/su", "d/ping", "opaque/new", "opaque/\u{e9}\n", &long] {
        std::fs::write(path(file), file).unwrap();
    }
    std::fs::write(path("d/sparse"), "").unwrap();
    std::fs::File::options().write(true).open(path("d/sparse")).unwrap().set_len(3 << 20).unwrap();
    std::fs::hard_link(path("d/one"), path("d/two")).unwrap();
    std::os::unix::fs::symlink(format!("/{}", "t".repeat(150)), path("d/link")).unwrap();
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, path(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    node("d/gone", FileType::CharacterDevice, 0);
    node("d/fifo", FileType::Fifo, 0);
    node("d/null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    drop(UnixListener::bind(path("d/socket")).unwrap());
    let names =
        ["", "d", "d/sub", "opaque", "d/one", "d/su", "d/ping", "d/link", "d/sparse", "d/fifo", "opaque/new"];
    for (id, name) in (0..).zip(names) {
        std::os::unix::fs::lchown(path(name), Some(shift + id), Some(shift + 2 * id)).unwrap();
    }
    for name in ["long", "d/two", "opaque/\u{e9}\n", &long] {
        std::os::unix::fs::lchown(path(name), Some(shift), Some(shift)).unwrap();
    }
    rustix::fs::chmod(path("d/su"), Mode::from_raw_mode(0o6755)).unwrap();
    rustix::fs::chmod(path("d/sub"), Mode::from_raw_mode(0o1777)).unwrap();
    let attribute = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(path(name), key, value, XattrFlags::empty()).unwrap();
    };
    attribute("opaque", OPAQUE, b"y");
    attribute("d/one", "user.note", b"a\0c");
    attribute("d", "user.dir", b"x");
    attribute("d/one", "trusted.other", b"the host's");
    let plain = plain_capability();
    let wanted = if shift == 0 { plain } else { capability::shifted(&plain, shift).unwrap() };
    attribute("d/ping", "security.capability", &wanted);
    // One that means nothing in this namespace.
    attribute("d/su", "security.capability", &capability::shifted(&plain_capability(), ROOT + 7).unwrap());
    still(&upper);
    upper
}

/// The same time for all of it.
fn still(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        std::fs::read_dir(path).unwrap().for_each(|entry| still(&entry.unwrap().path()));
    }
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn packed(upper: &Path, owners: Owners, max_bytes: u64) -> Result<Vec<u8>, PackError> {
    let stop = AtomicBool::new(false);
    pack(Source { upper, merged: upper, except: &["d/sub"], max_bytes, owners, stop: &stop }, Vec::new())
}

#[test]
fn host_and_guest_pack_the_same() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    let dir = tempfile::tempdir().unwrap();
    let (shifted, plain) = (tree(dir.path(), ROOT), tree(dir.path(), 0));
    let host = packed(&shifted, SHIFTED, u64::MAX).unwrap();
    let guest = packed(&plain, Owners::Plain, u64::MAX).unwrap();
    assert!(host == guest, "{} and {} bytes", host.len(), guest.len());

    let mut names = Vec::new();
    for entry in tar::Archive::new(&host[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let attributes: Vec<_> = entry.pax_extensions().unwrap().into_iter().flatten().collect();
        let keys: Vec<_> = attributes.iter().map(|a| a.as_ref().unwrap().key().unwrap().to_owned()).collect();
        match name.as_str() {
            "d/one" => assert_eq!(keys, ["SCHILY.xattr.user.note"]),
            "d/ping" => assert_eq!(keys, ["SCHILY.xattr.security.capability"]),
            "d/" => assert_eq!(keys, ["SCHILY.xattr.user.dir"]),
            _ => assert_eq!(keys, Vec::<String>::new(), "{name}"),
        }
        names.push(name);
    }
    for there in ["./", "d/.wh.gone", "d/fifo", "d/two", "opaque/.wh..wh..opq", "opaque/\u{e9}\n"] {
        assert!(names.iter().any(|name| name == there), "{there}: {names:?}");
    }
    for absent in ["d/null", "d/socket", "d/sub/", "d/gone"] {
        assert!(names.iter().all(|name| name != absent), "{absent}: {names:?}");
    }
    assert!(matches!(packed(&plain, Owners::Plain, 1_000), Err(PackError::TooLarge { .. })));
    // A guest says whose a file is, also where nobody outside can have that id; whoever unpacks refuses it.
    std::os::unix::fs::chown(plain.join("d/one"), Some(70_000), Some(1)).unwrap();
    let foreign = packed(&plain, Owners::Plain, u64::MAX).unwrap();
    let mut archive = tar::Archive::new(&foreign[..]);
    let mut entries = archive.entries().unwrap().map(|entry| entry.unwrap());
    assert!(entries.any(|entry| entry.header().uid().unwrap() == 70_000));
}
