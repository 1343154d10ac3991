//! The virtual serial port: one byte stream to whichever server is there, cut into calls. Threads with plain blocking reads
//! and writes: while no server is connected the kernel reports a hangup for as long as it lasts, which an event loop would
//! turn in circles over.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use wire::agent::vm::{CALL_BYTES, MARK_BYTES, NONCE_BYTES, PORT, PREFIX, answer_mark};

use super::{root, step};

/// The most that the port takes and gives at once (drivers/char/virtio_console.c).
const CHUNK: usize = 32 * 1024;
/// How soon a new server is noticed; nothing but a read says that there is one.
const ABSENT_PAUSE: Duration = Duration::from_millis(20);
/// So many such reads in a row mean that the server has gone. Fewer may be the end of a former one, of which the kernel hears
/// on another queue than of the next one's call, and sometimes after it.
const ABSENT_READS: u32 = 50;

/// Opens the port by its name.
pub(super) fn find() -> io::Result<File> {
    let look = || {
        let mut ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?.flatten();
        let named = ports.find(|port| {
            std::fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim_end() == PORT)
        })?;
        let device = Path::new("/dev").join(named.file_name());
        device.exists().then_some(device)
    };
    let device = root::wait_for("the port", look)?;
    File::options().read(true).write(true).open(device).map_err(step("open the port"))
}

/// The mark of calls to come, if it is to be another one.
#[derive(Clone, Default)]
pub(crate) struct NextMark(Arc<Mutex<Option<[u8; MARK_BYTES]>>>);

impl std::fmt::Debug for NextMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NextMark")
    }
}

impl NextMark {
    /// Both marks are known until a call has this one.
    pub(super) fn set(&self, mark: [u8; MARK_BYTES]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }

    fn take_if(&self, mark: [u8; MARK_BYTES]) -> bool {
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        next.take_if(|next| same(mark, *next)).is_some()
    }
}

/// Starts the threads. Each call arrives as a stream whose other end is the port.
pub(crate) fn serve(
    port: File,
    mut out: File,
    next_mark: NextMark,
) -> io::Result<mpsc::Receiver<UnixStream>> {
    let (announce, calls) = mpsc::channel(1);
    let (answer, answers) = sync_channel(1);
    std::thread::Builder::new().name("port-out".to_owned()).spawn(move || {
        while let Ok((call, stream)) = answers.recv() {
            // A port that cannot be written is one that is gone with the machine.
            if write_call(&mut out, &call, stream).is_err() {
                return;
            }
        }
    })?;
    let reader = Reader {
        port,
        scanner: Scanner { next_mark, ..Scanner::default() },
        current: None,
        announce,
        answer,
    };
    std::thread::Builder::new().name("port-in".to_owned()).spawn(move || reader.run())?;
    Ok(calls)
}

/// The answer to a call, then whatever it says, until it is over.
fn write_call(port: &mut File, call: &Call, mut stream: UnixStream) -> io::Result<()> {
    port.write_all(&[&answer_mark(call.mark)[..], &call.nonce[..]].concat())?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(read) => port.write_all(&buffer[..read])?,
        }
    }
}

struct Reader {
    port: File,
    scanner: Scanner,
    /// The present call.
    current: Option<UnixStream>,
    announce: mpsc::Sender<UnixStream>,
    answer: SyncSender<(Call, UnixStream)>,
}

impl Reader {
    fn run(mut self) {
        let mut buffer = vec![0; CHUNK];
        let mut absent = 0;
        loop {
            match self.port.read(&mut buffer) {
                Ok(0) => {
                    absent += 1;
                    // And so have those who spoke through it.
                    if absent == ABSENT_READS {
                        self.hang_up();
                    }
                    absent = absent.min(ABSENT_READS);
                    std::thread::sleep(ABSENT_PAUSE);
                }
                Ok(read) => {
                    absent = 0;
                    for piece in self.scanner.feed(&buffer[..read]) {
                        if self.take(piece).is_err() {
                            return;
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// An error means that the rest of this process is gone.
    fn take(&mut self, piece: Piece) -> io::Result<()> {
        match piece {
            Piece::Bytes(bytes) => {
                // What nobody listens to any more is dropped; the next call begins anew.
                if self.current.as_mut().is_some_and(|stream| stream.write_all(&bytes).is_err()) {
                    self.hang_up();
                }
                Ok(())
            }
            Piece::Call(call) => {
                self.hang_up();
                let (ours, theirs) = UnixStream::pair()?;
                // The writer takes it once it is done with the former one.
                self.answer.send((call, ours.try_clone()?)).map_err(io::Error::other)?;
                self.announce.blocking_send(theirs).map_err(io::Error::other)?;
                self.current = Some(ours);
                Ok(())
            }
        }
    }

    fn hang_up(&mut self) {
        if let Some(stream) = self.current.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What the port brought.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Bytes(Vec<u8>),
    Call(Call),
}

/// The beginning of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Call {
    mark: [u8; MARK_BYTES],
    nonce: [u8; NONCE_BYTES],
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("nonce", &self.nonce).finish_non_exhaustive()
    }
}

/// Finds calls, however they are cut.
#[derive(Default)]
struct Scanner {
    /// Told by the first call: nothing of a client's is on the port before a server has called.
    mark: Option<[u8; MARK_BYTES]>,
    next_mark: NextMark,
    /// The last bytes, which may be the beginning of a call. They have been passed on: nothing is held back, since nothing may follow
    /// for as long as whoever waits for them does not answer. If it was a call, what has got its beginning ends with it.
    tail: Vec<u8>,
}

impl Scanner {
    fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        // So much of it has been passed on.
        let mut passed = self.tail.len();
        let mut all = std::mem::take(&mut self.tail);
        all.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        let pass = |from: usize, to: usize, pieces: &mut Vec<Piece>| {
            if let Some(bytes) = all.get(from..to).filter(|bytes| !bytes.is_empty()) {
                pieces.push(Piece::Bytes(bytes.to_vec()));
            }
        };
        // So much of it is no call's, or one that was found.
        let mut looked = 0;
        let begun = loop {
            let Some(at) = memchr::memmem::find(&all[looked..], &PREFIX).map(|at| looked + at) else {
                break all.len() - beginning(&all[looked..]);
            };
            let Some(call) = all.get(at..at + CALL_BYTES) else { break at };
            let (mark, nonce) = call[PREFIX.len()..].split_at(MARK_BYTES);
            let (Ok(mark), Ok(nonce)) = (mark.try_into(), nonce.try_into()) else { return pieces };
            if !same(mark, *self.mark.get_or_insert(mark)) {
                if !self.next_mark.take_if(mark) {
                    looked = at + 1;
                    continue;
                }
                self.mark = Some(mark);
            }
            pass(passed, at, &mut pieces);
            pieces.push(Piece::Call(Call { mark, nonce }));
            looked = at + CALL_BYTES;
            passed = looked;
        };
        pass(passed, all.len(), &mut pieces);
        self.tail = all.split_off(begun);
        pieces
    }
}

/// How much of the end may be the beginning of a call, by what everybody knows of it.
fn beginning(bytes: &[u8]) -> usize {
    (1..PREFIX.len().min(bytes.len() + 1))
        .rev()
        .find(|&length| bytes.ends_with(&PREFIX[..length]))
        .unwrap_or(0)
}

/// Compares without telling by its time how far two are the same.
fn same(one: [u8; MARK_BYTES], other: [u8; MARK_BYTES]) -> bool {
    std::hint::black_box(one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: [u8; MARK_BYTES] = *b"0101010101010102";

    fn fed(chunks: &[&[u8]]) -> Vec<Piece> {
        let mut scanner = Scanner::default();
        let mut joined: Vec<Piece> = Vec::new();
        for piece in chunks.iter().flat_map(|chunk| scanner.feed(chunk)) {
            match (joined.last_mut(), piece) {
                (Some(Piece::Bytes(all)), Piece::Bytes(more)) => all.extend(more),
                (_, piece) => joined.push(piece),
            }
        }
        joined
    }

    fn call(mark: [u8; MARK_BYTES], nonce: &[u8; NONCE_BYTES]) -> Vec<u8> {
        [&PREFIX[..], &mark, nonce].concat()
    }

    /// Calls, each with the bytes before it, and the bytes after the last.
    fn by_call(pieces: &[Piece]) -> (Vec<(Vec<u8>, Call)>, Vec<u8>) {
        let mut before = Vec::new();
        let mut calls = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => before.extend_from_slice(bytes),
                Piece::Call(call) => calls.push((std::mem::take(&mut before), *call)),
            }
        }
        (calls, before)
    }

    /// Compares, but for the beginning of a call that was cut off from it and passed on.
    fn assert_found(found: &[Piece], expected: &[Piece], size: usize) {
        let ((found, last), (expected, wanted)) = (by_call(found), by_call(expected));
        assert_eq!((found.len(), last), (expected.len(), wanted), "in pieces of {size}");
        for ((found, one), (wanted, other)) in found.iter().zip(&expected) {
            assert_eq!(one, other, "in pieces of {size}");
            let rest = found.strip_prefix(wanted.as_slice()).unwrap_or_else(|| panic!("{size}: {found:?}"));
            assert!(call(MARK, &one.nonce).starts_with(rest), "in pieces of {size}: {rest:?}");
        }
    }

    fn found(nonce: &[u8; NONCE_BYTES]) -> Piece {
        Piece::Call(Call { mark: MARK, nonce: *nonce })
    }

    #[test]
    fn calls_are_found_however_they_are_cut() {
        let prefix = &PREFIX[..5];
        let stream =
            [b"old ", prefix, &call(MARK, b"abcdefgh"), b"new", prefix, &call(MARK, b"ABCDEFGH")].concat();
        let expected = [
            Piece::Bytes([b"old ", prefix].concat()),
            found(b"abcdefgh"),
            Piece::Bytes([b"new", prefix].concat()),
            found(b"ABCDEFGH"),
        ];
        for size in 1..=stream.len() {
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            assert_found(&fed(&chunks), &expected, size);
        }
        assert_eq!(fed(&[&stream]), expected);
    }

    #[test]
    fn what_a_client_sends_is_no_call_without_the_mark() {
        let mut near = MARK;
        near[MARK_BYTES - 1] ^= 1;
        // The right one, but not behind the prefix; the prefix within what follows a prefix.
        let smuggled = [&call(near, b"smuggled"), &call([0; MARK_BYTES], b"smuggled"), &MARK[..]].concat();
        let twice = [&PREFIX[..], &call(MARK, b"12345678")].concat();
        let stream = [&call(MARK, b"abcdefgh"), &smuggled[..], &twice, b"end"].concat();
        let expected = [
            found(b"abcdefgh"),
            Piece::Bytes([&smuggled[..], &PREFIX].concat()),
            found(b"12345678"),
            Piece::Bytes(b"end".to_vec()),
        ];
        for size in 1..=stream.len() {
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            assert_found(&fed(&chunks), &expected, size);
        }
    }

    /// A client's last byte is like the first of a call in one of 256 frames that are masked, and it waits for an answer.
    #[test]
    fn nothing_is_held_back() {
        let called = || {
            let mut scanner = Scanner::default();
            scanner.feed(&call(MARK, b"abcdefgh"));
            scanner
        };
        for whole in [call(MARK, b"ABCDEFGH"), call([0; MARK_BYTES], b"12345678")] {
            for length in 1..whole.len() {
                let words = [b"hello", &whole[..length]].concat();
                assert_eq!(called().feed(&words), [Piece::Bytes(words)], "up to {length}");
            }
            // And each byte of it by itself.
            let mut scanner = called();
            for byte in &whole[..whole.len() - 1] {
                assert_eq!(scanner.feed(&[*byte]), [Piece::Bytes(vec![*byte])]);
            }
        }
        // What has been passed on is not passed on again, and counts.
        let (whole, mut scanner) = (call(MARK, b"ABCDEFGH"), called());
        scanner.feed(&whole[..9]);
        assert_eq!(
            scanner.feed(&[&whole[9..], b"new"].concat()),
            [found(b"ABCDEFGH"), Piece::Bytes(b"new".to_vec())]
        );
    }

    #[test]
    fn another_mark_is_known_when_it_was_announced_and_then_alone() {
        const OTHER: [u8; MARK_BYTES] = [9; MARK_BYTES];
        let mut scanner = Scanner::default();
        let other = || Piece::Call(Call { mark: OTHER, nonce: *b"abcdefgh" });
        assert_eq!(scanner.feed(&call(MARK, b"abcdefgh")), [found(b"abcdefgh")]);
        assert!(matches!(scanner.feed(&call(OTHER, b"abcdefgh"))[..], [Piece::Bytes(_)]));
        scanner.next_mark.set(OTHER);
        assert_eq!(scanner.feed(&call(MARK, b"abcdefgh")), [found(b"abcdefgh")]);
        assert_eq!(scanner.feed(&call(OTHER, b"abcdefgh")), [other()]);
        assert!(matches!(scanner.feed(&call(MARK, b"abcdefgh"))[..], [Piece::Bytes(_)]));
        assert_eq!(scanner.feed(&call(OTHER, b"abcdefgh")), [other()]);
    }

    #[test]
    fn a_new_call_ends_the_former_and_is_answered_after_it() {
        // A socket in the place of the device.
        let (mut host, guest) = UnixStream::pair().unwrap();
        let mut calls = serve(
            File::from(std::os::fd::OwnedFd::from(guest.try_clone().unwrap())),
            File::from(std::os::fd::OwnedFd::from(guest)),
            NextMark::default(),
        )
        .unwrap();
        let call = |nonce| call(MARK, nonce);
        let answer = |nonce: &[u8; NONCE_BYTES]| [&answer_mark(MARK)[..], nonce].concat();
        fn receive(from: &mut UnixStream, length: usize) -> Vec<u8> {
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes).unwrap();
            bytes
        }

        host.write_all(b"left by nobody").unwrap();
        host.write_all(&call(b"11111111")).unwrap();
        let mut first = calls.blocking_recv().unwrap();
        assert_eq!(receive(&mut host, 24), answer(b"11111111"));
        host.write_all(b"ping").unwrap();
        assert_eq!(receive(&mut first, 4), b"ping");
        first.write_all(b"pong").unwrap();
        assert_eq!(receive(&mut host, 4), b"pong");

        host.write_all(&[&b"half a mess"[..], &call(b"22222222")].concat()).unwrap();
        let mut second = calls.blocking_recv().unwrap();
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"half a mess");
        assert_eq!(receive(&mut host, 24), answer(b"22222222"));
        host.write_all(b"again").unwrap();
        assert_eq!(receive(&mut second, 5), b"again");
    }
}
