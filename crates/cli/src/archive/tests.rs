//! Archives that try to get out, and one that does not.

use std::io::Write;
use std::os::unix::fs::symlink;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;

/// An archive with these entries, as hostile as the writer lets it be.
fn archive(entries: &[(&str, &[u8])]) -> File {
    let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
    for (name, content) in entries {
        if name.ends_with('/') {
            zip.add_directory(*name, SimpleFileOptions::default()).unwrap();
        } else {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
    }
    let mut file = zip.finish().unwrap();
    file.rewind().unwrap();
    file
}

/// Unpacks into a fresh directory beside which a file must stay as it is.
fn check(file: File, prepare: impl FnOnce(&Path)) -> (tempfile::TempDir, Result<Unpacked, CliError>) {
    let outer = tempfile::tempdir().unwrap();
    std::fs::create_dir(outer.path().join("in")).unwrap();
    std::fs::write(outer.path().join("victim"), "untouched").unwrap();
    prepare(outer.path());
    let result = unpack(file, &outer.path().join("in"));
    assert_eq!(std::fs::read_to_string(outer.path().join("victim")).unwrap(), "untouched");
    (outer, result)
}

#[test]
fn an_honest_archive_comes_out_without_its_common_directory() {
    let zip = archive(&[("base/", b""), ("base/a", b"1"), ("base/ü/b c", b"22"), ("base/empty/", b"")]);
    let (dir, result) = check(zip, |_| ());
    assert_eq!(result.unwrap(), Unpacked { files: 2, bytes: 3, skipped: 0 });
    assert_eq!(std::fs::read_to_string(dir.path().join("in/ü/b c")).unwrap(), "22");
    assert!(dir.path().join("in/empty").is_dir());
}

#[test]
fn existing_files_are_replaced_and_existing_links_are_not_written_through() {
    let zip = archive(&[("base/a", b"new"), ("base/link", b"new")]);
    let (dir, result) = check(zip, |dir| {
        std::fs::write(dir.join("in/a"), "old").unwrap();
        symlink(dir.join("victim"), dir.join("in/link")).unwrap();
    });
    assert_eq!(result.unwrap().files, 2);
    for name in ["a", "link"] {
        assert_eq!(std::fs::read_to_string(dir.path().join("in").join(name)).unwrap(), "new");
    }
}

#[test]
fn no_way_out() {
    for name in [
        "base/../../victim",
        "../victim",
        "base/..",
        "/etc/superserve-escape",
        "victim",
        "base/a/../../../victim",
    ] {
        let (_dir, result) = check(archive(&[(name, b"evil")]), |_| ());
        assert!(result.is_err(), "{name}");
    }
    let (_dir, result) = check(archive(&[("base/link/victim", b"evil")]), |dir| {
        symlink(dir, dir.join("in/link")).unwrap();
    });
    assert!(result.is_err(), "a directory that is a link");
}

#[test]
fn links_and_devices_are_left_out() {
    let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
    zip.add_symlink("base/link", "../victim", SimpleFileOptions::default()).unwrap();
    zip.start_file("base/link/victim", SimpleFileOptions::default()).unwrap();
    zip.write_all(b"evil").unwrap();
    let mut file = zip.finish().unwrap();
    file.rewind().unwrap();
    let (dir, result) = check(file, |_| ());
    assert_eq!(result.unwrap(), Unpacked { files: 1, bytes: 4, skipped: 1 });
    assert!(dir.path().join("in/link").is_dir(), "no link was made, so this is a directory of ours");
}

#[test]
fn nesting_is_bounded() {
    let deep = format!("base/{}x", "d/".repeat(MAX_DEPTH));
    let (_dir, result) = check(archive(&[(&deep, b"")]), |_| ());
    assert!(result.is_err());
}

#[test]
fn content_is_counted_as_it_comes_out_and_not_as_announced() {
    let dir = tempfile::tempdir().unwrap();
    let root = open_root(dir.path()).unwrap();
    let written = write(&root, OsStr::new("bomb"), &mut io::repeat(0), 1000).unwrap();
    assert_eq!(written, 1001, "one more than the limit, so that passing it shows");
}

#[test]
fn the_directory_of_an_archive_is_bounded() {
    let budget = Rc::new(Cell::new(Some(10)));
    let mut reader = Budget { inner: io::repeat(0), left: Rc::clone(&budget) };
    assert!(reader.read_exact(&mut [0; 10]).is_ok());
    assert!(reader.read_exact(&mut [0; 1]).is_err());
    budget.set(None);
    assert!(reader.read_exact(&mut [0; 100]).is_ok());
}

#[test]
fn rubbish_is_refused() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[b'P'; 5000]).unwrap();
    file.rewind().unwrap();
    let (_dir, result) = check(file, |_| ());
    assert!(result.unwrap_err().message.contains("not acceptable"));
}
