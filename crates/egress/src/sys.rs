//! System calls: work inside a network namespace, on a thread of its own that ends with it, and waiting for sockets that
//! tokio has no type for.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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

/// Lets a task wait until there is something to read.
pub(crate) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(unsafe_code, reason = "tokio wants to be told that the descriptor stays open")]
    // SAFETY: the owned descriptor moves into the value and is closed after it has been deregistered.
    let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
    Ok(watched?)
}
