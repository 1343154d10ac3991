//! Saved snapshots (`spec/rest-api.md` §5): the state of a sandbox that is kept until it is deleted.

use std::fmt;
use std::str::FromStr;

use crate::limits::{MAX_IDEMPOTENCY_KEY_BYTES, MAX_SNAPSHOT_NAME_BYTES};
use crate::problem::Problem;
use crate::sandbox::{UnknownName, names};

names!(
    /// How far a saved snapshot is. `deleting` is published too, but here nothing of a snapshot outlives its delete.
    SnapshotStatus {
        /// It is being written.
        Creating = "creating",
        /// Sandboxes can be made from it.
        Ready = "ready",
        /// It could not be written.
        Failed = "failed",
    }
);

names!(
    /// What a snapshot really holds. The published kind is always `mem+fs`; an engine may not be able to keep memory.
    Captured {
        /// Files. Forks boot, and their `start_cmd` is started again.
        Disk = "disk",
        /// Files and running processes.
        MemoryAndDisk = "memory+disk",
    }
);

/// A snapshot's name, or why it is none.
///
/// # Errors
/// A `bad_request` problem that names the field.
pub fn snapshot_name(name: String) -> Result<String, Problem> {
    sized("name", name, MAX_SNAPSHOT_NAME_BYTES)
}

/// An idempotency key, or why it is none.
///
/// # Errors
/// A `bad_request` problem that names the field.
pub fn idempotency_key(key: String) -> Result<String, Problem> {
    sized("idempotency_key", key, MAX_IDEMPOTENCY_KEY_BYTES)
}

fn sized(field: &str, text: String, most: usize) -> Result<String, Problem> {
    if text.is_empty() || text.len() > most {
        return Err(Problem::invalid(field, format!("1 to {most} bytes are accepted")));
    }
    Ok(text)
}
