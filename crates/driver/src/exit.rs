//! Waiting for the end of a machine without a thread of its own.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Returns when the descriptor becomes readable, which for a pidfd is when its process has ended.
///
/// # Errors
/// The descriptor cannot be waited on.
///
/// # Cancel safety
/// Nothing is consumed; wait again on another copy of the descriptor.
pub async fn exited(fd: OwnedFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "tokio asks for a promise about the descriptor's lifetime")]
    // SAFETY: an `OwnedFd` is open, names one open file for its whole life, and is moved into the registration.
    let waiting = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    waiting.map_err(io::Error::from)?.readable().await.map(drop)
}
