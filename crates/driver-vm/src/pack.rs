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

use crate::port::{Port, broken};
use crate::qmp::limited;

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
    pub(crate) async fn pack(&self, what: &Pack) -> Result<PackStream, DriverError> {
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
                Ok(data) if data.is_empty() => {}
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
