//! The one place with system calls that the standard library and `rustix` do not wrap safely: handing descriptors to a
//! new process under fixed numbers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;

/// The first number an inherited descriptor has in the new process.
pub(crate) const FIRST_INHERITED: RawFd = 3;
/// Most descriptors handed to a new process: the socket and one file for each limiting controller.
pub(crate) const MAX_INHERITED: RawFd = 4;

/// Occupies the numbers that [`inherit`] places descriptors on, as far as they are free.
pub(crate) fn reserve_low_descriptors() -> io::Result<Vec<OwnedFd>> {
    let null = std::fs::File::open("/dev/null")?;
    let mut reserved = Vec::new();
    for _ in 0..MAX_INHERITED {
        let copy = fcntl_dupfd_cloexec(&null, FIRST_INHERITED)?;
        if copy.as_raw_fd() >= FIRST_INHERITED + MAX_INHERITED {
            break;
        }
        reserved.push(copy);
    }
    Ok(reserved)
}

/// Makes `fds` the descriptors 3, 4, … of the process that `command` starts.
pub(crate) fn inherit(command: &mut tokio::process::Command, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    // Copies above the target range, so that placing one never overwrites another.
    let copies = fds
        .iter()
        .map(|fd| fcntl_dupfd_cloexec(fd, FIRST_INHERITED + MAX_INHERITED))
        .collect::<Result<Vec<OwnedFd>, _>>()?;
    let place = move || {
        for (target, copy) in (FIRST_INHERITED..).zip(&copies) {
            dup2(copy.as_raw_fd(), target)?;
        }
        Ok(())
    };
    #[expect(unsafe_code, reason = "descriptors must be placed between fork and exec")]
    // SAFETY: `place` calls only dup2, which is async-signal-safe, and allocates nothing; the copies it names live in
    // the closure, and the targets are reserved in this process (`reserve_low_descriptors`).
    unsafe {
        command.pre_exec(place);
    }
    Ok(())
}

fn dup2(from: RawFd, to: RawFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix's dup2 wants to own the target")]
    // SAFETY: both numbers are plain descriptors; the call changes nothing but this process's table.
    let result = unsafe { libc::dup2(from, to) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
