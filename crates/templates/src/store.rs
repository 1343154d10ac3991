//! The directory of layers. A layer appears by one rename when it is complete, so a crash leaves only temporary
//! directories, which the next start sweeps away.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pack::{OPAQUE, Pending};
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::archive;
use crate::error::TemplateError;
use crate::source::Source;
use crate::tree::Tree;
use crate::uses::{self, Adding};

/// Inodes that are left to others: archives of empty files take nothing else. Between two looks fewer are made.
const INODE_RESERVE: u64 = 100_000;
const TEMPORARY: &str = ".tmp-";

/// One root file system, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// SHA-256 of the uncompressed archive, 64 lowercase hex digits.
    pub digest: String,
    /// Bytes of file content.
    pub size_bytes: u64,
}

/// Bounds of one archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Entries, extension headers and directories that are only implied included.
    pub entries: u64,
    /// Bytes of the disk that are left free.
    pub reserve: u64,
}

impl Default for Limits {
    /// The largest disk a template can have (64 GiB), and four times the files of a large development image.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 2_000_000, reserve: domain::DISK_RESERVE_MIB << 20 }
    }
}

/// A directory of layers. Several processes may use the same one.
#[derive(Debug, Clone)]
pub struct LayerStore {
    dir: PathBuf,
    limits: Limits,
    /// Held shared by every user of the directory, so that nobody sweeps away what another is writing.
    in_use: Arc<OwnedFd>,
    /// For whose use it is, if that is known.
    pub(crate) user: Option<Adding>,
}

impl LayerStore {
    /// Opens or makes the directory and removes what an interrupted import left.
    ///
    /// # Errors
    /// `Io` when the directory cannot be made or written.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, TemplateError> {
        let dir = dir.as_ref().to_owned();
        // Only root may look inside: layers hold set-id programs of foreign owners.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(TemplateError::io("cannot make the layer directory"))?;
        let lock = lock_file(&dir.join(".lock"))?;
        let lock_failed = || TemplateError::io("cannot lock the layer directory");
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            sweep(&dir).map_err(TemplateError::io("cannot sweep the layer directory"))?;
        }
        rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(lock_failed())?;
        Ok(Self { dir, limits: Limits::default(), in_use: Arc::new(lock), user: None })
    }

    /// The same store with other bounds.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Where a layer's root file system is; `None` when there is no such layer.
    #[must_use]
    pub fn path(&self, digest: &str) -> Option<PathBuf> {
        let path = is_digest(digest).then(|| self.dir.join(digest))?;
        path.is_dir().then_some(path)
    }

    /// Finds a layer and adds up its files; `None` when it is not there or cannot be read. Blocking.
    pub(crate) fn measure(&self, digest: &str) -> Option<Layer> {
        let mut pending = Pending::below(&self.path(digest)?);
        let mut size_bytes = 0;
        let mut counted = HashSet::new();
        while let Some((dir, ())) = pending.pop() {
            for entry in fs::read_dir(dir).ok()? {
                let entry = entry.ok()?;
                // Of the entry itself: links are not followed.
                let of = entry.metadata().ok()?;
                if of.is_dir() {
                    pending.push(entry.path(), ()).ok()?;
                } else if of.is_file() && (of.nlink() == 1 || counted.insert(of.ino())) {
                    size_bytes += of.len();
                }
            }
        }
        Some(Layer { digest: digest.to_owned(), size_bytes })
    }

    /// Whether nothing of the layers below this one is to be seen.
    pub(crate) fn hides_all_below(&self, digest: &str) -> bool {
        self.path(digest).is_some_and(|path| hides_all_below(&path))
    }

    /// The digests of all layers, sorted.
    ///
    /// # Errors
    /// `Io` when the directory cannot be read.
    pub fn list(&self) -> Result<Vec<String>, TemplateError> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.dir)? {
                names.extend(entry?.file_name().into_string().ok().filter(|name| is_digest(name)));
            }
            names.sort();
            Ok(names)
        };
        read().map_err(TemplateError::io("cannot list the layer directory"))
    }

    /// Unpacks an archive (tar, or gzip of it) into a layer. `progress` hears the position in the uncompressed stream.
    /// The same archive again changes nothing. Blocking: call it from a blocking thread.
    ///
    /// # Errors
    /// `Refused`, `TooLarge` or `BadArchive` when the archive is at fault, `Io` when the host is. Nothing is left then.
    pub fn import_tar(&self, reader: impl Read, progress: &dyn Fn(u64)) -> Result<Layer, TemplateError> {
        self.unpack(reader, progress)?.commit()
    }

    /// Unpacks without publishing: the caller may still find out that the archive is worth nothing.
    pub(crate) fn unpack(&self, reader: impl Read, progress: &dyn Fn(u64)) -> Result<Staged, TemplateError> {
        self.check_room(0)?;
        let work = self.work_dir()?;
        let root = work.path().join("root");
        fs::create_dir(&root).map_err(TemplateError::io("cannot make a temporary directory"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&root, flags, Mode::empty());
        let fd = fd.map_err(TemplateError::io("cannot open a temporary directory"))?;
        let mut tree = Tree::new(fd).map_err(TemplateError::io("cannot write the layer"))?;
        let room = || self.check_room(0).is_ok();
        let mut source = Source::new(reader, self.limits.bytes, &room).map_err(TemplateError::BadArchive)?;
        let counts = archive::unpack(&mut source, &mut tree, self.limits, progress)?;
        let bytes = source.position();
        let digest = source.digest().map_err(TemplateError::BadArchive)?;
        tracing::info!(%digest, archive_bytes = bytes, ?counts, "layer unpacked");
        let layer = Layer { digest, size_bytes: counts.bytes };
        Ok(Staged { store: self.clone(), work, layer, entries: counts.entries })
    }

    /// Removes a layer; the caller knows that no sandbox or template uses it.
    ///
    /// # Errors
    /// `NoSuchLayer`, or `Io` when the removal fails half-way; the layer is gone from the store in any case.
    pub fn remove(&self, digest: &str) -> Result<(), TemplateError> {
        let path =
            self.path(digest).ok_or_else(|| TemplateError::NoSuchLayer(digest.chars().take(80).collect()))?;
        let work = self.work_dir()?;
        let failed = || TemplateError::io("cannot remove the layer");
        fs::rename(path, work.path().join("root")).map_err(failed())?;
        work.remove().map_err(failed())
    }

    /// Has what was unpacked so far written to the disk. A rename must not get there before the files do, or a crash leaves a
    /// layer of empty files.
    pub(crate) fn flush(&self) -> Result<(), TemplateError> {
        let flush = fs::File::open(&self.dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        flush.map_err(TemplateError::io("cannot flush the layer"))
    }

    /// A fresh directory that disappears with its owner, or with the next start.
    pub(crate) fn work_dir(&self) -> Result<WorkDir, TemplateError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(TemplateError::io("cannot make a temporary directory"))?;
        Ok(WorkDir(path))
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn in_use(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.in_use)
    }

    /// Refuses to go on when less than the reserve would be left of the disk.
    pub(crate) fn check_room(&self, for_bytes: u64) -> Result<(), TemplateError> {
        let of =
            rustix::fs::statvfs(&self.dir).map_err(TemplateError::io("cannot ask for free disk space"))?;
        let free = of.f_bavail.saturating_mul(of.f_frsize);
        // Some file systems make inodes as they need them, and say that there are none.
        let few_inodes = of.f_files > 0 && of.f_favail < INODE_RESERVE;
        if few_inodes || free < self.limits.reserve.saturating_add(for_bytes) {
            return Err(TemplateError::DiskFull);
        }
        Ok(())
    }
}

/// An unpacked archive that is not a layer yet; dropping it removes it.
#[derive(Debug)]
pub struct Staged {
    store: LayerStore,
    work: WorkDir,
    layer: Layer,
    entries: u64,
}

impl Staged {
    /// SHA-256 of the uncompressed archive.
    pub(crate) fn digest(&self) -> &str {
        &self.layer.digest
    }

    /// Bytes of file content.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.layer.size_bytes
    }

    /// Whether the archive has no entries at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Whether it has nothing but the root directory, and that continues below.
    pub(crate) fn says_nothing(&self) -> Result<bool, TemplateError> {
        let root = self.work.path().join("root");
        let empty = fs::read_dir(&root).map(|mut entries| entries.next().is_none());
        let empty = empty.map_err(TemplateError::io("cannot look at a temporary directory"))?;
        Ok(empty && !hides_all_below(&root))
    }

    /// Makes it a layer. Waits until it is on the disk, with whatever else the disk has to write. Blocking.
    ///
    /// # Errors
    /// `BadArchive` when there is nothing in it, `Io` when the host is at fault; nothing is left then.
    pub fn commit(self) -> Result<Layer, TemplateError> {
        self.store.flush()?;
        self.publish()
    }

    /// Makes it a layer; its files are on the disk.
    pub(crate) fn publish(self) -> Result<Layer, TemplateError> {
        if self.is_empty() {
            let cause = io::Error::new(io::ErrorKind::InvalidData, "it has no entries");
            return Err(TemplateError::BadArchive(cause));
        }
        let target = self.store.dir.join(&self.layer.digest);
        let noting = self.store.noting()?;
        self.store.note(&noting, &self.layer.digest)?;
        match fs::rename(self.work.path().join("root"), &target) {
            Ok(()) => Ok(self.layer),
            // Somebody imported the same bytes before; a layer is never empty, so the rename refuses.
            Err(_) if target.is_dir() => Ok(self.layer),
            Err(error) => Err(TemplateError::io("cannot publish the layer")(error)),
        }
    }
}

/// A temporary directory.
#[derive(Debug)]
pub(crate) struct WorkDir(PathBuf);

impl WorkDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.0)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %self.0.display(), %error, "temporary directory stays behind")
            }
        }
    }
}

fn hides_all_below(root: &Path) -> bool {
    let mut value = [0; 1];
    rustix::fs::lgetxattr(root, OPAQUE, &mut value).is_ok_and(|length| value[..length] == *b"y")
}

/// Opens a file to be locked.
pub(crate) fn lock_file(path: &Path) -> Result<OwnedFd, TemplateError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
    fd.map_err(TemplateError::io("cannot write the layer directory"))
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(TEMPORARY)) {
            // It takes room, and is nothing that anybody would look at: no reason to do without the layers.
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "what an import left stays behind");
            }
        }
    }
    uses::sweep(dir)
}
