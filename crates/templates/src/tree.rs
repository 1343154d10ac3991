//! Writes the entries of a hostile archive below one directory. Every path is resolved by the kernel relative to an open
//! descriptor of that directory, without following any symbolic link, so that no entry can reach outside, whatever the
//! archive made before.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pack::{OPAQUE, marks_nothing};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::ID_SHIFT;
use crate::error::TemplateError;
use crate::whiteout::{self, Mark};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Memory for the names of directories whose times are still to be set: enough for a million ordinary ones. Beyond that,
/// directories keep the time of the import.
const MAX_TIMES_BYTES: usize = 64 << 20;

/// Blocks of a file that are looked at for zeros.
const BLOCK: usize = 64 * 1024;

/// The attribute of a directory that the archive did not list, though it lists something inside.
pub(crate) const IMPLIED: &str = "trusted.superserve.implied";

/// One thing to create.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Below [`crate::ID_COUNT`]; not shifted yet.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits, set-id bits included.
    pub(crate) mode: u32,
    /// Seconds since 1970.
    pub(crate) mtime: u64,
    /// Ready to be written.
    pub(crate) capability: Option<Vec<u8>>,
    /// The file's own attributes: names that [`pack::is_own_attribute`], and their values.
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
}

#[derive(Debug)]
pub(crate) enum Kind {
    File { size: u64 },
    Directory,
    Symlink { target: Vec<u8> },
    HardLink { target: Vec<u8> },
    Fifo,
}

/// The directory that is being filled.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// The parent of the last entry: archives list a directory's entries together.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Times of directories, set at the end because every entry made inside changes them.
    times: Vec<(Vec<u8>, u64)>,
    times_bytes: usize,
    /// Directories that were made without an entry of their own.
    implied: u64,
}

impl Tree {
    /// Takes an empty directory; gives it to the sandbox's root.
    pub(crate) fn new(root: OwnedFd) -> io::Result<Self> {
        set_owner(root.as_fd(), 0, 0)?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755))?;
        Ok(Self { root, parent: None, times: Vec::new(), times_bytes: 0, implied: 0 })
    }

    /// How many directories were made that no entry is about: one name may imply two thousand.
    pub(crate) fn implied(&self) -> u64 {
        self.implied
    }

    /// Creates one entry; returns how many bytes of content it has.
    pub(crate) fn put(&mut self, member: &Member, content: &mut dyn Read) -> Result<u64, TemplateError> {
        let parts = parts(&member.path)?;
        let Some((name, above)) = parts.split_last() else {
            return self.put_root(member).map(|()| 0);
        };
        if let Some(mark) = whiteout::mark(&parts, &member.path)? {
            return self.put_mark(member, mark, above).map(|()| 0);
        }
        if let Kind::HardLink { target } = &member.kind {
            return self.put_hard_link(member, target, name, above).map(|()| 0);
        }
        let failed = |error: io::Error| at(&member.path, error);
        let parent = self.parent(above, &member.path)?;
        match &member.kind {
            Kind::File { size } => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = replacing(parent, name, || {
                    rustix::fs::openat(parent, *name, flags, Mode::from_raw_mode(0o600))
                })
                .map_err(failed)?;
                let mut file = std::fs::File::from(file);
                let copied = copy_sparse(content, &mut file).map_err(failed)?;
                if copied != *size {
                    let cause =
                        io::Error::new(io::ErrorKind::UnexpectedEof, "it ends in the middle of a file");
                    return Err(TemplateError::BadArchive(cause));
                }
                describe(file.as_fd(), member).map_err(failed)?;
                set_times(file.as_fd(), member.mtime).map_err(failed)?;
                return Ok(copied);
            }
            Kind::Directory => {
                let new = make_directory(parent, name).map_err(failed)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let directory = rustix::fs::openat(parent, *name, flags, Mode::empty())
                    .map_err(|_| TemplateError::refused(&member.path, "is a directory and something else"))?;
                if !new {
                    told(directory.as_fd()).map_err(failed)?;
                }
                describe(directory.as_fd(), member).map_err(failed)?;
                self.set_time_later(parts.join(&b'/'), member.mtime);
            }
            Kind::Symlink { target } => {
                replacing(parent, name, || rustix::fs::symlinkat(target.as_slice(), parent, *name))
                    .map_err(failed)?;
                describe_link(parent, name, member).map_err(failed)?;
            }
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(member.mode);
                replacing(parent, name, || rustix::fs::mknodat(parent, *name, FileType::Fifo, mode, 0))
                    .map_err(failed)?;
                describe_link(parent, name, member).map_err(failed)?;
                // mknod is subject to the umask; a fifo must not be opened, so it is named. It cannot be a link.
                rustix::fs::chmodat(parent, *name, mode, AtFlags::empty()).map_err(|e| failed(e.into()))?;
            }
            Kind::HardLink { .. } => {}
        }
        Ok(0)
    }

    /// The `./` entry that most archives begin with.
    fn put_root(&mut self, member: &Member) -> Result<(), TemplateError> {
        if !matches!(member.kind, Kind::Directory) {
            return Err(TemplateError::refused(&member.path, "is the root, and not a directory"));
        }
        let fd = rustix::fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        fd.map_err(io::Error::from)
            .and_then(|fd| describe(fd.as_fd(), member))
            .map_err(|error| at(&member.path, error))?;
        self.set_time_later(b".".to_vec(), member.mtime);
        Ok(())
    }

    fn put_hard_link(
        &mut self,
        member: &Member,
        target: &[u8],
        name: &[u8],
        above: &[&[u8]],
    ) -> Result<(), TemplateError> {
        let target_parts = parts(target)?;
        let Some((target_name, target_above)) = target_parts.split_last() else {
            return Err(TemplateError::refused(&member.path, "is a hard link to a directory"));
        };
        let failed = |error: io::Error| at(&member.path, error);
        let from = self.open_directory(&target_above.join(&b'/'), &member.path)?;
        let from = from.ok_or_else(|| TemplateError::refused(&member.path, "is a hard link to nothing"))?;
        let parent = self.parent(above, &member.path)?;
        if is_whiteout(from.as_fd(), target_name) {
            return Err(TemplateError::refused(&member.path, "is a hard link to nothing"));
        }
        // Without AT_SYMLINK_FOLLOW: a link to a symbolic link is a second name of that symbolic link.
        let link = || rustix::fs::linkat(&from, *target_name, parent, name, AtFlags::empty());
        match link() {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(TemplateError::refused(&member.path, "is a hard link to nothing")),
            Err(Errno::PERM) => Err(TemplateError::refused(&member.path, "is a hard link to a directory")),
            // An entry that links to itself would otherwise delete the only name of its file.
            Err(Errno::EXIST) if target_parts.last() == Some(&name) && target_above == above => Ok(()),
            Err(Errno::EXIST) => replacing(parent, name, link).map_err(failed),
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Puts overlayfs's mark in the place of a whiteout. What this layer itself has under the name stays, in whichever
    /// order the two come: whiteouts are about lower layers only.
    fn put_mark(&mut self, member: &Member, mark: Mark<'_>, above: &[&[u8]]) -> Result<(), TemplateError> {
        if !matches!(member.kind, Kind::File { .. } | Kind::HardLink { .. }) {
            return Err(TemplateError::refused(&member.path, "is a whiteout, and not a file"));
        }
        let failed = |error: io::Error| at(&member.path, error);
        let parent = self.parent(above, &member.path)?;
        match mark {
            Mark::Opaque => {
                // The cached descriptor is a path only.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(parent, ".", flags, Mode::empty());
                fd.map_err(io::Error::from).and_then(|fd| hide_below(fd.as_fd())).map_err(failed)
            }
            // Overlayfs would list it: a directory that does not continue below is shown as it is.
            Mark::Gone(name) if is_opaque(parent).map_err(failed)? && !exists(parent, name) => Ok(()),
            Mark::Gone(name) => {
                let device = rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0);
                match device {
                    Ok(()) => Ok(()),
                    Err(Errno::EXIST) => {
                        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        match rustix::fs::openat(parent, name, flags, Mode::empty()) {
                            // Not the one from below, so its owner and mode are its own.
                            Ok(directory) => told(directory.as_fd())
                                .and_then(|()| hide_below(directory.as_fd()))
                                .map_err(failed),
                            // Anything but a directory hides what is below by itself.
                            Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
                            Err(error) => Err(failed(error.into())),
                        }
                    }
                    Err(error) => Err(failed(error.into())),
                }
            }
        }
    }

    fn set_time_later(&mut self, path: Vec<u8>, mtime: u64) {
        self.times_bytes += path.len();
        if self.times_bytes <= MAX_TIMES_BYTES {
            self.times.push((path, mtime));
        }
    }

    /// Sets what could not be set before everything was there.
    pub(crate) fn finish(&mut self) -> Result<(), TemplateError> {
        for (path, mtime) in std::mem::take(&mut self.times) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat2(&self.root, path.as_slice(), flags, Mode::empty(), RESOLVE);
            fd.map_err(io::Error::from)
                .and_then(|fd| set_times(fd.as_fd(), mtime))
                .map_err(|error| at(&path, error))?;
        }
        Ok(())
    }

    /// The directory an entry lies in, made if the archive left it out.
    fn parent(&mut self, above: &[&[u8]], entry: &[u8]) -> Result<BorrowedFd<'_>, TemplateError> {
        if above.is_empty() {
            return Ok(self.root.as_fd());
        }
        let path = above.join(&b'/');
        if self.parent.as_ref().is_none_or(|(known, _)| *known != path) {
            let fd = match self.open_directory(&path, entry)? {
                Some(fd) => fd,
                None => self.make_directories(above, entry)?,
            };
            self.parent = Some((path, fd));
        }
        Ok(self.parent.as_ref().map_or(self.root.as_fd(), |(_, fd)| fd.as_fd()))
    }

    /// Opens a directory by its path; `None` when there is none.
    fn open_directory(&self, path: &[u8], entry: &[u8]) -> Result<Option<OwnedFd>, TemplateError> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), RESOLVE) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(TemplateError::refused(entry, "lies behind a symbolic link")),
            // A whiteout is nothing, whatever the archive makes of its name afterwards.
            Err(Errno::NOTDIR) if self.leads_to_whiteout(path) => Ok(None),
            Err(Errno::NOTDIR) => {
                Err(TemplateError::refused(entry, "lies below something that is no directory"))
            }
            Err(error) => Err(at(entry, error.into())),
        }
    }

    /// Whether the first thing on a path that is no directory is a whiteout of this layer.
    fn leads_to_whiteout(&self, path: &[u8]) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let fd = rustix::fs::openat2(&self.root, &path[..end], flags, Mode::empty(), RESOLVE);
            match fd.and_then(rustix::fs::fstat) {
                Ok(of) if FileType::from_raw_mode(of.st_mode) == FileType::Directory => {}
                Ok(of) => return marks_nothing(&of),
                Err(_) => return false,
            }
        }
        false
    }

    fn make_directories(&mut self, above: &[&[u8]], entry: &[u8]) -> Result<OwnedFd, TemplateError> {
        let mut path = Vec::new();
        let mut current = None;
        for part in above {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
            let next = match self.open_directory(&path, entry)? {
                Some(fd) => fd,
                None => {
                    let below = current.as_ref().unwrap_or(&self.root).as_fd();
                    make_implied(below, part).map_err(|error| at(entry, error))?;
                    self.implied += 1;
                    let fd = self.open_directory(&path, entry)?;
                    let fd = fd.ok_or_else(|| at(entry, Errno::NOENT.into()))?;
                    set_owner_at(below, part, 0, 0).map_err(|error| at(entry, error))?;
                    fd
                }
            };
            current = Some(next);
        }
        current.ok_or_else(|| at(entry, Errno::NOENT.into()))
    }
}

/// The components of a name; refuses whatever is not plainly below the root.
fn parts(path: &[u8]) -> Result<Vec<&[u8]>, TemplateError> {
    let refuse = |reason: &str| Err(TemplateError::refused(path, reason));
    if path.is_empty() || path.len() > 4096 || path.contains(&0) {
        return refuse("has an empty or overlong name, or one with a NUL");
    }
    if path.starts_with(b"/") {
        return refuse("has an absolute name");
    }
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
    if parts.contains(&&b".."[..]) {
        return refuse("has a name with `..`");
    }
    Ok(parts)
}

/// Copies a file and leaves holes where it has nothing but zeros: archives hold them written out.
fn copy_sparse(content: &mut dyn Read, file: &mut std::fs::File) -> io::Result<u64> {
    let mut buffer = vec![0; BLOCK];
    let mut total = 0;
    loop {
        let mut filled = 0;
        while filled < BLOCK {
            match content.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        total += filled as u64;
        if filled == BLOCK && buffer.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Start(total))?;
            continue;
        }
        file.write_all(&buffer[..filled])?;
        if filled < BLOCK {
            break;
        }
    }
    // Where the end is a hole, nothing was written there.
    file.set_len(total)?;
    Ok(total)
}

/// Makes something new; the later entry wins over an earlier one of the same name, except over a directory.
fn replacing<T>(
    parent: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> rustix::io::Result<T>,
) -> io::Result<T> {
    match make() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            Ok(make()?)
        }
        other => Ok(other?),
    }
}

/// Makes a directory unless it is there, and says whether it made one.
fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<bool> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) if is_whiteout(parent, name) => {
            make_instead(parent, name)?;
            Ok(true)
        }
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory that the archive has not listed, or not yet.
fn make_implied(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    if is_whiteout(parent, name) {
        return make_instead(parent, name);
    }
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    let directory = open_for_attributes(parent, name)?;
    Ok(rustix::fs::fsetxattr(directory, IMPLIED, b"y", XattrFlags::empty())?)
}

/// Makes a directory in the place of a whiteout; it hides what is below, as the whiteout did.
fn make_instead(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
    rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
    hide_below(open_for_attributes(parent, name)?.as_fd())
}

fn open_for_attributes(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// What was implied is listed after all.
fn told(directory: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::fremovexattr(directory, IMPLIED) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_whiteout(parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|of| marks_nothing(&of))
}

/// Overlayfs's mark of a directory that does not continue in lower layers. Whiteouts in it have nothing to hide any more.
fn hide_below(directory: BorrowedFd<'_>) -> io::Result<()> {
    if is_opaque(directory)? {
        return Ok(());
    }
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if entry.file_type() == FileType::CharacterDevice && is_whiteout(directory, name) {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
        }
    }
    Ok(rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())?)
}

/// Of a directory that may be open as a path only.
fn is_opaque(directory: BorrowedFd<'_>) -> io::Result<bool> {
    let mut value = [0; 1];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    match rustix::fs::fgetxattr(directory, OPAQUE, &mut value) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn exists(parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Owner, mode and capability of an open file or directory. The owner comes first: changing it clears set-id bits and
/// capabilities.
fn describe(fd: BorrowedFd<'_>, member: &Member) -> io::Result<()> {
    set_owner(fd, member.uid, member.gid)?;
    rustix::fs::fchmod(fd, Mode::from_raw_mode(member.mode))?;
    if let (Some(value), Kind::File { .. }) = (&member.capability, &member.kind) {
        rustix::fs::fsetxattr(fd, "security.capability", value, XattrFlags::empty())?;
    }
    for (name, value) in &member.attributes {
        match rustix::fs::fsetxattr(fd, name.as_str(), value, XattrFlags::empty()) {
            // This file system has none: the file is the same without.
            Ok(()) | Err(Errno::NOTSUP) => {}
            // As ext4 says that they do not fit one block; a full disk would be found out by the next file.
            Err(Errno::NOSPC) => return Err(Errno::TOOBIG.into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn describe_link(parent: BorrowedFd<'_>, name: &[u8], member: &Member) -> io::Result<()> {
    set_owner_at(parent, name, member.uid, member.gid)?;
    rustix::fs::utimensat(parent, name, &timestamps(member.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn owner(uid: u32, gid: u32) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(uid + ID_SHIFT)), Some(Gid::from_raw(gid + ID_SHIFT)))
}

fn set_owner(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = owner(uid, gid);
    Ok(rustix::fs::fchown(fd, uid, gid)?)
}

fn set_owner_at(parent: BorrowedFd<'_>, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = owner(uid, gid);
    Ok(rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_times(fd: BorrowedFd<'_>, mtime: u64) -> io::Result<()> {
    Ok(rustix::fs::futimens(fd, &timestamps(mtime))?)
}

fn timestamps(mtime: u64) -> Timestamps {
    let time = Timespec { tv_sec: mtime.cast_signed(), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// Errors that an archive can provoke refuse it; the rest is the host's trouble.
fn at(entry: &[u8], error: io::Error) -> TemplateError {
    let reason = match Errno::from_io_error(&error) {
        Some(Errno::NAMETOOLONG) => "has an overlong name",
        Some(Errno::ISDIR | Errno::NOTEMPTY) => "would replace a directory",
        Some(Errno::INVAL | Errno::ILSEQ) => "cannot be stored by this file system",
        Some(Errno::NOENT) => "has an empty name or target",
        Some(Errno::TOOBIG | Errno::RANGE) => "has more attributes than this file system keeps",
        Some(Errno::MLINK) => "has too many hard links",
        Some(Errno::NOSPC | Errno::DQUOT) => return TemplateError::DiskFull,
        _ if error.kind() == io::ErrorKind::UnexpectedEof => return TemplateError::BadArchive(error),
        _ => return TemplateError::Io { what: "writing the layer", source: error },
    };
    TemplateError::refused(entry, reason)
}
