//! Which sandboxes have left anything on this host. Everything a sandbox owns is found under its id in one of three
//! directories, and each is removed from them last; so their names are the whole list.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use domain::SandboxId;

use crate::place::Place;

/// Ids of all sandboxes with a machine directory, a network namespace or a disk, whole or half made.
pub(crate) fn present(place: &Place) -> io::Result<BTreeSet<SandboxId>> {
    let mut ids = BTreeSet::new();
    for dir in [place.machines(), place.netns_dir(), place.disks()] {
        ids.extend(names(&dir)?.iter().filter_map(|name| owner(name)));
    }
    Ok(ids)
}

/// Whether any machine or link is left.
pub(crate) fn running(place: &Place) -> io::Result<bool> {
    for dir in [place.machines(), place.netns_dir()] {
        if names(&dir)?.iter().any(|name| owner(name).is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

/// `<id>`, `<id>.img`, `<id>.new`, `<id>.blank`.
fn owner(name: &str) -> Option<SandboxId> {
    name.split_once('.').map_or(name, |(id, _)| id).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_files() {
        let id = SandboxId::new();
        for name in [format!("{id}"), format!("{id}.img"), format!("{id}.new"), format!("{id}.blank")] {
            assert_eq!(owner(&name), Some(id), "{name}");
        }
        for name in ["router", "blank", "", ".img"] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
