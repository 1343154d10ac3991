//! Directories that a layer only implies: an archive may hold `tmp/x` without `tmp/`. In the overlay the implied directory
//! would cover the one below it, and `/tmp` would lose its mode. Where that happens, one more layer on top repeats the
//! directories as they should be. It is made as an archive, so that it is named by its content like any other layer.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use crate::ID_SHIFT;
use crate::error::TemplateError;
use crate::store::{Layer, LayerStore};
use crate::tree::IMPLIED;
use pack::{OPAQUE, Pending};

/// Most implied directories that are looked at; images that have any have a handful.
const MAX_DIRECTORIES: usize = 50_000;
/// What their names, and those of the directories above them, may take.
const MAX_NAMES: usize = 64 << 20;

/// Makes the layer, if one is needed. Blocking.
pub(super) fn restored(store: &LayerStore, layers: &[Layer]) -> Result<Option<Layer>, TemplateError> {
    let failed = || TemplateError::io("cannot look at the layers of the image");
    let roots: Vec<PathBuf> = layers.iter().filter_map(|layer| store.path(&layer.digest)).collect();
    let mut wanted = BTreeSet::new();
    let mut names = 0;
    for root in roots.iter().skip(1) {
        for path in implied(root)? {
            if look(&roots, &path).map_err(failed())?.is_some_and(|found| found.covered()) {
                // Sorted, so that parents come before what is in them.
                for above in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
                    if !wanted.insert(above.to_path_buf()) {
                        break;
                    }
                    names += above.as_os_str().len();
                }
            }
            if wanted.len() > MAX_DIRECTORIES || names > MAX_NAMES {
                return Err(too_many());
            }
        }
    }
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut archive = tar::Builder::new(Vec::new());
    for path in wanted {
        let Some(found) = look(&roots, &path).map_err(failed())? else { continue };
        append(&mut archive, &path, &found.real).map_err(failed())?;
    }
    let archive = archive.into_inner().map_err(failed())?;
    store.import_tar(&archive[..], &|_| {}).map(Some)
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &Path, of: &Metadata) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Directory);
    header.set_mode(of.mode() & 0o7777);
    header.set_uid(of.uid().saturating_sub(ID_SHIFT).into());
    header.set_gid(of.gid().saturating_sub(ID_SHIFT).into());
    header.set_mtime(of.mtime().try_into().unwrap_or_default());
    header.set_size(0);
    archive.append_data(&mut header, path, io::empty())
}

/// The directories of a layer that its archive only implied, relative to its root.
fn implied(root: &Path) -> Result<Vec<PathBuf>, TemplateError> {
    let failed = || TemplateError::io("cannot look at the layers of the image");
    let (mut found, mut names) = (Vec::new(), 0);
    let mut pending = Pending::below(Path::new(""));
    while let Some((dir, ())) = pending.pop() {
        for entry in fs::read_dir(root.join(&dir)).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            // The entry's own kind: links are not followed.
            if entry.file_type().map_err(failed())?.is_dir() {
                let path = dir.join(entry.file_name());
                if has(&root.join(&path), IMPLIED) {
                    names += path.as_os_str().len();
                    found.push(path.clone());
                    if found.len() > MAX_DIRECTORIES || names > MAX_NAMES {
                        return Err(too_many());
                    }
                }
                pending.push(path, ())?;
            }
        }
    }
    Ok(found)
}

fn too_many() -> TemplateError {
    TemplateError::TooLarge { limit: MAX_DIRECTORIES as u64, unit: "implied directories" }
}

/// A directory as the overlay shows it, and as it should.
struct Found {
    shown: Metadata,
    real: Metadata,
}

impl Found {
    fn covered(&self) -> bool {
        let key = |of: &Metadata| (of.mode(), of.uid(), of.gid());
        key(&self.shown) != key(&self.real)
    }
}

/// Looks a directory up through the layers, from the top; `None` when the overlay has none there.
fn look(roots: &[PathBuf], path: &Path) -> io::Result<Option<Found>> {
    let mut found: Option<Found> = None;
    for root in roots.iter().rev() {
        let (here, ends) = look_in(root, path)?;
        if let Some(here) = here {
            let explicit = !has(&root.join(path), IMPLIED);
            found = match found {
                None => Some(Found { shown: here.clone(), real: here }),
                // Only what an archive says outright counts; until then the topmost stands for itself.
                Some(found) if explicit => Some(Found { real: here, ..found }),
                Some(found) => Some(found),
            };
            if explicit {
                break;
            }
        }
        if ends {
            break;
        }
    }
    Ok(found)
}

/// The directory in one layer, and whether nothing of it can be seen of lower layers.
fn look_in(root: &Path, path: &Path) -> io::Result<(Option<Metadata>, bool)> {
    let mut at = root.to_path_buf();
    let mut hidden = false;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        at.push(part);
        let of = match fs::symlink_metadata(&at) {
            Ok(of) => of,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, hidden)),
            Err(error) => return Err(error),
        };
        if !of.is_dir() {
            return Ok((None, true));
        }
        if parts.peek().is_none() {
            return Ok((Some(of), hidden));
        }
        hidden |= has(&at, OPAQUE);
    }
    Ok((None, hidden))
}

fn has(path: &Path, attribute: &str) -> bool {
    let mut value = [0; 1];
    rustix::fs::lgetxattr(path.as_os_str().as_bytes(), attribute, &mut value).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tests::{Archive, place};

    #[test]
    fn what_is_only_implied_keeps_what_it_was() {
        let place = place();
        let private = |archive: Archive, name: &str| {
            archive.entry(EntryType::Directory, name.as_bytes(), b"", b"", |h| h.set_mode(0o1770))
        };
        let mut below = Archive::default();
        for name in ["a", "a/b", "told", "replaced", "opened", "removed", "hidden", "hidden/inner", "gone"] {
            below = private(below, name);
        }
        let above = Archive::default()
            .file("a/b/new", "")
            .file("told/new", "")
            .directory("told")
            .file(".wh.replaced", "")
            .file("replaced/new", "")
            .file("opened/.wh..wh..opq", "")
            .file("removed/new", "")
            .file("hidden/.wh..wh..opq", "")
            .file("hidden/inner/new", "")
            .file("gone/new", "")
            .file("fresh/new", "");
        let top = Archive::default().file(".wh.gone", "").file("a/b/newer", "");
        let layers = [below, above, top].map(|archive| place.import(archive).unwrap());
        let made = restored(&place.store, &layers).unwrap().unwrap();
        let root = place.store.path(&made.digest).unwrap();
        let mut found: Vec<_> =
            ["a", "a/b", "told", "replaced", "opened", "removed", "hidden", "hidden/inner", "gone", "fresh"]
                .into_iter()
                .filter(|name| root.join(name).exists())
                .map(|name| (name, fs::metadata(root.join(name)).unwrap()))
                .collect();
        found.sort_by_key(|(name, _)| *name);
        let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", "a/b", "hidden", "opened", "removed"]);
        for (name, of) in found {
            assert_eq!(of.permissions().mode() & 0o7777, 0o1770, "{name}");
            assert_eq!((of.uid(), of.gid()), (ID_SHIFT + 7, ID_SHIFT + 8), "{name}");
        }
        // Again is the same, and without a need there is none.
        assert_eq!(restored(&place.store, &layers).unwrap().unwrap(), made);
        assert!(restored(&place.store, &layers[..1]).unwrap().is_none());
        let told = place.import(Archive::default().directory("told").file("told/x", "")).unwrap();
        assert!(restored(&place.store, &[layers[0].clone(), told]).unwrap().is_none());
    }
}
