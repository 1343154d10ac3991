//! The archive that a guest makes of its disk, as it arrives. The guest may send anything, or nothing for ever: how long one
//! may wait for it is bounded here, how much it is by whoever unpacks it.

use std::io;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use driver::{DriverError, NotPacked, Pack, PackStream};
use hyper::body::{Body, Incoming};
use hyper::{HeaderMap, Method, StatusCode};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use wire::agent::vm::{PACK_PATH, PackEnd, PackRequest};

use crate::limited;
use crate::port::{Port, broken};

/// The guest stops its workload first, which a process that waits for a disk may hold up.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// A directory of half a million names is sorted before anything of it is sent, by a processor that may be emulated.
const SILENCE: Duration = Duration::from_secs(120);
/// More than 64 GiB take where anything works. Whoever sends a byte a minute does not come to an end.
const WHOLE: Duration = Duration::from_secs(30 * 60);
/// What is quoted of a guest, characters.
const QUOTED: usize = 200;

impl Port {
    /// Has the guest pack.
    ///
    /// # Errors
    /// The guest does not, or the path cannot be left out.
    pub async fn pack(&self, what: &Pack) -> Result<PackStream, DriverError> {
        let Pack { everything, except, max_bytes } = what.clone();
        let request = PackRequest { everything, max_bytes, except };
        let query = request.to_query().ok_or(DriverError::Unsupported { what: "leaving that path out" })?;
        let turn = self.turn().await?;
        // Who has answered this is called; what follows is not asked twice.
        self.set_clock().await?;
        let path = format!("http://agent{PACK_PATH}?{query}");
        let asked = OnceLock::new();
        let asking = self.send(Method::POST, &path, &asked);
        let answer = limited("stopping the guest's processes", STOP_LIMIT, asking).await?;
        match answer.status() {
            StatusCode::OK => Ok(Box::new(Packing::new(answer.into_body(), turn))),
            // It was started, or its memory written, before there was this.
            StatusCode::NOT_FOUND => Err(DriverError::Unsupported { what: "packing what was written" }),
            other => Err(broken(format!("the guest answered {}", other.as_u16()))),
        }
    }
}

/// See the module.
struct Packing {
    body: Incoming,
    rest: Bytes,
    whole: bool,
    until: Instant,
    /// While nothing comes.
    silence: Pin<Box<Sleep>>,
    waiting: bool,
    _turn: OwnedSemaphorePermit,
}

impl Packing {
    fn new(body: Incoming, turn: OwnedSemaphorePermit) -> Self {
        let now = Instant::now();
        let silence = Box::pin(tokio::time::sleep_until(now + SILENCE));
        let until = now + WHOLE;
        Self { body, rest: Bytes::new(), whole: false, until, silence, waiting: false, _turn: turn }
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.waiting {
            self.waiting = true;
            self.silence.as_mut().reset((Instant::now() + SILENCE).min(self.until));
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(late()))
    }
}

impl AsyncRead for Packing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.rest.is_empty() {
                let length = self.rest.len().min(buffer.remaining());
                buffer.put_slice(&self.rest[..length]);
                self.rest.advance(length);
                return Poll::Ready(Ok(()));
            }
            if self.whole {
                return Poll::Ready(Ok(()));
            }
            if Instant::now() >= self.until {
                return Poll::Ready(Err(late()));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return self.wait(context),
                Poll::Ready(None) => return Poll::Ready(Err(cut())),
                Poll::Ready(Some(frame)) => frame.map_err(io::Error::other)?,
            };
            match frame.into_data() {
                // Says nothing, in any number: others get their turn in between.
                Ok(data) if data.is_empty() => {
                    context.waker().wake_by_ref();
                    return self.wait(context);
                }
                Ok(data) => {
                    self.waiting = false;
                    self.rest = data;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        read_end(&trailers)?;
                        self.whole = true;
                    }
                }
            }
        }
    }
}

fn read_end(trailers: &HeaderMap) -> io::Result<()> {
    let end = trailers.get(PackEnd::TRAILER).ok_or_else(cut)?;
    let why = match serde_json::from_slice(end.as_bytes()).map_err(|_| cut())? {
        PackEnd::Whole => return Ok(()),
        PackEnd::Refused { path, reason } => {
            NotPacked::Refused { path: quoted(&path), reason: quoted(&reason) }
        }
        PackEnd::TooLarge => NotPacked::TooLarge,
        PackEnd::Failed => NotPacked::Failed,
    };
    Err(io::Error::other(why))
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the guest's archive breaks off")
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the guest's archive does not come to an end")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use wire::agent::vm::{CALL_BYTES, MARK_BYTES, NONCE_BYTES, answer_mark};

    use super::*;
    use crate::port::tests::{DATA, END_OF_HEADERS, HEADERS, MARK, OK, SETTINGS, frame, hear_request};

    const RESET: u8 = 3;
    const END_OF_STREAM: u8 = 1;
    /// Of the static table: `:status: 204`, `404` and `500`.
    const NO_CONTENT: u8 = 0x89;
    const NOT_FOUND: u8 = 0x8d;
    const FAILED: u8 = 0x8e;
    /// The second request of a connection.
    const ASKED: u32 = 3;

    async fn hear_next(stream: &mut UnixStream) -> io::Result<()> {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await?;
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await?;
            if head[3] == HEADERS {
                return Ok(());
            }
        }
    }

    /// A guest that sets its clock, and says these things when it is asked to pack; the last of them for ever if it is to.
    fn guest(dir: &Path, says: Vec<Vec<u8>>, every: Option<Duration>) -> Port {
        let path = dir.join("agent.sock");
        let _former = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            let mut call = [0; CALL_BYTES];
            stream.read_exact(&mut call).await?;
            stream
                .write_all(&[&answer_mark([7; MARK_BYTES])[..], &call[CALL_BYTES - NONCE_BYTES..]].concat())
                .await?;
            hear_request(&mut stream).await?;
            let done = frame(HEADERS, END_OF_HEADERS | END_OF_STREAM, 1, &[NO_CONTENT]);
            stream.write_all(&[frame(SETTINGS, 0, 0, &[]), done].concat()).await?;
            hear_next(&mut stream).await?;
            for words in &says {
                stream.write_all(words).await?;
            }
            while let (Some(every), Some(last)) = (every, says.last()) {
                tokio::time::sleep(every).await;
                stream.write_all(last).await?;
            }
            let mut heard = [0; 4_096];
            while stream.read(&mut heard).await? > 0 {}
            Ok::<_, io::Error>(())
        });
        Port::new(path, MARK)
    }

    fn what() -> Pack {
        Pack { everything: false, except: Vec::new(), max_bytes: 1 << 20 }
    }

    fn begins() -> Vec<u8> {
        frame(HEADERS, END_OF_HEADERS, ASKED, &OK)
    }

    fn data(bytes: &[u8]) -> Vec<u8> {
        frame(DATA, 0, ASKED, bytes)
    }

    /// A field that no table has.
    fn field(name: &str, value: &str) -> Vec<u8> {
        let length = |text: &str| u8::try_from(text.len()).unwrap();
        [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
    }

    fn ends(name: &str, value: &str) -> Vec<u8> {
        frame(HEADERS, END_OF_HEADERS | END_OF_STREAM, ASKED, &field(name, value))
    }

    async fn read(port: &Port) -> io::Result<Vec<u8>> {
        let mut archive = port.pack(&what()).await.unwrap();
        let mut all = Vec::new();
        archive.read_to_end(&mut all).await.map(|_| all)
    }

    #[tokio::test]
    async fn only_an_archive_that_the_guest_calls_whole_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let whole = r#"{"end":"whole"}"#;
        let port = guest(dir.path(), vec![begins(), data(b"abc"), ends(PackEnd::TRAILER, whole)], None);
        assert_eq!(read(&port).await.unwrap(), b"abc");
        let lying = [0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 3].to_vec();
        let short = frame(HEADERS, END_OF_HEADERS, ASKED, &[&OK[..], &field("content-length", "2")].concat());
        for says in [
            vec![begins(), frame(DATA, END_OF_STREAM, ASKED, b"abc")],
            vec![begins(), data(b"abc"), frame(RESET, 0, ASKED, &[0; 4])],
            vec![begins(), data(b"abc"), ends("other", whole)],
            vec![begins(), data(b"abc"), ends(PackEnd::TRAILER, "{}")],
            vec![begins(), data(b"abc"), ends(PackEnd::TRAILER, r#"{"end":"half"}"#)],
            vec![begins(), lying],
            vec![begins(), b"HTTP/1.1 200 OK\r\n\r\n".to_vec()],
            vec![short, data(b"abc"), ends(PackEnd::TRAILER, whole)],
        ] {
            let port = guest(dir.path(), says.clone(), None);
            let outcome = read(&port).await;
            assert!(outcome.is_err(), "{says:?}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_guest_that_does_not_pack_is_no_archive() {
        let dir = tempfile::tempdir().unwrap();
        let answer = |status| frame(HEADERS, END_OF_HEADERS | END_OF_STREAM, ASKED, &[status]);
        let old = guest(dir.path(), vec![answer(NOT_FOUND)], None).pack(&what()).await.err().unwrap();
        assert!(matches!(old, DriverError::Unsupported { .. }), "{old}");
        for status in [FAILED, NO_CONTENT] {
            let why = guest(dir.path(), vec![answer(status)], None).pack(&what()).await.err().unwrap();
            assert!(why.to_string().contains("the guest answered"), "{why}");
        }
        let odd = Pack { except: vec!["a&b".to_owned()], ..what() };
        assert!(guest(dir.path(), vec![], None).pack(&odd).await.is_err());
    }

    #[tokio::test]
    async fn what_a_guest_says_is_short_and_printable() {
        let dir = tempfile::tempdir().unwrap();
        let said = r#"{"end":"refused","path":"a\u001b[2J\n","reason":"is odd"}"#;
        let port = guest(dir.path(), vec![begins(), ends(PackEnd::TRAILER, said)], None);
        let error = read(&port).await.unwrap_err();
        let refused = error.get_ref().unwrap().downcast_ref();
        let expected = NotPacked::Refused { path: "a?[2J?".to_owned(), reason: "is odd".to_owned() };
        assert_eq!(refused, Some(&expected));
        assert_eq!(quoted(&"x".repeat(5_000)).len(), QUOTED);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let silent = guest(dir.path(), vec![begins()], None);
        let trickling = guest_in(dir.path(), "trickling", data(b"x"));
        let empty = guest_in(dir.path(), "empty", data(b""));
        for (port, limit) in [(silent, SILENCE), (trickling, WHOLE), (empty, SILENCE)] {
            let begun = Instant::now();
            let error = read(&port).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            assert!(begun.elapsed() >= limit && begun.elapsed() < 2 * limit, "{:?}", begun.elapsed());
        }
        // Nor for its workload to stand still.
        let why = guest_in(dir.path(), "asked", Vec::new()).pack(&what()).await.err();
        assert!(why.is_some());
    }

    /// One that goes on saying the same each minute.
    fn guest_in(dir: &Path, name: &str, says: Vec<u8>) -> Port {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        let begins = if says.is_empty() { Vec::new() } else { begins() };
        guest(&dir, vec![begins, says], Some(Duration::from_secs(60)))
    }
}
