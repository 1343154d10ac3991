//! Makes a layer out of what a sandbox has written: the upper directory of its overlay. What was written is hostile, so it
//! takes the same way as any archive: it is packed, whiteouts in the spelling of images, and unpacked into the store. The
//! layer is thereby named by its content, and can be sent to a registry as it is.
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

use crate::error::TemplateError;
use crate::pending::Pending;
use crate::stop::{Stoppable, stopped};
use crate::store::{Layer, LayerStore, Limits, Staged};
use crate::tree::{self, OPAQUE};
use crate::{ID_COUNT, ID_SHIFT, capability};

const REDIRECT: &str = "trusted.overlay.redirect";
/// Names that layers give a meaning to; a file that has one cannot be told from a mark.
const RESERVED: &[u8] = b".wh.";
/// Longest path: `PATH_MAX` of Linux.
const MAX_PATH: usize = 4096;
/// Headers and padding on top of the content.
const OVERHEAD_BYTES: u64 = 512 << 20;
/// Attributes of one file, bytes; ext4 keeps them in one block.
const MAX_ATTRIBUTES: usize = 16 * 1024;
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What to make a layer of.
#[derive(Debug, Clone, Copy)]
pub struct Capture<'a> {
    /// The upper directory of the overlay.
    pub upper: &'a Path,
    /// The mounted overlay.
    pub merged: &'a Path,
    /// Paths from the root that are left out.
    pub except: &'a [&'a str],
    /// Most bytes of content.
    pub max_bytes: u64,
    /// Becomes true when nobody wants the layer any more; reading ends soon then.
    pub stop: &'a AtomicBool,
}

impl LayerStore {
    /// Makes a layer of what was written; `None` when nothing was. Blocking.
    ///
    /// # Errors
    /// `Refused` or `TooLarge` when what was written cannot be a layer, `Io` when the host is at fault.
    pub fn capture(&self, capture: Capture<'_>) -> Result<Option<Layer>, TemplateError> {
        self.read(capture)?.map(Staged::commit).transpose()
    }

    /// The first part of [`LayerStore::capture`]: when it returns, everything has been read, and may change again.
    ///
    /// # Errors
    /// As for [`LayerStore::capture`].
    pub fn read(&self, capture: Capture<'_>) -> Result<Option<Staged>, TemplateError> {
        let failed = || TemplateError::io("cannot read what was written");
        let limits = Limits { bytes: capture.max_bytes.saturating_add(OVERHEAD_BYTES), ..Limits::default() };
        let store = self.clone().with_limits(limits);
        let (read, write) = io::pipe().map_err(failed())?;
        std::thread::scope(|scope| {
            let packing = scope.spawn(move || {
                let mut packer = Packer::new(capture, io::BufWriter::with_capacity(256 * 1024, write))?;
                packer.pack()
            });
            let unpacked = store.unpack(read, &|_| {});
            let packed = packing.join().unwrap_or_else(|_| {
                let cause = io::Error::other("a thread ended early");
                Err(TemplateError::Io { what: "reading what was written", source: cause })
            });
            match (packed, unpacked) {
                // Whoever gave up first knows why; the other one only finds the pipe closed.
                (Err(TemplateError::Io { source, .. }), Err(error))
                    if source.kind() == io::ErrorKind::BrokenPipe =>
                {
                    Err(error)
                }
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
                (Ok(false), Ok(_)) => Ok(None),
                (Ok(true), Ok(staged)) => Ok(Some(staged)),
            }
        })
    }
}

/// Packs a layer as it would be sent to others, and gives the writer back. Blocking.
pub(crate) fn pack_layer<W: Write>(root: &Path, out: W) -> Result<W, TemplateError> {
    let stop = AtomicBool::new(false);
    let capture = Capture { upper: root, merged: root, except: &[], max_bytes: u64::MAX, stop: &stop };
    let mut packer = Packer::new(capture, out)?;
    packer.pack()?;
    packer.archive.into_inner().map_err(|error| wrong(b"", error))
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
    capture: Capture<'a>,
    upper: OwnedFd,
    merged: OwnedFd,
    archive: tar::Builder<W>,
    /// First names of files that have several.
    names: HashMap<(u64, u64), Vec<u8>>,
    /// Memory that they take.
    names_bytes: usize,
    bytes: u64,
    /// Whether there is anything but the root.
    any: bool,
}

impl<'a, W: Write> Packer<'a, W> {
    fn new(capture: Capture<'a>, out: W) -> Result<Self, TemplateError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &Path| {
            rustix::fs::open(path, flags, Mode::empty())
                .map_err(TemplateError::io("cannot open what was written"))
        };
        let (upper, merged) = (open(capture.upper)?, open(capture.merged)?);
        let archive = tar::Builder::new(out);
        Ok(Self {
            capture,
            upper,
            merged,
            archive,
            names: HashMap::new(),
            names_bytes: 0,
            bytes: 0,
            any: false,
        })
    }

    /// Packs everything; whether there was anything.
    fn pack(&mut self) -> Result<bool, TemplateError> {
        let mut pending = Pending::default();
        pending.push(PathBuf::new(), View::Upper)?;
        while let Some((path, view)) = pending.pop() {
            self.directory(path.as_os_str().as_bytes(), view, &mut pending)?;
        }
        let end = |error| wrong(b"", error);
        self.archive.finish().and_then(|()| self.archive.get_mut().flush()).map_err(end)?;
        Ok(self.any)
    }

    /// Packs a directory and all in it but its directories, which are still to be packed.
    fn directory(
        &mut self,
        path: &[u8],
        view: View,
        pending: &mut Pending<View>,
    ) -> Result<(), TemplateError> {
        let failed = |error: Errno| wrong(path, error.into());
        if self.capture.stop.load(Ordering::Relaxed) {
            return Err(wrong(path, stopped()));
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
        self.entry(EntryType::Directory, &name, b"", &of, &attributes(dir.as_fd(), path)?)?;
        self.any |= !path.is_empty();
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
                return Err(TemplateError::refused(&path, "has an overlong name"));
            }
            if self.capture.except.iter().any(|left_out| left_out.as_bytes() == path) {
                continue;
            }
            if name.starts_with(RESERVED) {
                return Err(TemplateError::refused(&path, "has a name that layers use for what is gone"));
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
    fn other(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        of: &Stat,
    ) -> Result<(), TemplateError> {
        let failed = |error: Errno| wrong(path, error.into());
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
                self.any = true;
                return self.entry(EntryType::Link, path, &first, of, &[]);
            }
        }
        match kind {
            FileType::RegularFile => {
                let size = u64::try_from(of.st_size).unwrap_or_default();
                self.bytes = self.bytes.saturating_add(size);
                if self.bytes > self.capture.max_bytes {
                    return Err(TemplateError::TooLarge { limit: self.capture.max_bytes, unit: "bytes" });
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(failed)?;
                self.entry(EntryType::Regular, path, b"", of, &attributes(file.as_fd(), path)?)?;
                let stop = self.capture.stop;
                let unwanted = || stop.load(Ordering::Relaxed);
                let mut content = Stoppable { inner: std::fs::File::from(file), unwanted }.take(size);
                let out = self.archive.get_mut();
                let copied = io::copy(&mut content, out).map_err(|error| wrong(path, error))?;
                if copied != size {
                    return Err(wrong(path, io::Error::other("it changed while it was read")));
                }
                let padding = usize::try_from(size.next_multiple_of(512) - size).unwrap_or_default();
                out.write_all(&[0; 512][..padding]).map_err(|error| wrong(path, error))?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(failed)?;
                self.entry(EntryType::Symlink, path, target.as_bytes(), of, &[])?;
            }
            FileType::Fifo => self.entry(EntryType::Fifo, path, b"", of, &[])?,
            FileType::CharacterDevice if tree::marks_nothing(of) => {
                let above = path.len() - name.len();
                self.mark(&[&path[..above], RESERVED, name].concat())?;
            }
            // Sockets mean nothing without the process that made them; devices come from the engine.
            _ => return Ok(()),
        }
        self.any = true;
        Ok(())
    }

    fn mark(&mut self, path: &[u8]) -> Result<(), TemplateError> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.any = true;
        self.write(path, b"", header)
    }

    fn entry(
        &mut self,
        kind: EntryType,
        path: &[u8],
        link: &[u8],
        of: &Stat,
        attributes: &[(String, Vec<u8>)],
    ) -> Result<(), TemplateError> {
        let extensions = attributes.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        if !attributes.is_empty() {
            self.archive.append_pax_extensions(extensions).map_err(|error| wrong(path, error))?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(of.st_mode & 0o7777);
        header.set_uid(inside(of.st_uid).into());
        header.set_gid(inside(of.st_gid).into());
        header.set_mtime(u64::try_from(of.st_mtime).unwrap_or_default());
        let size = if kind == EntryType::Regular { u64::try_from(of.st_size).unwrap_or_default() } else { 0 };
        header.set_size(size);
        self.write(path, link, header)
    }

    /// Writes a header, with GNU's long names in front where they are needed.
    fn write(&mut self, path: &[u8], link: &[u8], mut header: Header) -> Result<(), TemplateError> {
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
        put().map_err(|error| wrong(path, error))
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
fn listed(dir: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, TemplateError> {
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
        Errno::OVERFLOW => TemplateError::refused(path, "is a directory with too many entries"),
        error => wrong(path, error.into()),
    })
}

/// Capabilities and the guest's own attributes, as an archive spells them. What steers the host is left out.
fn attributes(fd: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<(String, Vec<u8>)>, TemplateError> {
    let mut names = vec![0; MAX_ATTRIBUTES];
    let failed = |error: Errno| match error {
        Errno::RANGE | Errno::TOOBIG => TemplateError::refused(path, "has too many attributes"),
        error => wrong(path, error.into()),
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
        let wanted = text == "security.capability" || tree::is_own_attribute(text);
        if !wanted {
            continue;
        }
        let mut value = vec![0; MAX_ATTRIBUTES];
        let length = rustix::fs::fgetxattr(fd, name, &mut value).map_err(failed)?;
        value.truncate(length);
        if text == "security.capability" {
            // One of another namespace means nothing in a sandbox.
            let Some(unshifted) = capability::unshifted(&value) else { continue };
            value = unshifted;
        }
        found.push((format!("SCHILY.xattr.{text}"), value));
    }
    found.sort();
    if found.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ATTRIBUTES {
        return Err(TemplateError::refused(path, "has too many attributes"));
    }
    Ok(found)
}

fn has(directory: BorrowedFd<'_>, attribute: &str) -> bool {
    // A value longer than this is there as well.
    let mut value = [0; 1];
    matches!(rustix::fs::fgetxattr(directory, attribute, &mut value), Ok(_) | Err(Errno::RANGE))
}

/// An owner as the guest sees it. The host's own root makes mount points in the guest's name.
fn inside(id: u32) -> u32 {
    id.checked_sub(ID_SHIFT).filter(|id| *id < ID_COUNT).unwrap_or(0)
}

fn wrong(path: &[u8], error: io::Error) -> TemplateError {
    let shown: String = String::from_utf8_lossy(path).chars().take(200).collect();
    tracing::debug!(path = ?shown, %error, "cannot read what a sandbox has written");
    TemplateError::Io { what: "cannot read what was written", source: error }
}
