//! The archive that a guest makes of its disk.

use tokio::io::AsyncRead;

/// What of a machine's root is to be packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    /// All that is to be seen, not only what was written over the template.
    pub everything: bool,
    /// Paths from the root that are left out: letters, digits, and `/._-`.
    pub except: Vec<String>,
    /// Most bytes of content. A guest may send more: whoever reads counts for himself.
    pub max_bytes: u64,
}

/// An archive under way. It ends when it is whole. If the guest says that it is not, a read fails with [`NotPacked`] inside the
/// error; a guest that is cut off, falls silent, or never comes to an end, makes it fail with another.
pub type PackStream = Box<dyn AsyncRead + Send + Unpin>;

/// Why a guest has not finished an archive; in its own words, which are shortened and printable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPacked {
    /// Something cannot be said in an archive.
    #[error("`{path}` {reason}")]
    Refused {
        /// Where it is, from the root.
        path: String,
        /// What is wrong with it, as a clause.
        reason: String,
    },
    /// There is more than was asked for.
    #[error("there is more to pack than was asked for")]
    TooLarge,
    /// The guest could not read it.
    #[error("the guest could not read what was written")]
    Failed,
}
