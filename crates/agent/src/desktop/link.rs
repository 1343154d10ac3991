//! The connection to the X server. The guest may have put anything in its place, so each operation has a deadline and a
//! number of bytes it may read, and descriptors that come along are closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{ConnectionExt as _, Screen};
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

use super::fault::XError;

/// Longest operation; a server answers within milliseconds, and one that pages out within a second or two.
const OPERATION_LIMIT: Duration = Duration::from_secs(8);
/// Between two tries to connect to a server that is busy accepting others.
const CONNECT_RETRY: Duration = Duration::from_millis(20);
/// Everything but pictures: keymaps, cursors, lists of modes.
const SMALL_BYTES: usize = 4 * 1024 * 1024;
/// A server's description of itself cannot be longer (its length field has 16 bits).
const SETUP_BYTES: usize = 8 + 4 * 65_535;

pub(super) type Connection = RustConnection<Guard>;

/// A connection that is used by one thread.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) x: Connection,
    pub(super) root: u32,
    pub(super) screen: Screen,
}

/// Which server: `N` of `:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Display(u32);

impl Display {
    /// Reads `DISPLAY`; only servers of this machine count.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix("unix").unwrap_or(text).strip_prefix(':')?;
        let number = number.split_once('.').map_or(number, |(number, _)| number);
        let plain = (1..=5).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| number.parse().ok().map(Self))?
    }
}

impl std::fmt::Display for Display {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, ":{}", self.0)
    }
}

impl Link {
    /// Connects. Blocking, with a bound.
    pub(super) fn open(display: Display) -> Result<Self, XError> {
        let deadline = Instant::now() + OPERATION_LIMIT;
        let (inner, _) = DefaultStream::from_unix_stream(connect(display, deadline)?)?;
        let budget = Budget { deadline, bytes: SETUP_BYTES, framing: None, broken: false };
        let x = RustConnection::connect_to_stream(Guard { inner, budget: Mutex::new(budget) }, 0)?;
        x.stream().budget().framing = Some(Framing::default());
        let screen =
            x.setup().roots.first().cloned().ok_or_else(|| XError::Lost("it has no screen".to_owned()))?;
        let link = Self { root: screen.root, x, screen };
        link.begin();
        Ok(link)
    }

    /// Begins an operation, which reads small answers.
    pub(super) fn begin(&self) {
        self.x.stream().budget().deadline = Instant::now() + OPERATION_LIMIT;
        self.allow(0);
    }

    /// Within an operation: so many bytes of a picture may come next, beside small answers.
    pub(super) fn allow(&self, bytes: usize) {
        self.x.stream().budget().bytes = SMALL_BYTES + bytes;
    }

    /// Waits until the server has done everything that was asked of it.
    pub(super) fn sync(&self) -> Result<(), XError> {
        self.x.get_input_focus()?.reply()?;
        // Nobody waits for events; kept ones would pile up.
        while self.x.poll_for_event()?.is_some() {}
        Ok(())
    }
}

fn connect(display: Display, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(format!("/tmp/.X11-unix/X{}", display.0))?;
    loop {
        // A new one each time, as a refused one is of no use.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            // Its queue is full.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(CONNECT_RETRY),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The byte stream below a [`Connection`].
#[derive(Debug)]
pub(super) struct Guard {
    inner: DefaultStream,
    budget: Mutex<Budget>,
}

#[derive(Debug)]
struct Budget {
    deadline: Instant,
    /// How many may still be read.
    bytes: usize,
    /// From the end of the setup on.
    framing: Option<Framing>,
    /// What is left in the stream is of no use.
    broken: bool,
}

impl Budget {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let most = self.bytes;
        let left = most.checked_sub(bytes.len());
        self.bytes = left.ok_or_else(|| io::Error::other("it sends more than was asked for"))?;
        self.framing.as_mut().map_or(Ok(()), |framing| framing.take(bytes, most))
    }
}

/// Follows where packets begin, to see how long one says it is before anybody makes room for it.
#[derive(Debug, Default)]
struct Framing {
    head: [u8; 8],
    /// Bytes of the current packet so far.
    seen: usize,
    length: usize,
}

const PACKET_BYTES: usize = 32;

impl Framing {
    fn take(&mut self, mut bytes: &[u8], most: usize) -> io::Result<()> {
        while let Some(&first) = bytes.first() {
            if self.seen < self.head.len() {
                self.head[self.seen] = first;
                self.seen += 1;
                bytes = &bytes[1..];
                if self.seen == self.head.len() {
                    self.length = self.announced();
                    if self.length > most + PACKET_BYTES {
                        return Err(io::Error::other("an answer is longer than it can be"));
                    }
                }
            } else {
                let part = bytes.len().min(self.length - self.seen);
                self.seen += part;
                bytes = &bytes[part..];
            }
            if self.seen >= self.head.len() && self.seen == self.length {
                self.seen = 0;
            }
        }
        Ok(())
    }

    /// Answers and generic events say how much they have beyond 32 bytes.
    fn announced(&self) -> usize {
        const REPLY: u8 = 1;
        const GENERIC_EVENT: u8 = 35;
        let [kind, _, _, _, length @ ..] = self.head;
        if kind == REPLY || kind & 0x7f == GENERIC_EVENT {
            PACKET_BYTES.saturating_add((u32::from_ne_bytes(length) as usize).saturating_mul(4))
        } else {
            PACKET_BYTES
        }
    }
}

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Guard {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> io::Result<Duration> {
        let budget = self.budget();
        if budget.broken {
            return Err(io::Error::other("it is not understood any more"));
        }
        let left = budget.deadline.saturating_duration_since(Instant::now());
        drop(budget);
        if left.is_zero() { Err(self.late()) } else { Ok(left) }
    }

    fn late(&self) -> io::Error {
        self.budget().broken = true;
        io::Error::new(io::ErrorKind::TimedOut, "it does not answer")
    }
}

impl Stream for Guard {
    fn poll(&self, mode: PollMode) -> io::Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, mode.readable());
        flags.set(PollFlags::OUT, mode.writable());
        loop {
            let left = Timespec::try_from(self.left()?).map_err(io::Error::other)?;
            match rustix::event::poll(&mut [PollFd::new(&self.inner, flags)], Some(&left)) {
                Ok(0) => return Err(self.late()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(&self, buf: &mut [u8], _fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        // A server that sends without end is never waited for.
        self.left()?;
        // Nothing that is asked for comes with descriptors.
        let count = self.inner.read(buf, &mut Vec::new())?;
        let mut budget = self.budget();
        let taken = budget.take(&buf[..count]);
        budget.broken |= taken.is_err();
        taken.map(|()| count)
    }

    fn write(&self, buf: &[u8], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.left()?;
        self.inner.write(buf, fds)
    }

    fn write_vectored(&self, bufs: &[io::IoSlice<'_>], fds: &mut Vec<RawFdContainer>) -> io::Result<usize> {
        self.left()?;
        self.inner.write_vectored(bufs, fds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays() {
        for (text, number) in [(":1", 1), ("unix:10.0", 10), (":0.2", 0)] {
            assert_eq!(Display::parse(text), Some(Display(number)), "{text}");
        }
        for text in ["", ":", "1", "host:1", ":1x", ":-1", ":../../x", ":123456"] {
            assert_eq!(Display::parse(text), None, "{text}");
        }
    }

    #[test]
    fn packets_are_followed_in_any_pieces() {
        let mut bytes = Vec::new();
        for (kind, extra) in [(1_u8, 3_u32), (12, 99), (35, 1), (0, 7), (1, 0)] {
            let mut packet = vec![0; PACKET_BYTES];
            packet[0] = kind;
            packet[4..8].copy_from_slice(&extra.to_ne_bytes());
            let long = kind == 1 || kind == 35;
            packet.resize(PACKET_BYTES + if long { extra as usize * 4 } else { 0 }, 1);
            bytes.extend(packet);
        }
        for size in 1..bytes.len() {
            let mut framing = Framing::default();
            bytes.chunks(size).for_each(|piece| framing.take(piece, 12).unwrap());
            assert_eq!(framing.seen, 0, "pieces of {size}");
        }
        let mut framing = Framing::default();
        assert!(framing.take(&bytes, 11).is_err());
        let mut endless = [255; 8];
        endless[0] = 1;
        assert!(Framing::default().take(&endless, SMALL_BYTES).is_err());
    }
}
