//! Bodies of previewed exchanges. They pass as they come, trailers included; each frame is counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::observe::Watch;
use crate::stall::Stall;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An upload that sends nothing for this long is given up; honest ones pause for retransmissions only.
const STALL: Duration = Duration::from_secs(300);
/// How long a guest may think about `Expect: 100-continue` before the body comes anyway (RFC 9110 §10.1.1).
const THINK: Duration = Duration::from_secs(1);

/// The body of a request on its way to the guest.
pub(super) struct Upload {
    inner: Incoming,
    watch: Arc<Watch>,
    /// While it is there, the guest has not said yet whether it wants the body.
    held: Option<Signal>,
    stall: Stall,
    room: Room,
}

/// The body of an answer on its way to the visitor. Dropped, it closes the connection to the guest.
pub(crate) struct AnswerBody {
    inner: Incoming,
    /// Ready when the exchange must end although the guest has more to say.
    over: Option<Signal>,
    room: Room,
    _link: AbortOnDropHandle<()>,
    _slot: OwnedSemaphorePermit,
}

/// Bytes that may still pass; unlimited when unset.
#[derive(Debug, Clone, Default)]
pub(super) struct Room {
    left: Option<u64>,
    used_up: Arc<AtomicBool>,
}

impl Room {
    pub(super) fn new(left: Option<u64>) -> Self {
        Self { left, ..Self::default() }
    }

    /// Set once more came than may pass.
    pub(super) fn used_up(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.used_up)
    }

    fn take(&mut self, frame: &Frame<Bytes>) -> Result<(), BoxError> {
        let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) else { return Ok(()) };
        match left.checked_sub(data.len() as u64) {
            Some(rest) => *left = rest,
            None => {
                self.used_up.store(true, Ordering::Release);
                return Err("larger than this server permits for previews".into());
            }
        }
        Ok(())
    }
}

impl Upload {
    /// `go` is sent when the guest wants the body; without it nothing waits.
    pub(super) fn new(
        inner: Incoming,
        watch: Arc<Watch>,
        go: Option<oneshot::Receiver<()>>,
        room: Room,
    ) -> Self {
        let held = go.map(|go| -> Signal {
            Box::pin(async move {
                // Also when nobody will ever say so.
                let _ = tokio::time::timeout(THINK, go).await;
            })
        });
        Self { inner, watch, held, stall: Stall::new(STALL), room }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(held) = &mut this.held {
            ready!(held.as_mut().poll(cx));
            this.held = None;
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            this.stall.over();
            if let Some(Ok(frame)) = &frame {
                this.watch.received(frame.data_ref().map_or(0, Bytes::len));
                if let Err(error) = this.room.take(frame) {
                    return Poll::Ready(Some(Err(error)));
                }
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.stall.poll(cx).map(|error| Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl AnswerBody {
    pub(super) fn new(
        inner: Incoming,
        over: Signal,
        room: Room,
        link: AbortOnDropHandle<()>,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        Self { inner, over: Some(over), room, _link: link, _slot: slot }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Err(error) = this.room.take(&frame) {
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let Some(over) = &mut this.over else { return Poll::Pending };
                ready!(over.as_mut().poll(cx));
                this.over = None;
                Poll::Ready(Some(Err("the preview ended: its port or its sandbox changed".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
