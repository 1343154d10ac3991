//! The shape of an answer (`spec/mcp.md` §B.6): one JSON object when nothing precedes the result and it comes soon, an event
//! stream otherwise. The head is held back meanwhile, so the status can still tell an error. Comments keep the stream alive,
//! because proxies cut what is silent for 30 to 100 seconds.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::admission::Place;
use super::config::Limits;
use super::oneshot::{Running, Said};
use super::refusal::Refusal;
use super::revision::Era;

/// What a proxy of the nginx kind must be told, or it collects the stream until its end.
const NO_BUFFERING: &str = "x-accel-buffering";

#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    hold_back: Duration,
    keep_alive: Duration,
    call: Duration,
}

impl From<&Limits> for Timing {
    fn from(limits: &Limits) -> Self {
        Self { hold_back: limits.hold_back, keep_alive: limits.keep_alive, call: limits.call }
    }
}

/// A call whose answer is being made. Dropped, it is cancelled, and its place is given back.
struct Call {
    running: Running,
    id: Value,
    until: Instant,
    place: Place,
}

impl Call {
    /// The next thing said before `wait` is over; the whole call's time limits it too.
    async fn next(&mut self, wait: Duration) -> Next {
        let until = (Instant::now() + wait).min(self.until);
        match timeout_at(until, self.running.next()).await {
            Ok(Some(said)) => Next::Said(said),
            Ok(None) => Next::Broken,
            Err(_) if Instant::now() >= self.until => {
                Next::Said(self.failed("The call took too long and was ended."))
            }
            Err(_) => Next::Silence,
        }
    }

    fn failed(&self, message: &str) -> Said {
        let code = -32603;
        let body = json!({"jsonrpc": "2.0", "id": self.id, "error": {"code": code, "message": message}});
        Said::Last { body: body.to_string().into(), code: Some(code) }
    }
}

enum Next {
    Said(Said),
    Silence,
    /// The call ended without a result: a defect.
    Broken,
}

pub(super) async fn answer(running: Running, era: Era, id: Value, timing: Timing, place: Place) -> Response {
    let mut call = Call { running, id, until: Instant::now() + timing.call, place };
    match call.next(timing.hold_back).await {
        Next::Said(Said::Last { body, code }) => {
            let status = code.map_or(StatusCode::OK, |code| era.status(code));
            // The memory is in use until the client has taken it; the call itself is over.
            let body = Body::new(Held { bytes: Some(body), _place: call.place });
            let mut response = (status, body).into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Next::Said(Said::Note(note)) => streamed(call, Some(event(&note)), timing.keep_alive),
        // The client waits for nothing; this is what is answered where nothing is to be said.
        Next::Said(Said::Cancelled) => StatusCode::ACCEPTED.into_response(),
        Next::Silence => streamed(call, None, timing.keep_alive),
        Next::Broken => Refusal::Internal.into_response(),
    }
}

fn streamed(call: Call, first: Option<Bytes>, keep_alive: Duration) -> Response {
    let mut response = Body::from_stream(events(call, first, keep_alive)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(NO_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// Everything the call still says, the result last.
fn events(
    call: Call,
    first: Option<Bytes>,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    // The first piece leaves at once: the head must not wait for it in anyone's buffer.
    let first = first.unwrap_or_else(comment);
    stream::unfold((Some(call), Some(first)), move |(call, first)| async move {
        let mut call = call?;
        if let Some(first) = first {
            return Some((Ok(first), (Some(call), None)));
        }
        let said = match call.next(keep_alive).await {
            Next::Said(said) => said,
            Next::Silence => return Some((Ok(comment()), (Some(call), None))),
            Next::Broken => call.failed("Internal error."),
        };
        match said {
            Said::Note(note) => Some((Ok(event(&note)), (Some(call), None))),
            Said::Last { body, .. } => Some((Ok(event(&body)), (None, None))),
            Said::Cancelled => None,
        }
    })
}

fn comment() -> Bytes {
    Bytes::from_static(b": keep-alive\n\n")
}

/// Compact JSON has no line breaks, so one line holds it.
fn event(message: &[u8]) -> Bytes {
    [b"event: message\ndata: ", message, b"\n\n"].concat().into()
}

/// Bytes that count as in use until they are written.
struct Held {
    bytes: Option<Bytes>,
    _place: Place,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data() {
        let message = json!({"text": "two\nlines\r\u{2028}"}).to_string();
        let event = event(message.as_bytes());
        let text = std::str::from_utf8(&event).unwrap();
        assert!(text.starts_with("event: message\ndata: {") && text.ends_with("}\n\n"));
        assert_eq!(text.matches(['\n', '\r']).count(), 3);
    }
}
