//! A client's file: read within bounds, replaced as a whole or not at all, through symbolic links to where it really is.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Claude Code keeps its state in the same file, which grows to some megabytes.
const MAX_BYTES: u64 = 32 * 1024 * 1024;

/// What is there.
#[derive(Debug)]
pub(super) struct File {
    /// Where the content is, behind symbolic links.
    real: PathBuf,
    /// `None`: there is no such file.
    pub(super) text: Option<String>,
    /// Its permission bits.
    pub(super) mode: Option<u32>,
}

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        let failed = |error: io::Error| CliError::new(format!("cannot read {}: {error}", path.display()));
        let real = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { real: path.to_owned(), text: None, mode: None });
            }
            Err(error) => return Err(failed(error)),
            Ok(_) => fs::canonicalize(path).map_err(|error| {
                CliError::new(format!("cannot follow {}: {error}", path.display()))
                    .hint("the link points nowhere; remove it, or make the file it points to")
            })?,
        };
        let metadata = fs::metadata(&real).map_err(failed)?;
        if !metadata.is_file() {
            return Err(CliError::new(format!("{} is not a file", path.display())));
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(&real).map_err(failed)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(CliError::new(format!("{} is larger than 32 MiB", path.display())));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| CliError::new(format!("{} was left alone: it is not UTF-8", path.display())))?;
        Ok(Self { real, text: Some(text), mode: Some(metadata.permissions().mode() & 0o7777) })
    }

    /// Directories that have to be made for it, innermost first.
    pub(super) fn missing_directories(&self) -> Vec<PathBuf> {
        let above = self.real.ancestors().skip(1);
        above.take_while(|directory| !directory.exists()).map(Path::to_owned).collect()
    }

    /// Puts `text` in its place, unless it has changed since it was read.
    pub(super) fn replace(&self, text: &str, mode: u32) -> Result<(), CliError> {
        write(&self.real, text.as_bytes(), mode, || self.check_unchanged())
    }

    /// Removes it, and those directories that are empty then.
    pub(super) fn remove(&self, directories: &[PathBuf]) -> Result<(), CliError> {
        self.check_unchanged()?;
        fs::remove_file(&self.real)
            .map_err(|error| CliError::new(format!("cannot remove {}: {error}", self.real.display())))?;
        for directory in directories {
            // What others have put there stays.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), CliError> {
        if Self::open(&self.real)?.text == self.text {
            return Ok(());
        }
        Err(CliError::new(format!("{} has changed meanwhile, so nothing was written", self.real.display()))
            .hint("close the client and try again"))
    }
}

/// Replaces a file so that a crash leaves the old content or the new one. Its owner stays the owner, also when root does it;
/// a new file belongs to whom its directory belongs to. `at_last` is asked when nothing but the exchange is left to do.
pub(super) fn write(
    path: &Path,
    content: &[u8],
    mode: u32,
    at_last: impl FnOnce() -> Result<(), CliError>,
) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::new(format!("cannot write {}: {error}", path.display()));
    let directory =
        path.parent().ok_or_else(|| CliError::new(format!("{} is not a file", path.display())))?;
    let existing = directory.ancestors().find(|above| above.exists()).unwrap_or(directory);
    let owner = fs::metadata(path).or_else(|_| fs::metadata(existing)).map_err(failed)?;
    make_directories(directory, existing, &owner).map_err(failed)?;
    let mut fresh = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    fresh.as_file().set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
    give_to(fresh.path(), &owner).map_err(failed)?;
    fresh.write_all(content).and_then(|()| fresh.as_file().sync_all()).map_err(failed)?;
    at_last()?;
    fresh.persist(path).map_err(|error| failed(error.error))?;
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

fn make_directories(wanted: &Path, existing: &Path, owner: &fs::Metadata) -> io::Result<()> {
    let Ok(missing) = wanted.strip_prefix(existing) else { return Ok(()) };
    let mut directory = existing.to_owned();
    for name in missing {
        directory.push(name);
        fs::create_dir(&directory)?;
        give_to(&directory, owner)?;
    }
    Ok(())
}

/// Only root can, and only root needs to.
fn give_to(path: &Path, owner: &fs::Metadata) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}
