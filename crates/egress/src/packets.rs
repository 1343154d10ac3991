//! Packets that the router namespace refused: UDP that is no question to a resolver, ICMP, and whatever else is not TCP. The
//! kernel answers them by itself; here they become rows of the log, those of one kind and place together. How many it
//! tells of is limited per link in the rules of the router namespace, so a flood costs nobody but whoever makes it.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use domain::{Attempt, MatchRule, PacketAttempt};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::gateway::Shared;
use crate::sys;

/// Number of the log the refusing rule writes to (linux/netfilter/nfnetlink_log.h).
pub const PACKET_LOG: u16 = 1;
/// Packets of one kind and to one place within this time are one row.
const WINDOW: Duration = Duration::from_secs(1);
/// Rows that are being counted; beyond them, packets only show in the counters of the kernel.
const MAX_ROWS: usize = 4_096;
/// Beginning of a packet: the longest header of IPv4, and ports.
const SNAP: u32 = 64;
/// The kernel hands over what it has after this time, in hundredths of a second.
const KERNEL_WAITS: u32 = 20;
/// Netlink messages that come together; the kernel's own buffer is a page.
const BUFFER: usize = 64 * 1024;
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// The kernel's log, opened in the router namespace.
#[derive(Debug)]
pub(crate) struct PacketLog(AsyncFd<OwnedFd>);

impl PacketLog {
    pub(crate) fn open(router: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = sys::inside(router, || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let protocol = Some(netlink::NETFILTER);
            let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
            rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
            let bind =
                attribute(libc::NFULA_CFG_CMD, &[u8::try_from(libc::NFULNL_CFG_CMD_BIND).unwrap_or(1)]);
            configure(&socket, &bind)?;
            // Copy the packet: range, mode, padding.
            const COPY_PACKET: u8 = 2;
            let mode = [&SNAP.to_be_bytes()[..], &[COPY_PACKET, 0]].concat();
            configure(&socket, &attribute(libc::NFULA_CFG_MODE, &mode))?;
            configure(&socket, &attribute(libc::NFULA_CFG_TIMEOUT, &KERNEL_WAITS.to_be_bytes()))?;
            Ok(socket)
        })?;
        Ok(Self(sys::watch(socket)?))
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|socket| {
                let (read, _) = rustix::net::recv(socket.get_ref(), &mut *buffer, RecvFlags::empty())?;
                Ok(read)
            });
            match read {
                // The kernel had more than the socket's buffer takes: some packets are not told of.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(read) => return read,
                Err(_would_block) => {}
            }
        }
    }
}

/// Sends one setting and waits for the kernel's word, which comes before `send` returns.
fn configure(socket: &OwnedFd, setting: &[u8]) -> io::Result<()> {
    let length = u32::try_from(HEADER + GENERIC + setting.len()).map_err(io::Error::other)?;
    let kind =
        u16::try_from((libc::NFNL_SUBSYS_ULOG << 8) | libc::NFULNL_MSG_CONFIG).map_err(io::Error::other)?;
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    // struct nfgenmsg: any family, version 0, the group.
    message.extend([0, 0]);
    message.extend(PACKET_LOG.to_be_bytes());
    message.extend(setting);
    rustix::net::send(socket, &message, SendFlags::empty())?;
    let mut answer = [0; 1_024];
    let (read, _) = rustix::net::recv(socket, &mut answer, RecvFlags::empty())?;
    let code = answer[..read].get(HEADER..HEADER + 4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other("the kernel's answer is not an acknowledgement")),
    }
}

fn attribute(kind: i32, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or_default();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(u16::try_from(kind).unwrap_or_default().to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A packet that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Refused {
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    port: Option<u16>,
}

/// Turns packets into rows until it is dropped.
pub(crate) async fn watch(shared: Arc<Shared>, log: PacketLog) {
    let mut buffer = vec![0; BUFFER];
    let mut counting: HashMap<Refused, u64> = HashMap::new();
    let mut due = None;
    loop {
        let window_ends = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            read = log.read(&mut buffer) => match read {
                Ok(read) => {
                    for packet in packets(&buffer[..read]) {
                        if counting.len() < MAX_ROWS || counting.contains_key(&packet) {
                            *counting.entry(packet).or_default() += 1;
                        }
                    }
                    if !counting.is_empty() {
                        due.get_or_insert_with(|| Instant::now() + WINDOW);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "refused packets are no longer written to the network log");
                    return;
                }
            },
            () = window_ends => {
                due = None;
                for (packet, count) in counting.drain() {
                    report(&shared, &packet, count);
                }
            }
        }
    }
}

fn report(shared: &Shared, packet: &Refused, count: u64) {
    let Some(sandbox) = shared.sandboxes.at(packet.from) else { return };
    let protocol = match packet.protocol {
        1 => "icmp".to_owned(),
        17 => "udp".to_owned(),
        other => other.to_string(),
    };
    let (to, port) = (Some(packet.to.into()), packet.port);
    let what = PacketAttempt { protocol, to, port, count, rule: MatchRule::Protocol };
    shared.report(&sandbox, Attempt::Packet(what));
}

/// The packets in what the kernel handed over.
fn packets(mut bytes: &[u8]) -> Vec<Refused> {
    let mut found = Vec::new();
    while let Some(length) = bytes.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes) {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some(message) = bytes.get(HEADER..length) else { break };
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if i32::from(kind) == (libc::NFNL_SUBSYS_ULOG << 8) | libc::NFULNL_MSG_PACKET {
            found.extend(message.get(GENERIC..).and_then(payload).and_then(parse));
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn payload(mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..length)?;
        if i32::from(kind) == libc::NFULA_PAYLOAD {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Reads the beginning of an IPv4 packet.
fn parse(packet: &[u8]) -> Option<Refused> {
    let first = *packet.first()?;
    let address = |at: usize| -> Option<Ipv4Addr> {
        let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    };
    let inner = packet.get(usize::from(first & 15) * 4..).unwrap_or_default();
    let protocol = *packet.get(9)?;
    let has_ports = matches!(protocol, 17 | 132 | 136);
    let port = inner.get(2..4).and_then(|b| b.try_into().ok()).map(u16::from_be_bytes);
    (first >> 4 == 4).then_some(Refused {
        from: address(12)?,
        to: address(16)?,
        protocol,
        port: port.filter(|_| has_ports),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(packet: &[u8]) -> Vec<u8> {
        let attributes =
            [attribute(libc::NFULA_PACKET_HDR, &[0; 4]), attribute(libc::NFULA_PAYLOAD, packet)].concat();
        let length = u32::try_from(HEADER + GENERIC + attributes.len()).unwrap();
        let kind = u16::try_from(libc::NFNL_SUBSYS_ULOG << 8).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &[2, 0, 0, 1], &attributes].concat()
    }

    #[test]
    fn reads_what_the_kernel_hands_over() {
        let mut udp = vec![0x45, 0, 0, 29, 0, 1, 0, 0, 64, 17, 0, 0, 100, 96, 0, 1, 198, 51, 100, 7];
        udp.extend([0x9C, 0x40, 0, 123, 0, 9, 0, 0, b'x']);
        let mut ping = udp.clone();
        ping[9] = 1;
        let both = [message(&udp), message(&ping), message(&[0x60; 40])].concat();
        let found = packets(&both);
        let of = |protocol, port| Refused {
            from: [100, 96, 0, 1].into(),
            to: [198, 51, 100, 7].into(),
            protocol,
            port,
        };
        assert_eq!(found, [of(17, Some(123)), of(1, None)]);
        for cut in 0..both.len() {
            let _fewer = packets(&both[..cut]);
        }
    }

    proptest::proptest! {
        #[test]
        fn reads_anything_without_a_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
            let _any = packets(&bytes);
            let _any = packets(&message(&bytes));
        }
    }
}
