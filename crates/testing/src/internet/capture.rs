//! Every packet that leaves a gateway's uplink, as the wire would see it.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, sockopt};

use super::netns::{Namespaces, UPLINK};

/// linux/if_ether.h: ETH_P_ALL, in network order.
const ALL_PROTOCOLS: u16 = 3_u16.to_be();
const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];
/// How often the thread looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// A packet that left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// `tcp`, `udp`, `icmp`, or what else it was.
    pub protocol: String,
    /// Destination.
    pub to: Ipv4Addr,
    /// Destination port; 0 where there is none.
    pub port: u16,
    /// A TCP connection begins with it.
    pub opens: bool,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Capture {
    seen: Arc<Mutex<Vec<Packet>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    pub(super) fn start(uplink: &File) -> Self {
        let socket = Namespaces::inside(uplink, || {
            let protocol = Protocol::from_raw(u32::from(ALL_PROTOCOLS).try_into().expect("not zero"));
            let flags = SocketFlags::CLOEXEC;
            Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol))?)
        })
        .expect("root may capture packets");
        // Bursts must not be lost: a packet that was not seen would count as one that did not leave.
        sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).expect("root may have a large buffer");
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LOOK))
            .expect("sockets have timeouts");
        let (seen, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (into, until) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || listen(&socket, &into, &until));
        Self { seen, stop, thread: Some(thread) }
    }

    /// What left so far, acknowledgements included.
    ///
    /// # Panics
    /// When the listening thread has.
    #[must_use]
    pub fn packets(&self) -> Vec<Packet> {
        // What is on its way through the kernel is let through first.
        std::thread::sleep(2 * LOOK);
        self.seen.lock().expect("nobody panics while holding it").clone()
    }

    /// Connections that were begun: destination and port.
    #[must_use]
    pub fn opened(&self) -> Vec<(Ipv4Addr, u16)> {
        self.packets()
            .into_iter()
            .filter(|packet| packet.opens)
            .map(|packet| (packet.to, packet.port))
            .collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _it_has_panicked_already = thread.join();
        }
    }
}

fn listen(socket: &OwnedFd, seen: &Mutex<Vec<Packet>>, stop: &AtomicBool) {
    let mut buffer = [0; 128];
    while !stop.load(Ordering::Relaxed) {
        // Only the beginning of each packet is wanted.
        let Ok((_, length)) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::TRUNC) else { continue };
        if let Some(packet) = leaving(&buffer[..length.min(128)]) {
            seen.lock().expect("nobody panics while holding it").push(packet);
        }
    }
}

/// Reads a frame; `None` for one that came in, and for address resolution.
fn leaving(frame: &[u8]) -> Option<Packet> {
    let kind: [u8; 2] = frame.get(12..ETHERNET)?.try_into().ok()?;
    if kind == ARP {
        return None;
    }
    if kind != IPV4 {
        let protocol = format!("ethernet {:02x}{:02x}", kind[0], kind[1]);
        return Some(Packet { protocol, to: Ipv4Addr::UNSPECIFIED, port: 0, opens: false });
    }
    let packet = &frame[ETHERNET..];
    let address = |at: usize| -> Option<Ipv4Addr> {
        let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    };
    let (from, to) = (address(12)?, address(16)?);
    if from.to_string() != UPLINK {
        // Everything that leaves with another source is news, everything that comes in is not.
        let came_in = to.to_string() == UPLINK;
        return (!came_in).then(|| Packet { protocol: format!("from {from}"), to, port: 0, opens: false });
    }
    let inner = &packet[usize::from(packet.first()? & 15) * 4..];
    let port = inner.get(2..4).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes);
    let (protocol, port) = match packet.get(9)? {
        1 => ("icmp".to_owned(), 0),
        6 => ("tcp".to_owned(), port),
        17 => ("udp".to_owned(), port),
        other => (format!("protocol {other}"), 0),
    };
    // SYN without ACK.
    let opens = protocol == "tcp" && inner.get(13).is_some_and(|flags| flags & 0b1_0010 == 0b10);
    Some(Packet { protocol, to, port, opens })
}
