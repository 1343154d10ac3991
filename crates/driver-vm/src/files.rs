//! The files of a machine, by the names that its description has. A machine's process gets them as open descriptors and may do
//! with them what it likes: what is opened here is a file, where it is said to be, and nothing that a link leads to.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a file for reading, or for both. A link, a device or a pipe in its place is refused, and waited for not at all.
pub(crate) fn open(path: &Path, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_there_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for write in [false, true] {
            open(&at("file"), write).unwrap();
            for other in [at("link"), at("dangling"), at("pipe"), dir.path().to_owned(), "/dev/null".into()] {
                assert!(open(&other, write).is_err(), "{}", other.display());
            }
        }
        assert!(!at("nowhere").exists(), "and nothing is made");
    }
}
