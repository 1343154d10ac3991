//! The virtual serial port: one byte stream to whichever server is there, cut into calls. Threads with plain blocking reads
//! and writes: while no server is connected the kernel reports a hangup for as long as it lasts, which an event loop would
//! turn in circles over.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;
use wire::agent::vm::{MARK_BYTES, NONCE_BYTES, PORT, answer_mark};

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

/// Starts the threads. Each call arrives as a stream whose other end is the port.
pub(super) fn serve(port: File, mark: [u8; MARK_BYTES]) -> io::Result<mpsc::Receiver<UnixStream>> {
    let (announce, calls) = mpsc::channel(1);
    let (answer, answers) = sync_channel(1);
    let mut out = port.try_clone()?;
    std::thread::Builder::new().name("port-out".to_owned()).spawn(move || {
        while let Ok((nonce, stream)) = answers.recv() {
            // A port that cannot be written is one that is gone with the machine.
            if write_call(&mut out, mark, nonce, stream).is_err() {
                return;
            }
        }
    })?;
    let reader = Reader { port, scanner: Scanner::new(mark), current: None, announce, answer };
    std::thread::Builder::new().name("port-in".to_owned()).spawn(move || reader.run())?;
    Ok(calls)
}

/// The answer to a call, then whatever it says, until it is over.
fn write_call(
    port: &mut File,
    mark: [u8; MARK_BYTES],
    nonce: [u8; NONCE_BYTES],
    mut stream: UnixStream,
) -> io::Result<()> {
    port.write_all(&[&answer_mark(mark)[..], &nonce[..]].concat())?;
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
    answer: SyncSender<([u8; NONCE_BYTES], UnixStream)>,
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
            Piece::Call(nonce) => {
                self.hang_up();
                let (ours, theirs) = UnixStream::pair()?;
                // The writer takes it once it is done with the former one.
                self.answer.send((nonce, ours.try_clone()?)).map_err(io::Error::other)?;
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
    Call([u8; NONCE_BYTES]),
}

/// Finds marks, however they are cut.
struct Scanner {
    mark: [u8; MARK_BYTES],
    /// What could be the beginning of a call.
    held: Vec<u8>,
}

impl Scanner {
    fn new(mark: [u8; MARK_BYTES]) -> Self {
        Self { mark, held: Vec::new() }
    }

    fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        const CALL: usize = MARK_BYTES + NONCE_BYTES;
        self.held.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        while let Some(at) = memchr::memmem::find(&self.held, &self.mark) {
            if at > 0 {
                pieces.push(Piece::Bytes(self.held.drain(..at).collect()));
            }
            if self.held.len() < CALL {
                return pieces;
            }
            let call: Vec<u8> = self.held.drain(..CALL).collect();
            pieces.extend(call[MARK_BYTES..].try_into().map(Piece::Call));
        }
        let keep = (1..MARK_BYTES.min(self.held.len() + 1))
            .rev()
            .find(|&length| self.held.ends_with(&self.mark[..length]))
            .unwrap_or(0);
        let ready = self.held.len() - keep;
        if ready > 0 {
            pieces.push(Piece::Bytes(self.held.drain(..ready).collect()));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: [u8; MARK_BYTES] = *b"0101010101010102";

    fn fed(chunks: &[&[u8]]) -> Vec<Piece> {
        let mut scanner = Scanner::new(MARK);
        let mut joined: Vec<Piece> = Vec::new();
        for piece in chunks.iter().flat_map(|chunk| scanner.feed(chunk)) {
            match (joined.last_mut(), piece) {
                (Some(Piece::Bytes(all)), Piece::Bytes(more)) => all.extend(more),
                (_, piece) => joined.push(piece),
            }
        }
        joined
    }

    #[test]
    fn calls_are_found_however_they_are_cut() {
        let stream = [b"old 010101", &MARK[..], b"abcdefgh", b"new", &MARK[..], b"ABCDEFGH"].concat();
        let expected = [
            Piece::Bytes(b"old 010101".to_vec()),
            Piece::Call(*b"abcdefgh"),
            Piece::Bytes(b"new".to_vec()),
            Piece::Call(*b"ABCDEFGH"),
        ];
        for size in 1..=stream.len() {
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            assert_eq!(fed(&chunks), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_mark_passes_at_once() {
        let mut scanner = Scanner::new(MARK);
        assert_eq!(scanner.feed(b"hello"), [Piece::Bytes(b"hello".to_vec())]);
        assert_eq!(scanner.feed(b"x01"), [Piece::Bytes(b"x".to_vec())]);
        assert_eq!(scanner.feed(b"!"), [Piece::Bytes(b"01!".to_vec())]);
    }

    #[test]
    fn a_new_call_ends_the_former_and_is_answered_after_it() {
        // A socket in the place of the device.
        let (mut host, guest) = UnixStream::pair().unwrap();
        let mut calls = serve(File::from(std::os::fd::OwnedFd::from(guest)), MARK).unwrap();
        let call = |nonce: &[u8; NONCE_BYTES]| [&MARK[..], nonce].concat();
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
