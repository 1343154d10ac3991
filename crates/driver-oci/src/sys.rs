//! The one place with system calls that the standard library and `rustix` do not wrap safely: what happens in a new process
//! between fork and exec.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

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

/// Where gVisor's runtime runs.
///
/// It takes a network namespace in which there are settings of sockets for the host's own, and refuses it: since Linux 6.10 they
/// are there in every one, so they are covered for it. What it starts mounts a `/proc` of its own, which the kernel permits only
/// where another can be seen that nothing covers.
///
/// It makes the sentry's control socket, an abstract one that anybody in the same network namespace may connect to: in the
/// machine's there is nobody else.
#[derive(Debug)]
pub(crate) struct Namespaces {
    /// Where to mount the other `/proc`, in a mount namespace of its own.
    proc: Option<CString>,
    /// A network namespace, or a process in it.
    network: OwnedFd,
}

impl Namespaces {
    /// For starts.
    pub(crate) fn of_runtime(proc: &Path, network: &Path) -> io::Result<Self> {
        std::fs::create_dir(proc)?;
        let proc = Some(CString::new(proc.as_os_str().as_bytes())?);
        Ok(Self { proc, network: std::fs::File::open(network)?.into() })
    }

    /// For orders to a sentry that runs.
    pub(crate) fn of_control(sentry: OwnedFd) -> Self {
        Self { proc: None, network: sentry }
    }

    fn enter(&self) -> io::Result<()> {
        if let Some(proc) = &self.proc {
            #[expect(unsafe_code, reason = "leaving a namespace can be unsafe with other flags")]
            // SAFETY: only the flag for file tables is dangerous, and it is not given.
            unsafe {
                rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)?;
            }
            // What the host unmounts is unmounted here as well, or it would stay busy; not the other way round.
            rustix::mount::mount_change(
                c"/",
                MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
            )?;
            let closed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount(c"proc", proc, c"proc", closed, None)?;
            rustix::mount::mount(c"none", c"/proc/sys/net", c"tmpfs", closed | MountFlags::RDONLY, None)?;
        }
        Ok(rustix::thread::move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

/// Has `command` run in other namespaces.
pub(crate) fn enter(command: &mut tokio::process::Command, namespaces: Namespaces) {
    #[expect(unsafe_code, reason = "namespaces must be entered between fork and exec")]
    // SAFETY: the closure makes system calls on descriptors and texts that it owns, and allocates nothing: short paths are
    // passed as they are.
    unsafe {
        command.pre_exec(move || namespaces.enter());
    }
}
