//! The system calls that need `unsafe` or have no safe wrapper. Nothing here decides anything.

pub(crate) mod child;
mod epoll;
pub(crate) mod identity;
pub(crate) mod vm;
pub(crate) mod vsock;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Takes over an inherited descriptor.
#[expect(unsafe_code, reason = "only the number of an inherited descriptor is known")]
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::other(format!("descriptor {fd} cannot be an inherited one")));
    }
    // SAFETY: fcntl with F_GETFD reads no memory and fails on a number that is not open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and the engine handed it over to this process alone; `boot` adopts each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes all descriptors from 3 on close at exec.
#[expect(unsafe_code, reason = "close_range has no wrapper")]
pub(crate) fn make_all_private() {
    // SAFETY: the call touches no memory.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done < 0 {
        // Kernels without the call (some gVisor): the range where an engine puts descriptors.
        for fd in 3..1024 {
            // SAFETY: F_SETFD on a number that is not open only fails.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Copies the descriptor to the lowest free number, for the life of the process.
#[expect(unsafe_code, reason = "the copy is owned by nobody on purpose")]
pub(crate) fn fill_lowest(fd: &OwnedFd) -> io::Result<RawFd> {
    // SAFETY: fcntl on an open descriptor, no memory involved.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 0) };
    if copy < 0 { Err(io::Error::last_os_error()) } else { Ok(copy) }
}

/// Makes a standard descriptor lead elsewhere.
#[expect(unsafe_code, reason = "rustix wants to own the target")]
pub(crate) fn replace(by: &OwnedFd, standard: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both are open descriptors; the target stays open, as something else.
    let done = unsafe { libc::dup2(by.as_raw_fd(), standard.as_raw_fd()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a pipe or terminal under the runtime's watch.
#[expect(unsafe_code, reason = "the runtime asks for a promise about the descriptor")]
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    // SAFETY: an owned descriptor stays open and the same until it is dropped, which happens inside.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Keeps freed memory from staying resident: one arena, and large buffers always in mappings of their own.
#[expect(unsafe_code, reason = "mallopt has no wrapper")]
pub(crate) fn keep_memory_small() {
    const MAPPED_FROM: libc::c_int = 128 * 1024;
    // SAFETY: called once before any other thread exists, with documented options.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED_FROM);
    }
}

/// Returns freed memory inside the heap to the kernel; the library does so by itself at the heap's end only.
#[expect(unsafe_code, reason = "malloc_trim has no wrapper")]
pub(crate) fn give_back_memory() {
    // SAFETY: it touches free memory only and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Most addresses worth trying; the guest may add any number.
const MAX_ADDRESSES: usize = 32;

/// The addresses of this machine's interfaces.
#[expect(unsafe_code, reason = "getifaddrs has no wrapper")]
pub(crate) fn local_addresses() -> Vec<std::net::IpAddr> {
    let mut addresses = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list` with a linked list that stays valid until freeifaddrs; each address is read as
    // the type its family names.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return addresses;
        }
        let mut entry = list;
        while !entry.is_null() && addresses.len() < MAX_ADDRESSES {
            let address = (*entry).ifa_addr;
            if !address.is_null() {
                match i32::from((*address).sa_family) {
                    libc::AF_INET => {
                        let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                        addresses
                            .push(std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into());
                    }
                    libc::AF_INET6 => {
                        let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                        addresses.push(std::net::Ipv6Addr::from(address.sin6_addr.s6_addr).into());
                    }
                    _ => {}
                }
            }
            entry = (*entry).ifa_next;
        }
        libc::freeifaddrs(list);
    }
    addresses
}
