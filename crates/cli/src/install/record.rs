//! What an install has changed, so that it can be taken back exactly. Kept apart from the client's file, readable by its owner only,
//! because that file may hold keys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file;
use crate::error::CliError;

/// Two files of 32 MiB, escaped.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// One install into one file under one name. No `Debug`: it holds a key.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    /// The text from before; `None`: there was no file.
    pub(super) original: Option<String>,
    /// The permission bits from before.
    pub(super) mode: Option<u32>,
    /// What was written.
    pub(super) written: String,
    /// The key in it, so that it is not shown.
    pub(super) secret: Option<String>,
    /// Directories that were made, innermost first.
    pub(super) directories: Vec<PathBuf>,
}

impl Record {
    pub(super) fn read(path: &Path) -> Result<Option<Self>, CliError> {
        let failed = |error: &dyn std::fmt::Display| {
            CliError::new(format!("cannot read what was installed, {}: {error}", path.display()))
        };
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, MAX_BYTES), &mut text)
            .map_err(|error| failed(&error))?;
        // serde's text may quote the file.
        serde_json::from_str(&text).map(Some).map_err(|_| {
            failed(&"it is damaged")
                .hint("remove it; the entry itself can be removed from the client's file by hand")
        })
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_vec(self)
            .map_err(|_| CliError::new("cannot remember what was there: a path is not UTF-8"))?;
        file::write(path, &text, 0o600, || Ok(()))
    }

    pub(super) fn remove(path: &Path) -> Result<(), CliError> {
        fs::remove_file(path)
            .map_err(|error| CliError::new(format!("cannot remove {}: {error}", path.display())))
    }
}
