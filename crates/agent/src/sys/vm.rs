//! What the first process of a virtual machine asks of its kernel: namespaces for the agent, addresses for the link.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;
use wire::agent::vm::SEED_BYTES;

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

// linux/random.h
const RNDADDENTROPY: u64 = 0x4008_5203;
const RNDRESEEDCRNG: u64 = 0x5207;

/// Mixes a secret into the kernel's random numbers; all that are given out from now on depend on it.
pub(crate) fn stir(seed: &[u8; SEED_BYTES]) -> io::Result<()> {
    /// struct rand_pool_info.
    #[repr(C)]
    struct Pool {
        bits: libc::c_int,
        bytes: libc::c_int,
        seed: [u8; SEED_BYTES],
    }
    let bytes = libc::c_int::try_from(SEED_BYTES).map_err(io::Error::other)?;
    let pool = Pool { bits: bytes * 8, bytes, seed: *seed };
    let random = std::fs::File::options().write(true).open("/dev/random")?;
    #[expect(unsafe_code, reason = "these requests have no wrapper")]
    // SAFETY: the first reads a `struct rand_pool_info` with as many bytes behind it as it says; the second takes nothing.
    let results = unsafe {
        [
            libc::ioctl(random.as_raw_fd(), RNDADDENTROPY as libc::Ioctl, &raw const pool),
            libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG as libc::Ioctl),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        self.set_flags(name, libc::IFF_UP | libc::IFF_RUNNING)
    }

    pub(crate) fn set_down(&self, name: &str) -> io::Result<()> {
        self.set_flags(name, 0)
    }

    fn set_flags(&self, name: &str, flags: libc::c_int) -> io::Result<()> {
        let flags = libc::c_short::try_from(flags).map_err(io::Error::other)?;
        let value = libc::__c_anonymous_ifr_ifru { ifru_flags: flags };
        self.ask(libc::SIOCSIFFLAGS, &mut request(name, value))
    }

    /// Of a link that is down.
    pub(crate) fn set_hardware_address(&self, name: &str, address: [u8; 6]) -> io::Result<()> {
        let mut data = [0; 14];
        for (to, from) in data.iter_mut().zip(address) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let address = libc::sockaddr { sa_family: ETHERNET, sa_data: data };
        let value = libc::__c_anonymous_ifr_ifru { ifru_hwaddr: address };
        self.ask(libc::SIOCSIFHWADDR, &mut request(name, value))
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

/// `ARPHRD_ETHER` (linux/if_arp.h).
const ETHERNET: libc::sa_family_t = 1;
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
