//! Files and directories of cgroups, for the drivers that put their machines into some.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Where they are mounted.
pub const ROOT: &str = "/sys/fs/cgroup";
/// Scheduling period of the processor quota, microseconds: the kernel's default.
pub const CPU_PERIOD_USEC: u64 = 100_000;

/// Whether all controllers share one hierarchy (version 2).
#[must_use]
pub fn is_unified(root: &Path) -> bool {
    root.join("cgroup.controllers").exists()
}

/// Sets a value.
///
/// # Errors
/// The kernel's, with the file's name; `NotFound` where it has no such file.
pub fn write(path: &Path, value: &str) -> io::Result<()> {
    // No `fs::write`: creating or truncating means nothing here.
    let written =
        OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Removes a cgroup and those below it, which may be gone already; `false` while processes are in it.
///
/// # Errors
/// Whatever else keeps it.
pub fn remove_tree(dir: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() && !remove_tree(&entry.path())? {
            return Ok(false);
        }
    }
    match fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        Err(error) => Err(error),
    }
}
