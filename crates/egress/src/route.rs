//! Asks the kernel where packets to an address would go: the one authority on which addresses are this host's own, now.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
const ROUTE_MESSAGE: usize = 12;
/// Place of `rtm_type` in `struct rtmsg`.
const TYPE: usize = 7;
const INET: u8 = 2;

/// A connection to the routing table of the namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Routes(OwnedFd);

impl Routes {
    /// Opens it in the current thread's network namespace, where it stays.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Number 0 is the kernel.
        rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Whether an address is this host's own, or means several hosts. One that leads nowhere is not.
    pub(crate) fn is_local(&mut self, address: Ipv4Addr) -> io::Result<bool> {
        rustix::net::send(&self.0, &question(address)?, SendFlags::empty())?;
        let mut answer = [0; 4_096];
        // The kernel answers before `send` returns.
        let (read, _) = rustix::net::recv(&self.0, &mut answer, RecvFlags::empty())?;
        local(&answer[..read])
    }
}

fn question(address: Ipv4Addr) -> io::Result<Vec<u8>> {
    let length = HEADER + ROUTE_MESSAGE + 8;
    let mut message = u32::try_from(length).map_err(io::Error::other)?.to_ne_bytes().to_vec();
    message.extend(libc::RTM_GETROUTE.to_ne_bytes());
    message.extend(u16::try_from(libc::NLM_F_REQUEST).map_err(io::Error::other)?.to_ne_bytes());
    message.extend([0; 8]);
    // struct rtmsg: family, destination length, and ten bytes that say nothing here.
    message.extend([INET, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend(8_u16.to_ne_bytes());
    message.extend(libc::RTA_DST.to_ne_bytes());
    message.extend(address.octets());
    Ok(message)
}

fn local(answer: &[u8]) -> io::Result<bool> {
    let broken = || io::Error::other("the kernel's answer is not a route");
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(broken)?;
    if kind == libc::RTM_NEWROUTE {
        let route = answer.get(HEADER + TYPE).ok_or_else(broken)?;
        return Ok(matches!(
            *route,
            libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST
        ));
    }
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Err(broken());
    }
    let code = answer.get(HEADER..HEADER + 4).and_then(|b| b.try_into().ok()).ok_or_else(broken)?;
    match -i32::from_ne_bytes(code) {
        // No route, or one that refuses: connecting says so, too.
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL => Ok(false),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_its_own_addresses() {
        let mut routes = Routes::open().unwrap();
        for own in ["127.0.0.1", "127.9.9.9", "255.255.255.255"] {
            assert!(routes.is_local(own.parse().unwrap()).unwrap(), "{own}");
        }
        // Whichever way packets to there take, they leave.
        assert!(!routes.is_local("198.51.100.1".parse().unwrap()).unwrap());
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        assert!(local(&[]).is_err());
        assert!(local(&[0; 64]).is_err());
        assert!(local(&[0; 5]).is_err());
    }
}
