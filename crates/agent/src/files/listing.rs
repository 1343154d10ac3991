//! `format=json`: the entries of one directory.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use wire::data_plane::MAX_LISTING_ENTRIES;

use super::fault;
use crate::agent::Agent;
use crate::reply::{Refusal, Response, json};
use crate::sys::identity::Identity;

#[derive(Debug, Serialize)]
struct Listing {
    entries: Vec<Entry>,
    truncated: bool,
}

#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    is_dir: bool,
    size: u64,
    modified_unix: i64,
}

pub(super) async fn answer(
    agent: &Rc<Agent>,
    who: &Arc<Identity>,
    path: PathBuf,
) -> Result<Response, Refusal> {
    let listing = {
        let path = path.clone();
        agent.files.run_as(who, move || list(&path)).await
    };
    listing.map(|listing| json(StatusCode::OK, &listing)).map_err(|error| fault::refusal(&path, &error))
}

/// Links are shown as themselves. Entries that vanish meanwhile are left out.
fn list(path: &Path) -> io::Result<Listing> {
    let mut entries = Vec::new();
    let mut truncated = false;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entries.len() == MAX_LISTING_ENTRIES {
            truncated = true;
            break;
        }
        let Ok(metadata) = entry.metadata() else { continue };
        entries.push(Entry {
            name: entry.file_name().to_string_lossy().into_owned(),
            is_dir: metadata.is_dir(),
            size: if metadata.is_file() { Metadata::len(&metadata) } else { 0 },
            modified_unix: metadata.mtime(),
        });
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Listing { entries, truncated })
}
