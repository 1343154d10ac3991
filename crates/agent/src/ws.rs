//! WebSockets: the handshake, and the end of one. Frames are the library's business.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};
use tokio_util::sync::PollSemaphore;
use wire::data_plane::close::TOO_BIG;

use crate::reply::{Refusal, Response, empty};
use crate::route::Request;
use crate::serve::TunnelSlot;

/// Small, since there may be many idle ones; larger frames get memory of their own while they last.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// How long a peer has to take the last words and to hang up.
const FAREWELL: Duration = Duration::from_secs(2);
/// What a peer had on the way when it was told to stop.
const FAREWELL_BYTES: u64 = 8 * 1024 * 1024;

/// A frame from here on is large.
const LARGE_BYTES: usize = 128 * 1024;
/// Large frames of all connections together that are being received or worked off. At 4 MiB each they stay well below
/// the memory that the platform spends on the agent; official clients never send one.
const MAX_LARGE: usize = 8;

pub(crate) type Socket = WebSocketStream<Metered>;

/// The places for large frames.
#[derive(Debug, Clone)]
pub(crate) struct LargeFrames(PollSemaphore);

impl Default for LargeFrames {
    fn default() -> Self {
        Self(PollSemaphore::new(Arc::new(Semaphore::new(MAX_LARGE))))
    }
}

/// A connection that takes in a large frame only when there is a place for it.
#[derive(Debug)]
pub(crate) struct Metered {
    inner: TokioIo<Upgraded>,
    places: PollSemaphore,
    meter: Meter,
}

/// What a connection has taken in since the last frame was worked off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter(Rc<RefCell<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    place: Option<OwnedSemaphorePermit>,
}

impl Meter {
    /// The frame is worked off.
    pub(crate) fn reset(&self) {
        self.0.take();
    }
}

impl Metered {
    pub(crate) fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut taken = this.meter.0.borrow_mut();
        if taken.bytes > LARGE_BYTES && taken.place.is_none() {
            taken.place = ready!(this.places.poll_acquire(context));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(context, buffer);
        taken.bytes += buffer.filled().len() - before;
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

/// Answers the handshake with exactly this subprotocol, and leaves `talk` for after it.
pub(crate) fn accept<F>(
    mut request: Request,
    slot: &TunnelSlot,
    subprotocol: &'static str,
    max_frame: usize,
    LargeFrames(places): LargeFrames,
    talk: impl FnOnce(Socket) -> F + 'static,
) -> Result<Response, Refusal>
where
    F: Future<Output = ()> + 'static,
{
    let headers = request.headers();
    let has = |name, token: &str| tokens(headers, name).any(|one| one.eq_ignore_ascii_case(token));
    if request.method() != Method::GET
        || !has(header::UPGRADE, "websocket")
        || !has(header::CONNECTION, "upgrade")
        || headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13")
    {
        return Err(Refusal::new(
            StatusCode::UPGRADE_REQUIRED,
            "bad_request",
            "this path is a WebSocket (version 13)",
        ));
    }
    if !tokens(headers, header::SEC_WEBSOCKET_PROTOCOL).any(|one| one == subprotocol) {
        return Err(Refusal::bad_request(format!("the subprotocol {subprotocol} must be offered")));
    }
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key is missing"))?;
    // Base64: always a header value.
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| Refusal::bad_request("Sec-WebSocket-Key is malformed"))?;
    let upgrade = hyper::upgrade::on(&mut request);
    *slot.borrow_mut() = Some(Box::pin(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let connection = Metered { inner: TokioIo::new(upgraded), places, meter: Meter::default() };
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(max_frame))
            .max_frame_size(Some(max_frame));
        let socket = Socket::from_raw_socket(connection, Role::Server, Some(config)).await;
        talk(socket).await;
    }));
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    let head = response.headers_mut();
    head.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    head.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    head.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    head.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(subprotocol));
    Ok(response)
}

fn tokens(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .map(str::trim)
}

/// Ends the conversation: says why, waits for the peer to agree, and hangs up first, as a server does.
pub(crate) async fn close(mut socket: Socket, code: u16, reason: &'static str) {
    let frame = CloseFrame { code: code.into(), reason: reason.into() };
    let farewell = async {
        if socket.send(Message::Close(Some(frame))).await.is_err() {
            return;
        }
        while let Some(Ok(_)) = socket.next().await {}
        if code == TOO_BIG {
            // The rest of that frame: left unread, it would turn into an error at the peer's end that hides the reason.
            let mut rest = socket.get_mut().take(FAREWELL_BYTES);
            let mut buffer = vec![0; READ_BUFFER_BYTES];
            while let Ok(1..) = rest.read(&mut buffer).await {}
        }
    };
    // A peer that takes longer is no longer interested.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
}

/// Answers the peer's own close.
pub(crate) async fn closed(mut socket: Socket) {
    let answer = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = tokio::time::timeout(FAREWELL, answer).await;
}
