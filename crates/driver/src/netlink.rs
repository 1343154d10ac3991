//! The few route-netlink requests that links need, of those who make them and of engines that move them, sent from whichever network namespace the calling thread is in. Each
//! waits for the kernel's answer, so that nothing is still under way when a link is said to be there.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
/// Kinds inside `IFLA_INFO_DATA` of a veth (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
/// Set on attributes that contain attributes.
const NESTED: u16 = 1 << 15;

/// A connection to the kernel's network configuration.
#[derive(Debug)]
pub struct Route {
    socket: OwnedFd,
}

impl Route {
    /// Opens it in the current thread's network namespace, where it stays.
    ///
    /// # Errors
    /// As of all below: what the kernel says.
    pub fn open() -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        // Number 0 is the kernel.
        rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket })
    }

    /// Makes a pair of links: `name` here, up, and `peer`, down, in the namespace `peer_ns`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_veth(&self, name: &str, peer: &str, peer_ns: BorrowedFd<'_>) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, CREATE);
        request.bytes(&link_up());
        request.text(libc::IFLA_IFNAME, name);
        request.nested(libc::IFLA_LINKINFO, |info| {
            info.text(libc::IFLA_INFO_KIND, "veth");
            info.nested(libc::IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |other| {
                    // The kernel cannot bring this end up before it has joined the two.
                    other.bytes(&[0; 16]);
                    other.text(libc::IFLA_IFNAME, peer);
                    other.attribute(libc::IFLA_NET_NS_FD, &peer_ns.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.ask(request)
    }

    /// Sets a link up.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_up(&self, name: &str) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        request.bytes(&link_up());
        request.text(libc::IFLA_IFNAME, name);
        self.ask(request)
    }

    /// Gives a link a hardware address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_hardware_address(&self, name: &str, address: [u8; 6]) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        request.bytes(&[0; 16]);
        request.text(libc::IFLA_IFNAME, name);
        request.attribute(libc::IFLA_ADDRESS, &address);
        self.ask(request)
    }

    /// Moves a link into another namespace. It arrives down and without its addresses.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn move_to(&self, name: &str, netns: BorrowedFd<'_>) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        request.bytes(&[0; 16]);
        request.text(libc::IFLA_IFNAME, name);
        request.attribute(libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
        self.ask(request)
    }

    /// Removes a link and its peer; one that is not there is fine.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete(&self, name: &str) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_DELLINK, 0);
        request.bytes(&[0; 16]);
        request.text(libc::IFLA_IFNAME, name);
        match self.ask(request) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }

    /// Gives a link an address of a pair (`/31`).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_address(&self, name: &str, address: Ipv4Addr) -> io::Result<()> {
        let index = rustix::net::netdevice::name_to_index(self.socket.as_fd(), name)?;
        let mut request = Request::new(libc::RTM_NEWADDR, CREATE);
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        request.bytes(&[INET, 31, 0, libc::RT_SCOPE_UNIVERSE]);
        request.bytes(&index.to_ne_bytes());
        request.attribute(libc::IFA_LOCAL, &address.octets());
        request.attribute(libc::IFA_ADDRESS, &address.octets());
        self.ask(request)
    }

    /// Adds the way to everything.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_default_route(&self, name: &str, gateway: Ipv4Addr) -> io::Result<()> {
        let index = rustix::net::netdevice::name_to_index(self.socket.as_fd(), name)?;
        let mut request = Request::new(libc::RTM_NEWROUTE, CREATE);
        // struct rtmsg: family, destination and source lengths, tos, table, protocol, scope, type, flags.
        request.bytes(&[
            INET,
            0,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_BOOT,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
        ]);
        request.bytes(&0u32.to_ne_bytes());
        request.attribute(libc::RTA_GATEWAY, &gateway.octets());
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
        self.ask(request)
    }

    fn ask(&self, request: Request) -> io::Result<()> {
        rustix::net::send(&self.socket, &request.finish()?, SendFlags::empty())?;
        let mut answer = [0u8; 8_192];
        let (read, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        answered(&answer[..read])
    }
}

const INET: u8 = 2;
const CREATE: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// struct ifinfomsg with the link up: family, padding, type, index, flags, and which flags change.
fn link_up() -> [u8; 16] {
    let up = libc::IFF_UP.to_ne_bytes();
    let mut message = [0; 16];
    message[8..12].copy_from_slice(&up);
    message[12..16].copy_from_slice(&up);
    message
}

/// Reads the acknowledgement: struct nlmsghdr, then the negated error number.
fn answered(answer: &[u8]) -> io::Result<()> {
    let broken = || io::Error::other("the kernel's netlink answer is not an acknowledgement");
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(broken)?;
    if i32::from(kind) != libc::NLMSG_ERROR {
        return Err(broken());
    }
    let code = answer.get(HEADER..HEADER + 4).and_then(|b| b.try_into().ok()).ok_or_else(broken)?;
    match i32::from_ne_bytes(code) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// A message under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: i32) -> Self {
        let mut header = vec![0; HEADER];
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or_default();
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self(header)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.start(kind, |request| request.bytes(value));
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.start(kind | NESTED, fill);
    }

    /// Length, kind, value, padding to four bytes.
    fn start(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.bytes(&[0, 0]);
        self.bytes(&kind.to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        let length = u32::try_from(self.0.len()).map_err(io::Error::other)?;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_nested_lengths_are_whole() {
        let mut request = Request::new(libc::RTM_NEWLINK, 0);
        request.nested(18, |info| info.text(1, "veth"));
        let bytes = request.finish().unwrap();
        assert_eq!(bytes.len(), HEADER + 4 + 12);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        assert_eq!(bytes[16..], [16, 0, 18, 128, 9, 0, 1, 0, b'v', b'e', b't', b'h', 0, 0, 0, 0]);
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        assert!(answered(&[]).is_err());
        assert!(answered(&[0; 20]).is_err());
        let mut refusal = [0; 20];
        refusal[4] = 2;
        assert!(answered(&refusal).is_ok());
        refusal[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(answered(&refusal).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
