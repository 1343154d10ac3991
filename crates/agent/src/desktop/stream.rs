//! `Stream`: pictures whenever the screen changes, as a Connect server stream. Each message is an envelope: a byte of flags,
//! four of length, and JSON.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::Instant;
use wire::desktop::{
    DEFAULT_STREAM_FPS, Empty, FrameFormat, FrameStart, MAX_STREAM_FPS, StreamFrame, StreamRequest,
};

use super::fault::Fault;
use super::link::Display;
use super::screen::{self, Picture};
use super::{encode, read};
use crate::agent::{Agent, Counted};
use crate::reply::{Body, Response};

const ENVELOPED: &str = "application/connect+json";
/// The last message of a stream has this flag.
const END: u8 = 2;
const HEAD_BYTES: usize = 5;
/// Bytes of a picture in one message, before base64.
const PIECE: usize = 48 * 1024;
/// A screen that stands still says so; proxies end connections that are silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A client that takes nothing for so long is gone.
const STALLED: Duration = Duration::from_secs(60);
/// Messages on their way to a slow client; pictures are skipped meanwhile.
const WAITING: usize = 4;
/// Most streams of a sandbox.
const MAX_STREAMS: usize = 1;

pub(super) fn is_enveloped(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(ENVELOPED.as_bytes()))
}

pub(super) fn answer(
    agent: &Rc<Agent>,
    display: Display,
    body: &[u8],
    enveloped: bool,
) -> Result<Response, Fault> {
    let body = if enveloped {
        let message = body.get(HEAD_BYTES..).filter(|_| body[0] == 0);
        message.ok_or_else(|| Fault::invalid("the body is no Connect message"))?
    } else {
        body
    };
    let StreamRequest { fps, format } = read(body)?;
    let fps = match fps {
        0 => DEFAULT_STREAM_FPS,
        fps if (1..=MAX_STREAM_FPS).contains(&fps) => fps,
        fps => return Err(Fault::invalid(format!("fps is {fps}; it may be 1 to {MAX_STREAM_FPS}"))),
    };
    let place = Counted::new(agent, |agent| &agent.desktop.streams, MAX_STREAMS)
        .ok_or_else(|| Fault::exhausted("the screen is being streamed already; end that stream first"))?;
    let every = Duration::from_secs(1) / u32::try_from(fps).unwrap_or(1);
    let (sender, receiver) = mpsc::channel(WAITING);
    let agent_then = Rc::clone(agent);
    agent.spawn(async move {
        send(&agent_then, display, format, every, &sender).await;
        drop(place);
    });
    let messages = stream::unfold(receiver, |mut receiver| async move {
        let message: Bytes = receiver.recv().await?;
        Some((Ok(Frame::data(message)), receiver))
    });
    let mut response = Response::new(Box::pin(StreamBody::new(messages)) as Body);
    for (name, value) in [(header::CONTENT_TYPE, ENVELOPED), (header::CACHE_CONTROL, "no-cache")] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

async fn send(
    agent: &Rc<Agent>,
    display: Display,
    format: FrameFormat,
    every: Duration,
    client: &mpsc::Sender<Bytes>,
) {
    let last: Arc<Mutex<Option<Picture>>> = Arc::default();
    let mut told = Instant::now();
    loop {
        let begun = Instant::now();
        let shown = Arc::clone(&last);
        let taken = agent.desktop.picture(agent, display, move |camera| {
            let picture = camera.take(true).map_err(|error| screen::failed(&error))?;
            let last = &mut *shown.lock().unwrap_or_else(PoisonError::into_inner);
            if last.as_ref().is_some_and(|last| last.shows(&picture)) {
                return Ok(None);
            }
            let bytes = encode::encode(&picture, format)?;
            let (width, height) = (picture.width, picture.height);
            *last = Some(picture);
            Ok(Some((bytes, width, height)))
        });
        let sent = match taken.await {
            Ok(Some((bytes, width, height))) => {
                told = Instant::now();
                let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
                let start = FrameStart { width: width.into(), height: height.into(), format, size };
                frame(client, start, &bytes).await
            }
            Ok(None) if told.elapsed() >= KEEP_ALIVE => {
                told = Instant::now();
                let quiet = StreamFrame { keep_alive: Some(Empty {}), ..StreamFrame::default() };
                put(client, envelope(0, &quiet)).await
            }
            Ok(None) => !client.is_closed(),
            Err(fault) => {
                let error = serde_json::json!({"error": {"code": fault.code(), "message": fault.message}});
                put(client, envelope(END, &error)).await;
                return;
            }
        };
        if !sent {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(begun + every) => {}
            () = client.closed() => return,
        }
    }
}

async fn frame(client: &mpsc::Sender<Bytes>, start: FrameStart, bytes: &[u8]) -> bool {
    let start = StreamFrame { start: Some(start), ..StreamFrame::default() };
    let mut sent = put(client, envelope(0, &start)).await;
    for piece in bytes.chunks(PIECE) {
        let data = StreamFrame { data: Some(STANDARD.encode(piece)), ..StreamFrame::default() };
        sent = sent && put(client, envelope(0, &data)).await;
    }
    let end = StreamFrame { end: Some(Empty {}), ..StreamFrame::default() };
    sent && put(client, envelope(0, &end)).await
}

/// `false` when the client is gone.
async fn put(client: &mpsc::Sender<Bytes>, message: Bytes) -> bool {
    tokio::time::timeout(STALLED, client.send(message)).await.is_ok_and(|sent| sent.is_ok())
}

fn envelope(flags: u8, message: &impl serde::Serialize) -> Bytes {
    let mut bytes = vec![flags, 0, 0, 0, 0];
    // Our own structs of strings and numbers: this cannot fail.
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = u32::try_from(bytes.len() - HEAD_BYTES).unwrap_or(u32::MAX).to_be_bytes();
    bytes[1..HEAD_BYTES].copy_from_slice(&length);
    bytes.into()
}
