//! What is written of a machine: its state, as what ran it writes it, and whose it is.
//!
//! ```text
//! <dir>/state    memory and devices; with Firecracker devices
//!       memory   with Firecracker
//!       machine  the machine's id
//!       model    with QEMU: which machine it emulated
//!       acceleration  with QEMU: whose processor it had
//!       still    others may continue it, too
//! ```
//!
//! All of it is root's, and the directory closed to others.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use domain::SandboxId;
use driver::DriverError;

use crate::files;

const STATE: &str = "state";
const MACHINE: &str = "machine";
/// An id has 36 bytes.
const MAX_ID_BYTES: u64 = 64;
/// In a checkpoint, and beside a machine that is frozen: the workload stood still before the machine did. Only then may another
/// machine continue it, which is told who it is before the workload runs.
pub(crate) const STILL: &str = "still";

/// One that can be read.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) state: File,
    /// Whose it is; those that are older are their own machine's.
    pub(crate) of: Option<SandboxId>,
    /// See [`STILL`].
    still: bool,
}

impl Checkpoint {
    pub(crate) fn open(dir: &Path) -> Result<Self, DriverError> {
        let state = files::open(&dir.join(STATE), false).map_err(DriverError::io("open the checkpoint"))?;
        let mut text = String::new();
        let of = match files::open(&dir.join(MACHINE), false) {
            Ok(file) => {
                file.take(MAX_ID_BYTES)
                    .read_to_string(&mut text)
                    .map_err(DriverError::io("read the checkpoint"))?;
                let damaged = |_| DriverError::Engine {
                    what: "reading the checkpoint",
                    detail: "it does not say whose it is".to_owned(),
                };
                Some(text.parse().map_err(damaged)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(DriverError::io("read the checkpoint")(error)),
        };
        Ok(Self { state, of, still: dir.join(STILL).exists() })
    }

    /// Whether others may continue it, too.
    pub(crate) fn for_others(&self) -> Result<(), DriverError> {
        if self.still {
            return Ok(());
        }
        Err(DriverError::Unsupported {
            what: "continuing a memory as another machine when its workload did not stand still",
        })
    }
}

/// Makes an empty one; the state is written into the file.
pub(crate) fn create(dir: &Path, of: SandboxId, still: bool) -> io::Result<File> {
    DirBuilder::new().mode(0o700).create(dir)?;
    let make = |name| File::options().write(true).create_new(true).mode(0o600).open(dir.join(name));
    let made = make(MACHINE).and_then(|mut file| {
        file.write_all(of.to_string().as_bytes())?;
        file.sync_all()?;
        if still {
            make(STILL)?;
        }
        make(STATE)
    });
    if made.is_err() {
        let _not_there = std::fs::remove_dir_all(dir);
    }
    made
}

/// Sees to it that all of it is on the disk.
pub(crate) fn sync(dir: &Path, files: &[File]) -> io::Result<()> {
    files.iter().try_for_each(File::sync_all)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_checkpoint_says_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("checkpoint");
        let id = SandboxId::new();
        let state = create(&at, id, true).unwrap();
        sync(&at, &[state]).unwrap();
        assert!(create(&at, id, true).is_err(), "it is there");
        assert_eq!(Checkpoint::open(&at).unwrap().of, Some(id));
        for name in [STATE, MACHINE, STILL] {
            assert_eq!(std::fs::metadata(at.join(name)).unwrap().mode() & 0o777, 0o600);
        }
        Checkpoint::open(&at).unwrap().for_others().unwrap();
        std::fs::write(at.join(MACHINE), "x".repeat(1 << 20)).unwrap();
        assert!(Checkpoint::open(&at).unwrap_err().to_string().contains("whose"));
        std::fs::remove_file(at.join(MACHINE)).unwrap();
        assert_eq!(Checkpoint::open(&at).unwrap().of, None);
        std::fs::remove_file(at.join(STATE)).unwrap();
        assert!(Checkpoint::open(&at).is_err());
    }

    #[test]
    fn a_checkpoint_is_written_nowhere_but_into_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "intact").unwrap();
        std::fs::create_dir(at("there")).unwrap();
        std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("dangling")).unwrap();
        for taken in ["file", "there", "link", "dangling", "missing/below"] {
            assert!(create(&at(taken), SandboxId::new(), true).is_err(), "{taken}");
        }
        assert!(!at("elsewhere").exists() && std::fs::read_dir(at("there")).unwrap().next().is_none());
        assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "intact");
        create(&at("new"), SandboxId::new(), false).unwrap();
        assert!(Checkpoint::open(&at("new")).unwrap().for_others().is_err(), "it moved");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&at("new")), mode(&at("new/state"))), (0o700, 0o600));
    }
}
