//! The read-only disk of virtual machines: one ext4 image per list of layers, made once, with the guest's own ids. It is made
//! from the layers as the host sees them, by a program that sees them as the guest will: `mke2fs` runs in a user namespace
//! with the guests' ids, so that owners and file capabilities come out as they are inside.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use domain::SandboxId;
use sha2::{Digest, Sha256};
use templates::{Pending, TemplateError};

use crate::disk;
use crate::error::NodeError;
use crate::place::{Place, remove_file, unmount};
use crate::sys;

/// Named with each image: another one when images are made differently.
const FORMAT: &str = "superserve base 1";
const BLOCK: u64 = 4_096;
/// More than templates have; a walk that finds more is in something else.
const MAX_ENTRIES: u64 = 20_000_000;
/// Images that no sandbox has at the moment, the last used ones. Each step of a build has another list of layers, hence another
/// image as large as the template; one that is gone costs whoever is next some seconds.
const MOST_UNUSED: usize = 4;

/// Makes the image of these layers if it is not there, and gives the sandbox its name for it.
pub(crate) fn ensure(
    place: &Place,
    id: SandboxId,
    layers: &[String],
    id_shift: u32,
) -> Result<(), NodeError> {
    let image = made(place, id, layers, id_shift)?;
    let own = of(place, id);
    remove_file(&own)
        .and_then(|()| std::fs::hard_link(image, own))
        .map_err(NodeError::io("give the sandbox its template"))
}

/// A sandbox's name for its image: the same file under another name. While there is one the image is there, whatever
/// becomes of the template, and it is the very one that the memory of a paused sandbox knows.
pub(crate) fn of(place: &Place, id: SandboxId) -> PathBuf {
    place.disks().join(format!("{id}.base"))
}

/// Whether the image is there that a paused sandbox knows: one made anew would be another to its kernel.
pub(crate) fn of_paused(place: &Place, id: SandboxId) -> Result<(), NodeError> {
    if of(place, id).exists() { Ok(()) } else { Err(NodeError::NoBase) }
}

fn made(place: &Place, id: SandboxId, layers: &[String], id_shift: u32) -> Result<PathBuf, NodeError> {
    let image = path(place, layers);
    if is_there(&image) {
        return Ok(image);
    }
    // One at a time: whoever comes second finds what the first has made.
    static MAKING: Mutex<()> = Mutex::new(());
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_there(&image) {
        return Ok(image);
    }
    sweep(place).map_err(NodeError::io("look at base images"))?;
    let unfinished = image.with_extension("new");
    let made = make(place, id, layers, id_shift, &unfinished).and_then(|()| {
        std::fs::write(image.with_extension("layers"), layers.join("\n"))
            .and_then(|()| std::fs::rename(&unfinished, &image))
            .map_err(NodeError::io("keep a base image"))
    });
    if made.is_err() {
        drop(remove_file(&unfinished));
    }
    made.map(|()| image)
}

/// Whether an image is there, which is thereby used.
fn is_there(image: &Path) -> bool {
    File::open(image).and_then(|file| file.set_modified(SystemTime::now())).is_ok()
}

/// Where the image of these layers is.
fn path(place: &Place, layers: &[String]) -> PathBuf {
    let mut hasher = Sha256::new();
    hasher.update(FORMAT);
    for layer in layers {
        hasher.update(layer);
    }
    let name: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    place.bases().join(format!("{name}.img"))
}

/// Removes images of layers that are gone, those that have not been used for long, and what an interrupted attempt left.
/// Sandboxes keep theirs by another name.
pub(crate) fn sweep(place: &Place) -> io::Result<()> {
    let mut unused = Vec::new();
    for entry in std::fs::read_dir(place.bases())? {
        let path = entry?.path();
        match path.extension().and_then(|kind| kind.to_str()) {
            Some("layers") => {
                let layers = std::fs::read_to_string(&path)?;
                if !layers.lines().all(|digest| place.layer(digest).is_dir()) {
                    remove_file(&path.with_extension("img"))?;
                    remove_file(&path)?;
                }
            }
            Some("new") => remove_file(&path)?,
            Some("img") => {
                // It may have gone with its layers just now.
                if let Some(of) = std::fs::metadata(&path).ok().filter(|of| of.nlink() == 1) {
                    unused.push((of.modified()?, path));
                }
            }
            _ => {}
        }
    }
    unused.sort();
    unused.truncate(unused.len().saturating_sub(MOST_UNUSED));
    for (_, image) in unused {
        remove_file(&image)?;
        remove_file(&image.with_extension("layers"))?;
    }
    Ok(())
}

fn make(
    place: &Place,
    id: SandboxId,
    layers: &[String],
    id_shift: u32,
    image: &Path,
) -> Result<(), NodeError> {
    let tree = disk::mount_layers(place, id, layers)?;
    let made = Size::of(&tree).and_then(|size| {
        disk::check_room(place, size.least_mib())?;
        format(&tree, &size, id_shift, image)
    });
    unmount(&place.root(id)).map_err(NodeError::io("unmount the template"))?;
    made
}

/// What a tree takes of an image.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    entries: u64,
    blocks: u64,
}

impl Size {
    fn of(tree: &Path) -> Result<Self, NodeError> {
        let failed = || NodeError::io("measure the template");
        let mut size = Self { entries: 0, blocks: 0 };
        let mut pending = Pending::below(tree);
        while let Some((dir, ())) = pending.pop() {
            for entry in std::fs::read_dir(dir).map_err(failed())? {
                let entry = entry.map_err(failed())?;
                let of = entry.metadata().map_err(failed())?;
                size.entries += 1;
                // A directory takes a block at least, a file with attributes one more.
                size.blocks += of.size().div_ceil(BLOCK) + 1;
                if of.is_dir() {
                    pending.push(entry.path(), ()).map_err(TemplateError::from)?;
                }
                if size.entries > MAX_ENTRIES {
                    return Err(failed()(io::Error::other("the template has too many files")));
                }
            }
        }
        Ok(size)
    }

    /// What is written at least.
    fn least_mib(&self) -> u64 {
        (self.blocks * BLOCK + self.entries * 256) / (1024 * 1024)
    }

    /// Too large costs nothing: what is not written is not there.
    fn mib(&self) -> u64 {
        (self.blocks * BLOCK * 5 / 4 + self.entries * 512) / (1024 * 1024) + 64
    }
}

fn format(tree: &Path, size: &Size, id_shift: u32, image: &Path) -> Result<(), NodeError> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(image)
        .and_then(|file| {
            file.set_len(size.mib() * 1024 * 1024)?;
            std::os::unix::fs::fchown(&file, Some(id_shift), Some(id_shift))?;
            Ok(file)
        })
        .map_err(NodeError::io("make a base image"))?;
    let mut command = Command::new("mke2fs");
    command
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-I", "256", "-O", "^has_journal"])
        .args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-N"])
        .arg((size.entries + size.entries / 8 + 1_024).to_string())
        // Opened again by what it is: as a guest's root it may not pass the directories that lead here.
        .args(["-d", ".", "/proc/self/fd/0"])
        .current_dir(tree)
        .stdin(file.try_clone().map_err(NodeError::io("make a base image"))?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = sys::spawn_as_guest(&mut command, id_shift)
        .map_err(NodeError::command("mke2fs"))?
        .wait_with_output()
        .map_err(NodeError::io("wait for mke2fs"))?;
    if !output.status.success() {
        let detail = String::from_utf8_lossy(&output.stderr).trim().chars().take(2_048).collect();
        return Err(NodeError::Command { program: "mke2fs", detail });
    }
    std::os::unix::fs::fchown(&file, Some(0), Some(0))
        .and_then(|()| file.set_permissions(PermissionsExt::from_mode(0o444)))
        .and_then(|()| file.sync_all())
        .map_err(NodeError::io("keep a base image"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_goes_with_one_of_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let (kept, lost) = (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]);
        assert_ne!(path(&place, &kept), path(&place, &lost));
        std::fs::create_dir(at("layers/a")).unwrap();
        std::fs::create_dir(at("layers/b")).unwrap();
        for layers in [&kept, &lost] {
            let image = path(&place, layers);
            std::fs::write(image.with_extension("layers"), layers.join("\n")).unwrap();
            std::fs::write(&image, "image").unwrap();
        }
        std::fs::write(path(&place, &kept).with_extension("new"), "half").unwrap();
        std::fs::remove_dir(at("layers/b")).unwrap();
        sweep(&place).unwrap();
        let left = std::fs::read_dir(place.bases()).unwrap().count();
        assert_eq!((left, path(&place, &kept).exists()), (2, true));
    }

    #[test]
    fn images_that_nobody_has_are_few() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let id = SandboxId::new();
        let stacks: Vec<_> = (0..MOST_UNUSED + 4).map(|n| vec![format!("{n}")]).collect();
        for (age, layers) in stacks.iter().rev().enumerate() {
            std::fs::create_dir(at("layers").join(&layers[0])).unwrap();
            let image = path(&place, layers);
            std::fs::write(image.with_extension("layers"), &layers[0]).unwrap();
            let long_ago = SystemTime::now() - std::time::Duration::from_secs(60 * (age as u64 + 1));
            File::create(&image).unwrap().set_modified(long_ago).unwrap();
        }
        // The oldest is a sandbox's, the next one has just been used.
        std::fs::hard_link(path(&place, &stacks[0]), of(&place, id)).unwrap();
        made(&place, id, &stacks[1], 0).unwrap();
        sweep(&place).unwrap();
        let left: Vec<usize> = (0..stacks.len()).filter(|n| path(&place, &stacks[*n]).exists()).collect();
        assert_eq!(left, [0, 1, 5, 6, 7]);
        assert_eq!(std::fs::read_dir(place.bases()).unwrap().count(), 2 * left.len());
    }

    #[test]
    fn a_sandbox_keeps_the_image_that_it_knows() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let at = |name: &str| dir.path().join(name);
        let place = Place::prepare(&at("state"), &at("layers"), &at("run")).unwrap();
        let (id, layers) = (SandboxId::new(), vec!["a".to_owned()]);
        assert!(matches!(of_paused(&place, id), Err(NodeError::NoBase)));
        std::fs::create_dir(at("layers/a")).unwrap();
        let image = path(&place, &layers);
        std::fs::write(image.with_extension("layers"), "a").unwrap();
        std::fs::write(&image, "image").unwrap();
        for _ in 0..2 {
            ensure(&place, id, &layers, 0).unwrap();
        }
        std::fs::remove_dir(at("layers/a")).unwrap();
        sweep(&place).unwrap();
        assert!(!image.exists());
        of_paused(&place, id).unwrap();
        assert_eq!(std::fs::read_to_string(of(&place, id)).unwrap(), "image");
        disk::delete(&place, id).unwrap();
        assert!(!of(&place, id).exists());
    }

    #[test]
    fn a_tree_fits_into_what_is_made_for_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/file"), vec![1; 10_000]).unwrap();
        std::os::unix::fs::symlink("/nowhere", dir.path().join("a/b/link")).unwrap();
        let size = Size::of(dir.path()).unwrap();
        assert_eq!(size.entries, 4);
        assert!(size.blocks >= 3 + 4 && size.mib() >= 64);
    }
}
