//! Why a gateway cannot start.

use std::io;
use std::path::PathBuf;

/// Why a gateway cannot start, a variant per remedy.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The namespace for outgoing sockets is not there.
    #[error("cannot enter the uplink namespace {path}")]
    Uplink {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The doors in the router namespace could not be opened.
    #[error("cannot listen in the router namespace")]
    Listen(#[source] io::Error),
    /// The kernel does not answer questions about routes.
    #[error("cannot ask the kernel for routes")]
    Route(#[source] io::Error),
}
