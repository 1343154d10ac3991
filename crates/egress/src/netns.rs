//! Work inside a network namespace: on a thread of its own, which ends with it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs `work` inside a network namespace. What it opens stays there.
pub(crate) fn inside<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(netns)?;
            work()
        });
        thread.join().map_err(|_| io::Error::other("a network thread panicked"))?
    })
}

/// Moves the current thread for good.
pub(crate) fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
}
