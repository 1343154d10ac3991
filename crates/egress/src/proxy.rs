//! An HTTP proxy on the way out. It is given the address that was checked, never the name, so that it cannot find another
//! one under it.

use std::io;
use std::net::SocketAddrV4;

use base64::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Proxy;

/// Longest head of a proxy's answer.
const MAX_HEAD: usize = 8 * 1024;

/// Asks the proxy for a connection. What comes after its answer belongs to the service.
pub(crate) async fn open(stream: &mut TcpStream, proxy: &Proxy, to: SocketAddrV4) -> io::Result<()> {
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
    if let Some(credentials) = &proxy.credentials {
        let encoded = base64::engine::general_purpose::STANDARD.encode(credentials.expose_secret());
        request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // One byte at a time: the service may speak first, and what it says is not the proxy's.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::Error::other("the proxy's answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let status = head.split(|b| *b == b' ').nth(1).unwrap_or_default();
    if head.starts_with(b"HTTP/1.") && status.len() == 3 && status.starts_with(b"2") {
        return Ok(());
    }
    tracing::warn!(proxy = %proxy.address, status = %status.escape_ascii(), "the upstream proxy refuses a connection");
    Err(io::ErrorKind::ConnectionRefused.into())
}
