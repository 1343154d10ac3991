//! `GET /_agent/dial?port=N`: the connection becomes a TCP connection to a port of the guest.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::reply::{Refusal, Response, empty};
use crate::route::Request;
use crate::serve::TunnelSlot;
use crate::sys;

/// Local connects answer at once unless the listener's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of each direction; one tunnel per preview connection, so it stays small.
const BUFFER_BYTES: usize = 16 * 1024;

pub(crate) async fn open(mut request: Request, slot: &TunnelSlot) -> Result<Response, Refusal> {
    let wants_tcp = request
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"tcp"));
    if !wants_tcp {
        return Err(Refusal::bad_request("the request must ask to upgrade to tcp"));
    }
    let port = request
        .uri()
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|pair| pair.strip_prefix("port="))
        .and_then(|text| text.parse::<u16>().ok())
        .filter(|port| *port != 0)
        .ok_or_else(|| Refusal::bad_request("port must be a number from 1 to 65535"))?;
    let guest = connect(port).await.ok_or_else(|| {
        Refusal::new(StatusCode::BAD_GATEWAY, "bad_gateway", format!("nothing listens on port {port}"))
    })?;
    let upgrade = hyper::upgrade::on(&mut request);
    *slot.borrow_mut() = Some(Box::pin(async move {
        let Ok(upgraded) = upgrade.await else { return };
        // Either side may end at any time; both get what the other has sent before.
        let _ = tokio::io::copy_bidirectional_with_sizes(
            &mut TokioIo::new(upgraded),
            &mut Eager(guest),
            BUFFER_BYTES,
            BUFFER_BYTES,
        )
        .await;
    }));
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("tcp"));
    Ok(response)
}

/// Reads until there is nothing, where the runtime would take a short read for the last: on gVisor the end of a connection may
/// be told of together with its last bytes, and then not again.
struct Eager(TcpStream);

impl AsyncRead for Eager {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|read| buffer.advance(read))),
            }
        }
    }
}

impl AsyncWrite for Eager {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Loopback first, then the addresses of all interfaces, for servers that bind one of those alone.
async fn connect(port: u16) -> Option<TcpStream> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    for address in loopback {
        if let Some(stream) = try_address(address, port).await {
            return Some(stream);
        }
    }
    for address in sys::local_addresses() {
        if !loopback.contains(&address)
            && let Some(stream) = try_address(address, port).await
        {
            return Some(stream);
        }
    }
    None
}

async fn try_address(address: IpAddr, port: u16) -> Option<TcpStream> {
    let connecting = TcpStream::connect(SocketAddr::new(address, port));
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.ok()?.ok()?;
    // Previews are interactive.
    let _ = stream.set_nodelay(true);
    Some(stream)
}
