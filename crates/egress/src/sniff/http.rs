//! The host in the head of an HTTP/1 request. Whatever two servers could read in two ways has none.

use crate::name::{Name, is_address};

/// More headers than any client sends in one request.
const MAX_HEADERS: usize = 100;

/// What the bytes so far say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// The head goes on.
    More,
    /// It is no HTTP/1.
    None,
    /// It is whole.
    Whole(Option<Name>),
}

/// Whether a request may begin like this.
pub(super) fn plausible(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .take(20)
        .take_while(|b| **b != b' ')
        .all(|b| b.is_ascii_uppercase() || *b == b'-' || *b == b'_')
}

/// Reads the first bytes of a connection.
pub(super) fn read(bytes: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => Head::More,
        Err(_) => Head::None,
        Ok(httparse::Status::Complete(_)) => {
            let hosts =
                request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("host")).map(|h| h.value);
            Head::Whole(host(request.method.unwrap_or_default(), request.path.unwrap_or_default(), hosts))
        }
    }
}

/// The one host a request is for. The target counts before the header (RFC 9112 §3.2.2) but must not contradict it.
pub(crate) fn host<'a>(method: &str, target: &str, hosts: impl Iterator<Item = &'a [u8]>) -> Option<Name> {
    let hosts: Vec<&[u8]> = hosts.take(2).collect();
    let [header] = hosts[..] else { return None };
    let header = Name::of_authority(header);
    if target.starts_with('/') || target == "*" {
        return header;
    }
    let authority = if method == "CONNECT" {
        target
    } else {
        let (_scheme, rest) = target.split_once("://")?;
        rest.split(['/', '?', '#']).next()?
    };
    if is_address(authority.as_bytes()) {
        return None;
    }
    Name::of_authority(authority.as_bytes()).filter(|name| header.as_ref() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(head: &str) -> Option<String> {
        match read(head.as_bytes()) {
            Head::Whole(name) => name.map(|name| name.to_string()),
            other => panic!("{other:?}: {head}"),
        }
    }

    #[test]
    fn finds_the_host() {
        assert_eq!(found("GET / HTTP/1.1\r\nHost: A.example\r\n\r\n").as_deref(), Some("a.example"));
        assert_eq!(
            found("POST /x HTTP/1.1\r\nx: y\r\nhOST:  a.example:80 \r\n\r\nbody").as_deref(),
            Some("a.example")
        );
        assert_eq!(
            found("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n").as_deref(),
            Some("a.example")
        );
        assert_eq!(
            found("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n").as_deref(),
            Some("a.example")
        );
        assert_eq!(found("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n").as_deref(), Some("a.example"));
    }

    #[test]
    fn a_doubtful_host_is_none() {
        for head in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
            "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://a.example@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://198.51.100.9/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT 198.51.100.9:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example%00.b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n",
            "GET a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
        ] {
            assert_eq!(found(head), None, "{head}");
        }
    }

    #[test]
    fn heads_that_are_cut_or_none() {
        let whole = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for cut in 1..whole.len() {
            assert_eq!(read(&whole.as_bytes()[..cut]), Head::More, "{cut}");
        }
        for other in [
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\0\r\n\r\n",
            "GET /\r\n\r\n",
            "\x16\x03",
        ] {
            assert_eq!(read(other.as_bytes()), Head::None, "{other:?}");
        }
        assert!(
            plausible(b"GET / HTTP")
                && plausible(b"G")
                && !plausible(b"SSH-2.0-x y"[4..].as_ref())
                && !plausible(b"\x16\x03")
        );
    }

    proptest::proptest! {
        #[test]
        fn reads_anything_without_a_panic(bytes in proptest::collection::vec(0u8.., 0..400)) {
            let _either = read(&bytes);
        }
    }
}
