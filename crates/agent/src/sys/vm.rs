//! What the first process of a virtual machine asks of its kernel: namespaces for the agent, addresses for the link.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

/// Starts a child as the first process of namespaces of its own. To be called while no other thread exists.
pub(crate) fn fork_inside(child: impl FnOnce() -> io::Error) -> io::Result<Pid> {
    let own = libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let flags = libc::c_long::from(own | libc::SIGCHLD);
    #[expect(unsafe_code, reason = "fork has no form that makes namespaces")]
    // SAFETY: without a stack of its own and with no shared memory the child is a copy, as after fork; no other thread
    // exists, so it is a whole process. It ends in `_exit`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let error = child();
            crate::log(format_args!("{error}"));
            #[expect(unsafe_code, reason = "ends the child without running anything of the parent's")]
            // SAFETY: the call does not return.
            unsafe {
                libc::_exit(1)
            }
        }
        pid => i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the kernel gave the child no number")),
    }
}

/// Listens for the host on a vsock port.
pub(crate) fn listen_on_vsock(port: u32) -> io::Result<OwnedFd> {
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

/// A socket through which links are configured.
#[derive(Debug)]
pub(crate) struct Links(OwnedFd);

impl Links {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?))
    }

    pub(crate) fn set_up(&self, name: &str) -> io::Result<()> {
        let flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
        let value = libc::__c_anonymous_ifr_ifru { ifru_flags: flags };
        self.ask(libc::SIOCSIFFLAGS, &mut request(name, value))
    }

    /// One address of a pair (`/31`).
    pub(crate) fn set_address(&self, name: &str, address: Ipv4Addr) -> io::Result<()> {
        let value = |address| libc::__c_anonymous_ifr_ifru { ifru_addr: socket_address(address) };
        self.ask(libc::SIOCSIFADDR, &mut request(name, value(address)))?;
        self.ask(libc::SIOCSIFNETMASK, &mut request(name, value(Ipv4Addr::new(255, 255, 255, 254))))
    }

    pub(crate) fn set_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        #[expect(unsafe_code, reason = "the structure has private padding")]
        // SAFETY: it consists of integers and pointers, for which zero is a value.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        self.ask(libc::SIOCADDRT, &mut route)
    }

    fn ask<T>(&self, what: libc::c_ulong, argument: &mut T) -> io::Result<()> {
        #[expect(unsafe_code, reason = "these requests have no wrapper")]
        // SAFETY: each caller passes the structure that its request reads (netdevice(7), SIOCADDRT), which outlives the
        // call.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), what as libc::Ioctl, &raw mut *argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn request(name: &str, value: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
    let mut request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru: value };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

/// `AF_INET`, as wide as addresses have it.
const INET: libc::sa_family_t = 2;

/// struct sockaddr_in: family, port, address.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    libc::sockaddr { sa_family: INET, sa_data: data }
}
