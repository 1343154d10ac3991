//! Sockets over which the host calls a virtual machine.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Listens for the host on a vsock port.
pub(crate) fn listen(port: u32) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = vsock_address(libc::VMADDR_CID_ANY, port);
    #[expect(unsafe_code, reason = "addresses of this family have no wrapper")]
    // SAFETY: the address is of its family's type and length, and outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), VSOCK_ADDRESS_BYTES) };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    // One call ends the former.
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

/// Takes the next connection; `None` if it is not the host's.
pub(crate) fn accept_from_host(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut peer = vsock_address(0, 0);
    let mut length = VSOCK_ADDRESS_BYTES;
    let (socket, flags) = (listener.as_raw_fd(), libc::SOCK_CLOEXEC);
    #[expect(unsafe_code, reason = "addresses of this family have no wrapper")]
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `peer`; both outlive the call.
    let taken = unsafe { libc::accept4(socket, (&raw mut peer).cast(), &raw mut length, flags) };
    if taken < 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "the kernel returns a number")]
    // SAFETY: it was just made and is nobody else's.
    let taken = unsafe { OwnedFd::from_raw_fd(taken) };
    Ok((peer.svm_cid == libc::VMADDR_CID_HOST).then_some(taken))
}

/// What the kernel calls the length of an address.
const VSOCK_ADDRESS_BYTES: libc::socklen_t = 16;
const _: () = assert!(size_of::<libc::sockaddr_vm>() == VSOCK_ADDRESS_BYTES as usize);

fn vsock_address(cid: u32, port: u32) -> libc::sockaddr_vm {
    libc::sockaddr_vm {
        svm_family: AddressFamily::VSOCK.as_raw(),
        svm_reserved1: 0,
        svm_port: port,
        svm_cid: cid,
        svm_zero: [0; 4],
    }
}
