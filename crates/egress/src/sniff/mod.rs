//! What a connection to port 80 or 443 says first, without keeping anybody waiting who speaks second.

pub(crate) mod http;
mod tls;

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::name::Name;

/// Whoever has begun to speak finishes within this time. A whole hello or head is one or two segments.
const FINISH: Duration = Duration::from_secs(5);
/// Longest beginning that is looked at; beyond it there is no name.
const MAX_BYTES: usize = 32 * 1024;
/// Pieces in which it may come: each is read from the beginning again.
const MAX_PIECES: usize = 1_024;
/// Room for most hellos and heads.
const FIRST: usize = 4 * 1024;

/// What was said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing, or something that is neither: an unknown protocol.
    Unknown,
    /// The connection ended before it was clear.
    Gone,
    /// The beginning of TLS.
    Tls(Option<Name>),
    /// An HTTP/1 request.
    Http(Option<Name>),
}

/// Reads a connection's beginning into `start`: waits `patience` for the first byte.
pub(crate) async fn listen(guest: &TcpStream, start: &mut Vec<u8>, patience: Duration) -> Said {
    let mut until = Instant::now() + patience;
    for _ in 0..MAX_PIECES {
        match timeout_at(until, more(guest, start)).await {
            Ok(Ok(0) | Err(_)) => return if start.is_empty() { Said::Gone } else { Said::Unknown },
            Ok(Ok(read)) if read == start.len() => until = Instant::now() + FINISH,
            Ok(Ok(_)) => {}
            Err(_) => return Said::Unknown,
        }
        match said(start) {
            Some(said) => return said,
            None if start.len() >= MAX_BYTES => return Said::Unknown,
            None => {}
        }
    }
    Said::Unknown
}

async fn more(guest: &TcpStream, start: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        guest.readable().await?;
        start.reserve(FIRST);
        match guest.try_read_buf(start) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// `None` while it is not clear yet.
fn said(bytes: &[u8]) -> Option<Said> {
    if bytes.first() == Some(&tls::HANDSHAKE) {
        return match tls::read(bytes) {
            tls::Hello::More => None,
            tls::Hello::Whole(name) => Some(Said::Tls(name)),
        };
    }
    if !http::plausible(bytes) {
        return Some(Said::Unknown);
    }
    match http::read(bytes) {
        http::Head::More => None,
        http::Head::None => Some(Said::Unknown),
        http::Head::Whole(name) => Some(Said::Http(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_protocols_apart() {
        assert_eq!(said(b"SSH-2.0-OpenSSH\r\n"), Some(Said::Unknown));
        assert_eq!(said(b"\0\0\0"), Some(Said::Unknown));
        assert_eq!(said(b"GE"), None);
        assert_eq!(said(b"GET / HTTP/1.1\r\nHost: a.b\r\n\r\n"), Some(Said::Http(Name::parse(b"a.b"))));
        let hello = tls::tests::records(&tls::tests::hello(&[b"a.b"]), 4096);
        assert_eq!(said(&hello), Some(Said::Tls(Name::parse(b"a.b"))));
        assert_eq!(said(&hello[..20]), None);
    }
}
