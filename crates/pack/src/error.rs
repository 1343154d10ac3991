//! Why something cannot be packed.

use std::io;

/// Why something cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// It cannot be said in an archive.
    #[error("`{}` {reason}", String::from_utf8_lossy(.path))]
    Refused {
        /// Where it is, from the root. A guest has named it.
        path: Vec<u8>,
        /// What is wrong with it, as a clause.
        reason: &'static str,
    },
    /// It is more than was asked for.
    #[error("it has more than {limit} {unit}")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// It cannot be read, or the archive not be written.
    #[error("cannot read what was written: {source}")]
    Io {
        /// Where, from the root. A guest has named it.
        path: Vec<u8>,
        /// The cause.
        source: io::Error,
    },
}

impl PackError {
    pub(crate) fn refused(path: &[u8], reason: &'static str) -> Self {
        Self::Refused { path: path.to_vec(), reason }
    }

    pub(crate) fn io(path: &[u8], source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.to_vec(), source: source.into() }
    }
}
