//! Walks the upper directory of an overlay, without following any link, and writes what it finds.
//!
//! A directory of a lower layer that was renamed is in the upper one only as a reference. Its content is read from the
//! mounted root, so that layers never refer to each other.
//!
//! Nothing may write while this reads.

use std::collections::HashMap;
use std::ffi::{CStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::attribute::{self, OPAQUE};
use crate::capability;
use crate::error::PackError;
use crate::pending::Pending;
use crate::stop::{Stoppable, stopped};

const REDIRECT: &str = "trusted.overlay.redirect";
/// Names that layers give a meaning to; a file that has one cannot be told from a mark.
const RESERVED: &[u8] = b".wh.";
/// Longest path: `PATH_MAX` of Linux.
const MAX_PATH: usize = 4096;
/// Attributes of one file, bytes; ext4 keeps them in one block.
const MAX_ATTRIBUTES: usize = 16 * 1024;
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Whose ids files on the disk have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Those of a user namespace: so many ids from this one on. Anything else is the host's own root's, which makes mount points
    /// in the guest's name.
    Shifted {
        /// The namespace's root.
        root: u32,
        /// How many ids it has.
        count: u32,
    },
    /// As they are.
    Plain,
}

impl Owners {
    fn inside(self, id: u32) -> u32 {
        match self {
            Self::Shifted { root, count } => id.checked_sub(root).filter(|id| *id < count).unwrap_or(0),
            Self::Plain => id,
        }
    }

    fn root(self) -> u32 {
        match self {
            Self::Shifted { root, .. } => root,
            Self::Plain => 0,
        }
    }
}

/// What to pack.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The upper directory of the overlay; or the mounted overlay, for all that it shows.
    pub upper: &'a Path,
    /// The mounted overlay.
    pub merged: &'a Path,
    /// Paths from the root that are left out.
    pub except: &'a [&'a str],
    /// Most bytes of content.
    pub max_bytes: u64,
    /// Whose ids files have.
    pub owners: Owners,
    /// Becomes true when nobody wants the archive any more; reading ends soon then.
    pub stop: &'a AtomicBool,
}

/// Packs all of it, and gives the writer back. Blocking.
///
/// # Errors
/// `Refused` or `TooLarge` when it cannot be an archive, `Io` when it cannot be read or the archive not be written.
pub fn pack<W: Write>(source: Source<'_>, out: W) -> Result<W, PackError> {
    let mut packer = Packer::new(source, out)?;
    packer.pack()?;
    packer.archive.into_inner().map_err(|error| PackError::io(b"", error))
}

/// Whose view of a directory is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// As it was written, with its marks.
    Upper,
    /// As the sandbox saw it.
    Merged,
}

/// Entries of one directory, which are sorted in memory.
const MAX_IN_DIRECTORY: usize = 500_000;
/// Bytes of remembered first names. What has several names beyond that is packed as so many files.
const MAX_NAMES: usize = 128 * 1024 * 1024;

struct Packer<'a, W: Write> {
    source: Source<'a>,
    upper: OwnedFd,
    merged: OwnedFd,
    archive: tar::Builder<W>,
    /// First names of files that have several.
    names: HashMap<(u64, u64), Vec<u8>>,
    /// Memory that they take.
    names_bytes: usize,
    bytes: u64,
}

impl<'a, W: Write> Packer<'a, W> {
    fn new(source: Source<'a>, out: W) -> Result<Self, PackError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| {
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| PackError::io(b"", error))
        };
        let (upper, merged) = (open(source.upper)?, open(source.merged)?);
        let archive = tar::Builder::new(out);
        Ok(Self { source, upper, merged, archive, names: HashMap::new(), names_bytes: 0, bytes: 0 })
    }

    fn pack(&mut self) -> Result<(), PackError> {
        let mut pending = Pending::default();
        pending.push(PathBuf::new(), View::Upper)?;
        while let Some((path, view)) = pending.pop() {
            self.directory(path.as_os_str().as_bytes(), view, &mut pending)?;
        }
        let end = |error| PackError::io(b"", error);
        self.archive.finish().and_then(|()| self.archive.get_mut().flush()).map_err(end)
    }

    /// Packs a directory and all in it but its directories, which are still to be packed.
    fn directory(&mut self, path: &[u8], view: View, pending: &mut Pending<View>) -> Result<(), PackError> {
        let failed = |error: Errno| PackError::io(path, error);
        if self.source.stop.load(Ordering::Relaxed) {
            return Err(PackError::io(path, stopped()));
        }
        let root = match view {
            View::Upper => self.upper.as_fd(),
            View::Merged => self.merged.as_fd(),
        };
        let dir = open_directory(root, path).map_err(failed)?;
        let of = rustix::fs::fstat(&dir).map_err(failed)?;
        let name = if path.is_empty() { b"./".to_vec() } else { [path, b"/"].concat() };
        let redirected = view == View::Upper && has(dir.as_fd(), REDIRECT);
        let opaque = view == View::Upper && has(dir.as_fd(), OPAQUE);
        self.entry(
            EntryType::Directory,
            &name,
            b"",
            &of,
            &attributes(dir.as_fd(), path, self.source.owners.root())?,
        )?;
        if redirected || opaque {
            let mark =
                if path.is_empty() { b".wh..wh..opq".to_vec() } else { [path, b"/.wh..wh..opq"].concat() };
            self.mark(&mark)?;
        }
        let (dir, view) = if redirected {
            (open_directory(self.merged.as_fd(), path).map_err(failed)?, View::Merged)
        } else {
            (dir, view)
        };
        let mut below = Vec::new();
        for (name, of) in listed(dir.as_fd(), path)? {
            let path = inside_of(path, &name);
            if path.len() > MAX_PATH {
                return Err(PackError::refused(&path, "has an overlong name"));
            }
            if self.source.except.iter().any(|left_out| left_out.as_bytes() == path) {
                continue;
            }
            if name.starts_with(RESERVED) {
                return Err(PackError::refused(&path, "has a name that layers use for what is gone"));
            }
            if FileType::from_raw_mode(of.st_mode) == FileType::Directory {
                // Their paths may be much longer than what is new in them.
                below.push(name);
            } else {
                self.other(dir.as_fd(), &name, &path, &of)?;
            }
        }
        // Taken from the end: in order of their names.
        for name in below.iter().rev() {
            pending.push(OsString::from_vec(inside_of(path, name)).into(), view)?;
        }
        Ok(())
    }

    /// Packs what is no directory.
    fn other(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], of: &Stat) -> Result<(), PackError> {
        let failed = |error: Errno| PackError::io(path, error);
        let kind = FileType::from_raw_mode(of.st_mode);
        let inode = (of.st_dev, of.st_ino);
        if of.st_nlink > 1
            && matches!(kind, FileType::RegularFile | FileType::Symlink | FileType::Fifo)
            && (self.names_bytes < MAX_NAMES || self.names.contains_key(&inode))
        {
            let bytes = &mut self.names_bytes;
            let first = self.names.entry(inode).or_insert_with(|| {
                *bytes += path.len() + size_of::<((u64, u64), Vec<u8>)>();
                path.to_vec()
            });
            if first != path {
                let first = first.clone();
                return self.entry(EntryType::Link, path, &first, of, &[]);
            }
        }
        match kind {
            FileType::RegularFile => {
                let size = u64::try_from(of.st_size).unwrap_or_default();
                self.bytes = self.bytes.saturating_add(size);
                if self.bytes > self.source.max_bytes {
                    return Err(PackError::TooLarge { limit: self.source.max_bytes, unit: "bytes" });
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(failed)?;
                self.entry(
                    EntryType::Regular,
                    path,
                    b"",
                    of,
                    &attributes(file.as_fd(), path, self.source.owners.root())?,
                )?;
                let stop = self.source.stop;
                let unwanted = || stop.load(Ordering::Relaxed);
                let mut content = Stoppable { inner: std::fs::File::from(file), unwanted }.take(size);
                let out = self.archive.get_mut();
                let copied = io::copy(&mut content, out).map_err(|error| PackError::io(path, error))?;
                if copied != size {
                    return Err(PackError::io(path, io::Error::other("it changed while it was read")));
                }
                let padding = usize::try_from(size.next_multiple_of(512) - size).unwrap_or_default();
                out.write_all(&[0; 512][..padding]).map_err(|error| PackError::io(path, error))?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(failed)?;
                self.entry(EntryType::Symlink, path, target.as_bytes(), of, &[])?;
            }
            FileType::Fifo => self.entry(EntryType::Fifo, path, b"", of, &[])?,
            FileType::CharacterDevice if attribute::marks_nothing(of) => {
                let above = path.len() - name.len();
                self.mark(&[&path[..above], RESERVED, name].concat())?;
            }
            // Sockets mean nothing without the process that made them; devices come from the engine.
            _ => return Ok(()),
        }
        Ok(())
    }

    fn mark(&mut self, path: &[u8]) -> Result<(), PackError> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.write(path, b"", header)
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        of: &Stat,
        attributes: &[(String, Vec<u8>)],
    ) -> Result<(), PackError> {
        let extensions = attributes.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        if !attributes.is_empty() {
            self.archive.append_pax_extensions(extensions).map_err(|error| PackError::io(path, error))?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(of.st_mode & 0o7777);
        header.set_uid(self.source.owners.inside(of.st_uid).into());
        header.set_gid(self.source.owners.inside(of.st_gid).into());
        header.set_mtime(u64::try_from(of.st_mtime).unwrap_or_default());
        let size = if kind == EntryType::Regular { u64::try_from(of.st_size).unwrap_or_default() } else { 0 };
        header.set_size(size);
        self.write(path, link, header)
    }

    /// Writes a header, with GNU's long names in front where they are needed.
    fn write(&mut self, path: &[u8], link: &[u8], mut header: Header) -> Result<(), PackError> {
        let mut put = || -> io::Result<()> {
            for (text, kind) in [(path, EntryType::GNULongName), (link, EntryType::GNULongLink)] {
                let old = header.as_old_mut();
                let field = if kind == EntryType::GNULongName { &mut old.name } else { &mut old.linkname };
                field.fill(0);
                let short = text.len().min(field.len());
                field[..short].copy_from_slice(&text[..short]);
                if text.len() > short {
                    let mut long = Header::new_gnu();
                    long.set_entry_type(kind);
                    long.set_size(text.len() as u64 + 1);
                    long.set_mode(0);
                    long.set_uid(0);
                    long.set_gid(0);
                    long.set_mtime(0);
                    long.set_cksum();
                    let out = self.archive.get_mut();
                    out.write_all(long.as_bytes())?;
                    out.write_all(text)?;
                    let padding = (text.len() + 1).next_multiple_of(512) - text.len();
                    out.write_all(&[0; 512][..padding])?;
                }
            }
            header.set_cksum();
            self.archive.get_mut().write_all(header.as_bytes())
        };
        put().map_err(|error| PackError::io(path, error))
    }
}

fn inside_of(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), RESOLVE)
}

/// What is in a directory, by name.
fn listed(dir: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, PackError> {
    let read = || -> rustix::io::Result<Vec<(Vec<u8>, Stat)>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                if found.len() >= MAX_IN_DIRECTORY {
                    return Err(Errno::OVERFLOW);
                }
                let of = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                found.push((name.to_bytes().to_vec(), of));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    };
    read().map_err(|error| match error {
        Errno::OVERFLOW => PackError::refused(path, "is a directory with too many entries"),
        error => PackError::io(path, error),
    })
}

/// Capabilities and the guest's own attributes, as an archive spells them. What steers the host is left out.
fn attributes(fd: BorrowedFd<'_>, path: &[u8], root: u32) -> Result<Vec<(String, Vec<u8>)>, PackError> {
    let mut names = vec![0; MAX_ATTRIBUTES];
    let failed = |error: Errno| match error {
        Errno::RANGE | Errno::TOOBIG => PackError::refused(path, "has too many attributes"),
        error => PackError::io(path, error),
    };
    let length = match rustix::fs::flistxattr(fd, &mut names) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => 0,
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let Ok(text) = name.to_str() else { continue };
        let wanted = text == "security.capability" || attribute::is_own_attribute(text);
        if !wanted {
            continue;
        }
        let mut value = vec![0; MAX_ATTRIBUTES];
        let length = rustix::fs::fgetxattr(fd, name, &mut value).map_err(failed)?;
        value.truncate(length);
        if text == "security.capability" {
            // One of another namespace means nothing in a sandbox.
            let Some(unshifted) = capability::unshifted(&value, root) else { continue };
            value = unshifted;
        }
        found.push((format!("SCHILY.xattr.{text}"), value));
    }
    found.sort();
    if found.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ATTRIBUTES {
        return Err(PackError::refused(path, "has too many attributes"));
    }
    Ok(found)
}

fn has(directory: BorrowedFd<'_>, attribute: &str) -> bool {
    // A value longer than this is there as well.
    let mut value = [0; 1];
    matches!(rustix::fs::fgetxattr(directory, attribute, &mut value), Ok(_) | Err(Errno::RANGE))
}
