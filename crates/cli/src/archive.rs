//! Unpacks a directory that came from a sandbox. The archive is hostile until shown otherwise: nothing it says can
//! write outside the destination, follow a link, make anything but files and directories, or go past the bounds.
//!
//! Every directory is opened relative to its parent without following links, so that links which happen to lie in the
//! destination already are no way out either.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags};
use wire::data_plane::{MAX_ZIP_BYTES, MAX_ZIP_ENTRIES};
use zip::ZipArchive;

use crate::error::CliError;
use crate::out::printable;

/// Deepest nesting; a path of the operating system has at most 4096 bytes.
const MAX_DEPTH: usize = 256;
/// Most bytes of the archive's directory, which is held in memory: over 300 for each permitted entry.
const MAX_DIRECTORY_BYTES: u64 = 32 * 1024 * 1024;

/// What came out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Entries that are neither file nor directory.
    pub(crate) skipped: u64,
}

/// Unpacks into an existing directory. All entries lie below one common directory in the archive, which is left out.
pub(crate) fn unpack(archive: File, into: &Path) -> Result<Unpacked, CliError> {
    let bad = |text: &str| CliError::new(format!("the archive from the sandbox is not acceptable: {text}"));
    let budget = Rc::new(Cell::new(Some(MAX_DIRECTORY_BYTES)));
    let reader = Budget { inner: io::BufReader::new(archive), left: Rc::clone(&budget) };
    let mut archive = ZipArchive::new(reader).map_err(|error| bad(&error.to_string()))?;
    budget.set(None);
    if archive.len() > MAX_ZIP_ENTRIES {
        return Err(bad("it has too many entries"));
    }
    let root = open_root(into).map_err(|error| failed(&into.to_string_lossy(), &error))?;
    let mut done = Unpacked::default();
    let mut left = MAX_ZIP_BYTES;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| bad(&error.to_string()))?;
        let name = entry.name_raw().to_vec();
        let shown = printable(&String::from_utf8_lossy(&name));
        let parts = parts(&name).ok_or_else(|| bad(&format!("the entry `{shown}` leaves the directory")))?;
        let [_common, parts @ ..] = &parts[..] else { return Err(bad("an entry has no name")) };
        let is_dir = entry.is_dir();
        let ordinary =
            is_dir || entry.unix_mode().is_none_or(|mode| matches!(mode & 0o170_000, 0 | 0o100_000));
        if !ordinary {
            done.skipped += 1;
            continue;
        }
        let written = match parts.split_last() {
            None if is_dir => Ok(0),
            None => return Err(bad(&format!("the entry `{shown}` lies beside the directory"))),
            Some(_) if is_dir => open_dir(&root, parts).map(|_| 0),
            Some((last, dirs)) => open_dir(&root, dirs).and_then(|dir| write(&dir, last, &mut entry, left)),
        };
        let written = written.map_err(|error| failed(&shown, &error))?;
        left = left.checked_sub(written).ok_or_else(|| bad("its content is larger than 2 GiB"))?;
        done.bytes += written;
        done.files += u64::from(!is_dir);
    }
    Ok(done)
}

fn failed(what: &str, error: &io::Error) -> CliError {
    CliError::new(format!("cannot unpack `{what}`: {error}"))
}

/// The segments of a relative path; `None` when it is absolute, climbs, or is no path at all.
fn parts(name: &[u8]) -> Option<Vec<&OsStr>> {
    if name.starts_with(b"/") || name.contains(&0) {
        return None;
    }
    let segments = name.split(|b| *b == b'/').filter(|segment| !segment.is_empty() && *segment != b".");
    let parts: Vec<_> = segments.map(OsStr::from_bytes).collect();
    (parts.len() <= MAX_DEPTH && parts.iter().all(|part| *part != "..")).then_some(parts)
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a directory below `root`, making what is missing. A link on the way is an error.
fn open_dir(root: &OwnedFd, parts: &[&OsStr]) -> io::Result<OwnedFd> {
    let mut dir = root.try_clone()?;
    for part in parts {
        match rustix::fs::mkdirat(&dir, *part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, *part, flags, Mode::empty())?;
    }
    Ok(dir)
}

/// Writes one file anew, at most one byte more than `limit`, so that the caller sees when it is passed. What had the
/// name before is removed, not written to.
fn write(dir: &OwnedFd, name: &OsStr, content: &mut impl Read, limit: u64) -> io::Result<u64> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o666))?;
    io::copy(&mut content.take(limit.saturating_add(1)), &mut File::from(file))
}

/// Reads only so much while the directory of the archive is parsed; entries are read afterwards, each bounded.
struct Budget<R> {
    inner: R,
    left: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Budget<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if let Some(left) = self.left.get() {
            let left = left
                .checked_sub(read as u64)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "its directory is too large"))?;
            self.left.set(Some(left));
        }
        Ok(read)
    }
}

impl<R: Seek> Seek for Budget<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

#[cfg(test)]
mod tests;
