//! What can go wrong with layers and with the base bootstrap. Texts end with what to do next.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pack::PackError;

/// Why a layer could not be made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The archive asks for something that is not permitted.
    #[error("the archive is refused: `{entry}` {reason}")]
    Refused {
        /// The entry's name, cleaned and shortened for display.
        entry: String,
        /// What is wrong with it, as a clause.
        reason: String,
    },
    /// The archive is larger than accepted.
    #[error("the archive is refused: more than {limit} {unit}")]
    TooLarge {
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// The stream is not a readable archive, or it stopped early.
    #[error("the archive cannot be read: {0}")]
    BadArchive(#[source] io::Error),
    /// Not a layer digest, or no such layer.
    #[error("there is no layer `{0}`")]
    NoSuchLayer(String),
    /// The host cannot make a Debian system.
    #[error(
        "cannot make superserve/base here: {reason}; install what is missing, or start with a root file system made \
         elsewhere: superserve up --base-tar <file.tar>"
    )]
    Unsupported {
        /// Why not.
        reason: String,
    },
    /// A step of the bootstrap failed.
    #[error(
        "making superserve/base failed while {phase}: {detail}; check that the Debian mirror and PyPI can be reached \
         and start again, or start with a root file system made elsewhere: superserve up --base-tar <file.tar>"
    )]
    Bootstrap {
        /// Which step.
        phase: &'static str,
        /// The last lines that were printed, bounded.
        detail: String,
    },
    /// The bootstrap took too long.
    #[error("making superserve/base did not finish within {} s; check the network and start again", .0.as_secs())]
    Timeout(Duration),
    /// The bootstrap was stopped by the caller.
    #[error("making superserve/base was stopped; start again")]
    Stopped,
    /// A registry does not answer; later it may.
    #[error("the registry {registry} does not answer: {reason}")]
    Registry {
        /// Host and port.
        registry: String,
        /// Why not.
        reason: String,
    },
    /// The text does not name an image.
    #[error("`{reference}` is no image reference: {reason}")]
    BadReference {
        /// As it was given.
        reference: String,
        /// Why not.
        reason: String,
    },
    /// The image's content is not permitted.
    #[error("cannot use the image {reference}: {reason}")]
    ImageUnsafe {
        /// As it was asked for.
        reference: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A registry has answered, and the image cannot be used.
    #[error("cannot use the image {reference}: {reason}")]
    Image {
        /// As it was asked for.
        reference: String,
        /// Why not.
        reason: String,
    },
    /// The image is for other machines.
    #[error("cannot use the image {reference}: unsupported platform; {wanted} is needed, it has {found}")]
    UnsupportedPlatform {
        /// As it was asked for.
        reference: String,
        /// What this machine runs.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// The image's content does not fit the disk of its sandboxes.
    #[error("cannot use the image {reference}: its content is larger than the disk of {limit_mib} MiB")]
    ImageTooLarge {
        /// As it was asked for.
        reference: String,
        /// The disk.
        limit_mib: u64,
    },
    /// The file with credentials cannot be read; it is not quoted.
    #[error(
        "cannot read registry credentials from {}; expected is a config.json as `docker login` or `skopeo login` writes \
         it, with `auths`", .file.display()
    )]
    Credentials {
        /// Which file.
        file: PathBuf,
    },
    /// The host's disk has no room for it.
    #[error("the host's disk has no room for another layer; free some disk space, or delete templates")]
    DiskFull,
    /// A system call on the layer store failed.
    #[error("{what}: {source}")]
    Io {
        /// Which step.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl TemplateError {
    /// Wraps an I/O error with the step that failed, for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }

    /// Refuses one entry of an archive.
    pub(crate) fn refused(entry: &[u8], reason: impl Into<String>) -> Self {
        Self::Refused { entry: shown(entry), reason: reason.into() }
    }
}

impl From<PackError> for TemplateError {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Refused { path, reason } => Self::refused(&path, reason),
            PackError::TooLarge { limit, unit } => Self::TooLarge { limit, unit },
            PackError::Io { path, source } => {
                tracing::debug!(path = shown(&path), error = %source, "cannot read what a sandbox has written");
                Self::Io { what: "cannot read what was written", source }
            }
        }
    }
}

/// A name out of an archive, safe to print: printable characters only, at most 200 of them.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect()
}
