//! A guest's connection as a stream: what has been read of it already comes first, everything is counted, and no faster
//! than the sandbox may be.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::budget::Bandwidth;
use crate::relay::Traffic;
use crate::sandboxes::Sandbox;

/// Bytes from, and to, the guest.
#[derive(Debug)]
pub(crate) struct Metered {
    guest: TcpStream,
    start: Vec<u8>,
    sandbox: Arc<Sandbox>,
    traffic: Arc<Traffic>,
    reading: Pause,
    writing: Pause,
}

impl Metered {
    /// `start` is what has been read already.
    pub(crate) fn new(
        guest: TcpStream,
        start: Vec<u8>,
        sandbox: Arc<Sandbox>,
        traffic: Arc<Traffic>,
    ) -> Self {
        Self { guest, start, sandbox, traffic, reading: Pause(None), writing: Pause(None) }
    }
}

/// What is in debt waits before it goes on.
#[derive(Debug)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    fn over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(sleep) = &mut self.0 {
            ready!(sleep.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }

    fn after(&mut self, bandwidth: &Bandwidth, bytes: usize) {
        self.0 = bandwidth.debt(bytes).map(|wait| Box::pin(tokio::time::sleep(wait)));
    }
}

impl AsyncRead for Metered {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.reading.over(cx));
        let before = buf.filled().len();
        if this.start.is_empty() {
            ready!(Pin::new(&mut this.guest).poll_read(cx, buf))?;
        } else {
            let count = this.start.len().min(buf.remaining());
            buf.put_slice(&this.start[..count]);
            this.start.drain(..count);
        }
        let read = buf.filled().len() - before;
        this.traffic.sent.fetch_add(read as u64, Ordering::Relaxed);
        this.reading.after(&this.sandbox.upward, read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.writing.over(cx));
        let written = ready!(Pin::new(&mut this.guest).poll_write(cx, bytes))?;
        this.traffic.received.fetch_add(written as u64, Ordering::Relaxed);
        this.writing.after(&this.sandbox.downward, written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.writing.over(cx));
        let written = ready!(Pin::new(&mut this.guest).poll_write_vectored(cx, parts))?;
        this.traffic.received.fetch_add(written as u64, Ordering::Relaxed);
        this.writing.after(&this.sandbox.downward, written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().guest).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.guest).poll_shutdown(cx))?;
        // What was written is to arrive, even when the connection ends now.
        crate::relay::close_when_dropped(&this.guest);
        Poll::Ready(Ok(()))
    }
}
