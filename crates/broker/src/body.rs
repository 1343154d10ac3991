//! Bodies pass through as they are, but for these: one that must not begin before the service asks for it, one that must
//! not repeat a credential, and one whose trailers must not.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use tokio::sync::oneshot;

use crate::scrub::Scrubber;

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

/// A service that does not know the expectation says nothing; clients wait about as long by themselves (RFC 9110 §10.1.1).
const PATIENCE: Duration = Duration::from_secs(1);

/// A body that begins when the service has said "continue", or has said nothing for a while.
pub(crate) struct Expected<B> {
    inner: B,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl<B> Expected<B> {
    pub(crate) fn new(inner: B, go: oneshot::Receiver<()>) -> Self {
        let waiting = async move {
            // The sender may be dropped with the answer: nobody asks for the body any more.
            let _either = tokio::time::timeout(PATIENCE, go).await;
        };
        Self { inner, waiting: Some(Box::pin(waiting)) }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Expected<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(waiting) = &mut self.waiting {
            ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Trailers without credentials; any other frame as it is.
fn clean_trailers(frame: Frame<Bytes>, scrubber: &Scrubber) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            scrubber.headers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(other) => other,
    }
}

/// A body in which a credential is replaced by its stand-in as it passes.
pub(crate) struct Scrubbed<B> {
    inner: B,
    scrubber: Scrubber,
    /// What comes after the data that was held back.
    next: Option<Frame<Bytes>>,
    ended: bool,
}

impl<B> Scrubbed<B> {
    pub(crate) fn new(inner: B, scrubber: Scrubber) -> Self {
        Self { inner, scrubber, next: None, ended: false }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Scrubbed<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if let Some(frame) = self.next.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    let rest = self.scrubber.finish();
                    if !rest.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(rest.into()))));
                    }
                    continue;
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let out = self.scrubber.push(&data);
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
                Err(other) => {
                    // Trailers: nothing follows but the end.
                    self.ended = true;
                    let trailers = clean_trailers(other, &self.scrubber);
                    let rest = self.scrubber.finish();
                    if rest.is_empty() {
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                    self.next = Some(trailers);
                    return Poll::Ready(Some(Ok(Frame::data(rest.into()))));
                }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        // The stand-in may be shorter or longer than the value.
        SizeHint::default()
    }
}

/// A body that passes as it is, but for its trailers.
pub(crate) struct Trailers<B> {
    inner: B,
    scrubber: Scrubber,
}

impl<B> Trailers<B> {
    pub(crate) fn new(inner: B, scrubber: Scrubber) -> Self {
        Self { inner, scrubber }
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Trailers<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(|frame| clean_trailers(frame, &self.scrubber))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
