//! Where things lie on the host.
//!
//! ```text
//! <layers_dir>/<sha256>/               read-only trees, ids shifted
//! <state_dir>/disks/<id>.img           one sparse ext4 image per sandbox: its writable top, kept while it is paused
//!             disks/<id>.guest         the same of a guest that mounts it itself: never mounted here
//!             disks/<id>.mem/          memory of a paused machine; .saving and .resuming: about to be, or to have been
//!             disks/<id>.base          the image below of a virtual machine, by a name of its own
//!             disks/blank/<mib>.img    formatted, empty; copied for each new sandbox
//!             disks/base/<hash>.img    the layers of a template as one image, for virtual machines; .layers names them
//!             states/<name>/           what forks begin with (`states`)
//! <run_dir>/m/<id>/root                the machine's root: layers below, the disk above
//!                  disk                the mounted image, 0700
//!                  host                the driver's own, 0700
//!                  engine              which engine that is
//!           n/<id>, n/router           network namespaces; for a virtual machine the name of its tap device
//! ```
//!
//! `run_dir` and `m/<id>` must be passable for other ids: the container's first process reaches its root through them
//! with the guest's ids.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::SandboxId;
use driver::Promises;

/// Whose kernel reads a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountedBy {
    Host,
    Guest,
}

impl From<Promises> for MountedBy {
    fn from(promises: Promises) -> Self {
        if promises.mounts_disks { Self::Guest } else { Self::Host }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Place {
    state: PathBuf,
    layers: PathBuf,
    run: PathBuf,
}

impl Place {
    /// Makes the directories.
    pub(crate) fn prepare(state: &Path, layers: &Path, run: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(state)?;
        std::fs::create_dir_all(layers)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(run)?;
        let place = Self {
            state: std::fs::canonicalize(state)?,
            layers: std::fs::canonicalize(layers)?,
            run: std::fs::canonicalize(run)?,
        };
        std::fs::set_permissions(&place.run, PermissionsExt::from_mode(0o711))?;
        for ancestor in place.run.ancestors() {
            if std::fs::metadata(ancestor)?.mode() & 0o001 == 0 {
                return Err(io::Error::other(format!(
                    "{} must be passable for others (chmod o+x), or the run directory must lie elsewhere",
                    ancestor.display()
                )));
            }
        }
        let make = |path: PathBuf, mode: u32| {
            std::fs::DirBuilder::new().recursive(true).mode(mode).create(&path)?;
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))
        };
        make(place.machines(), 0o711)?;
        make(place.netns_dir(), 0o700)?;
        make(place.disks(), 0o700)?;
        make(place.disks().join("blank"), 0o700)?;
        make(place.bases(), 0o700)?;
        make(place.states(), 0o700)?;
        Ok(place)
    }

    pub(crate) fn machines(&self) -> PathBuf {
        self.run.join("m")
    }

    pub(crate) fn machine(&self, id: SandboxId) -> PathBuf {
        self.machines().join(id.to_string())
    }

    pub(crate) fn root(&self, id: SandboxId) -> PathBuf {
        self.machine(id).join("root")
    }

    pub(crate) fn disk(&self, id: SandboxId) -> PathBuf {
        self.machine(id).join("disk")
    }

    pub(crate) fn netns_dir(&self) -> PathBuf {
        self.run.join("n")
    }

    pub(crate) fn netns(&self, id: SandboxId) -> PathBuf {
        self.netns_dir().join(id.to_string())
    }

    pub(crate) fn router(&self) -> PathBuf {
        self.netns_dir().join("router")
    }

    pub(crate) fn disks(&self) -> PathBuf {
        self.state.join("disks")
    }

    /// The disk of a sandbox. Its name says who mounts it, whatever a database or a configuration says: nothing that the host
    /// mounts ever has the name of a disk that a guest wrote.
    pub(crate) fn image(&self, id: SandboxId, mounted_by: MountedBy) -> PathBuf {
        match mounted_by {
            MountedBy::Host => self.disks().join(format!("{id}.img")),
            MountedBy::Guest => self.guest_disk(id),
        }
    }

    /// A disk that only its guest mounts.
    pub(crate) fn guest_disk(&self, id: SandboxId) -> PathBuf {
        self.disks().join(format!("{id}.guest"))
    }

    pub(crate) fn blank(&self, mib: u32) -> PathBuf {
        self.disks().join("blank").join(format!("{mib}.img"))
    }

    pub(crate) fn states(&self) -> PathBuf {
        self.state.join("states")
    }

    /// A state, by its name, which is one of ours: no dots, no slashes.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.states().join(name)
    }

    /// Images of templates.
    pub(crate) fn bases(&self) -> PathBuf {
        self.disks().join("base")
    }

    /// The memory of a paused machine, a checkpoint. While it is there, it is what the sandbox is, whatever else there is.
    pub(crate) fn memory(&self, id: SandboxId) -> PathBuf {
        self.disks().join(format!("{id}.mem"))
    }

    pub(crate) fn layer(&self, digest: &str) -> PathBuf {
        self.layers.join(digest)
    }

    /// Whether anything of a sandbox is here.
    pub(crate) fn has_any(&self, id: SandboxId) -> bool {
        self.has_disk(id) || [self.machine(id), self.netns(id)].iter().any(|path| path.exists())
    }

    /// Whether there is a disk of it, of whatever kind.
    pub(crate) fn has_disk(&self, id: SandboxId) -> bool {
        [MountedBy::Host, MountedBy::Guest].iter().any(|kind| self.image(id, *kind).exists())
    }

    /// Removes what is left of a machine's directory, its mounts being gone.
    pub(crate) fn remove_machine(&self, id: SandboxId) -> io::Result<()> {
        crate::engines::unmark(&self.machine(id))?;
        // Directory by directory: a mount that is still there must not be emptied.
        for dir in [self.root(id), self.disk(id), self.machine(id)] {
            remove_dir(&dir)?;
        }
        Ok(())
    }

    /// Removes the run directory, which must hold no machines.
    pub(crate) fn remove_run(&self) -> io::Result<()> {
        for dir in [self.machines(), self.netns_dir(), self.run.clone()] {
            remove_dir(&dir)?;
        }
        Ok(())
    }
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a directory and all in it, or a file; either may not be there.
pub(crate) fn remove_all(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => remove_file(path),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file that may not be there.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Unmounts everything mounted on a path that may not be one, without waiting for users.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    use rustix::mount::UnmountFlags;
    // More than one only after a mishap; bounded all the same.
    for _ in 0..16 {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
