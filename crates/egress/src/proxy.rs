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

#[cfg(test)]
mod tests {
    use domain::Secret;
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that answers this; what it was asked, what came of it, and what the service said after that.
    async fn ask(answer: &'static str, credentials: Option<&str>) -> (String, io::Result<()>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap()
        });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let proxy = Proxy { address, credentials: credentials.map(Secret::new) };
        let opened = open(&mut stream, &proxy, "198.51.100.7:443".parse().unwrap()).await;
        let asked = served.await.unwrap();
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest).await;
        (asked, opened, rest)
    }

    #[tokio::test]
    async fn the_proxy_is_asked_for_the_address_and_nothing_is_lost() {
        let (asked, opened, rest) =
            ask("HTTP/1.1 200 OK\r\nVia: x\r\n\r\n220 hello", Some("user:pass")).await;
        assert!(
            asked.starts_with("CONNECT 198.51.100.7:443 HTTP/1.1\r\nHost: 198.51.100.7:443\r\n"),
            "{asked}"
        );
        assert!(asked.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{asked}");
        assert!(opened.is_ok());
        assert_eq!(rest, b"220 hello");
    }

    #[tokio::test]
    async fn whatever_is_no_yes_is_a_no() {
        let endless: &'static str = Box::leak("HTTP/1.1 200 OK\r\nx: y\r\n".repeat(1_000).into_boxed_str());
        for answer in ["HTTP/1.1 407 No\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "SSH-2.0\r\n\r\n", "", endless]
        {
            let (asked, opened, _) = ask(answer, None).await;
            assert!(opened.is_err(), "{answer}");
            assert!(!asked.contains("Proxy-Authorization"));
        }
    }
}
