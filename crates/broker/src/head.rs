//! Heads of requests and answers between two connections: what names the host, and what belongs to one connection only
//! (RFC 9110 §7.6.1).

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header, response};

use crate::reason::{Reason, Refused};
use crate::tls::Protocol;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// Would hide all further requests from whoever stands in between.
const CLEAR_HTTP2: &str = "h2c";

/// Whether a name or authority means this host, whatever its case, port or final dot.
pub(crate) fn same_host(authority: &str, host: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => authority,
    };
    name.strip_suffix('.').unwrap_or(name).eq_ignore_ascii_case(host)
}

/// Refuses what cannot be passed on, or could be understood in two ways.
pub(crate) fn check(parts: &Parts, protocol: Protocol) -> Result<(), Refused> {
    let refused = |detail: &str| Err(Refused::new(Reason::BuildRequest, detail));
    if parts.method == Method::CONNECT {
        return refused("CONNECT is for proxies");
    }
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let plain = codings.next().is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !plain || codings.next().is_some() {
        return refused("its body has a transfer coding other than chunked");
    }
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    let named = match protocol {
        Protocol::Http1 => hosts == 1,
        Protocol::Http2 => hosts <= 1 && parts.uri.authority().is_some(),
    };
    if !named {
        return refused("it must name one host");
    }
    Ok(())
}

/// Whether everything in a checked head that names a host names this one.
pub(crate) fn names(parts: &Parts, host: &str) -> bool {
    let headers = parts.headers.get_all(header::HOST).iter();
    let mut authorities = headers.map(|value| value.to_str().unwrap_or_default());
    let target = parts.uri.authority().is_none_or(|target| same_host(target.as_str(), host));
    target && authorities.all(|authority| same_host(authority, host))
}

/// Whether a request asks for another protocol on its connection, and is let.
pub(crate) fn wants_upgrade(parts: &Parts, protocol: Protocol) -> bool {
    let asked = parts.headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    protocol == Protocol::Http1
        && asked.is_some_and(|asked| !asked.to_ascii_lowercase().contains(CLEAR_HTTP2))
}

/// Makes a request of the guest's connection one of the service's.
pub(crate) fn forward(parts: &mut Parts, protocol: Protocol, upgrade: bool) -> Option<()> {
    let trailers = parts
        .headers
        .get_all(header::TE)
        .iter()
        .any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let asked = parts.headers.get(header::UPGRADE).filter(|_| upgrade).cloned();
    // Without it, hyper sends no body of a GET at all. It is `chunked`, or the head was refused.
    let chunked = parts.headers.contains_key(header::TRANSFER_ENCODING);
    strip(&mut parts.headers);
    parts.headers.remove(HTTP2_SETTINGS);
    parts.headers.remove(header::TE);
    let mut connection = Vec::new();
    if trailers {
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        connection.push("TE");
    }
    if let Some(asked) = asked {
        parts.headers.insert(header::UPGRADE, asked);
        connection.push("Upgrade");
    }
    match protocol {
        Protocol::Http1 => {
            if chunked {
                parts.headers.remove(header::CONTENT_LENGTH);
                parts.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            if !connection.is_empty() {
                parts.headers.insert(header::CONNECTION, HeaderValue::from_str(&connection.join(", ")).ok()?);
            }
            // An absolute target, which only proxies need, becomes the ordinary one.
            let mut target = http::uri::Parts::default();
            target.path_and_query = parts.uri.path_and_query().cloned();
            parts.uri = Uri::from_parts(target).ok()?;
            parts.version = Version::HTTP_11;
        }
        Protocol::Http2 => {
            parts.headers.remove(header::HOST);
            parts.version = Version::HTTP_2;
        }
    }
    Some(())
}

/// Makes an answer of the service's connection one of the guest's.
pub(crate) fn give_back(parts: &mut response::Parts, protocol: Protocol) {
    let shown = matches!(parts.status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED);
    let upgrade = parts.headers.get(header::UPGRADE).filter(|_| shown).cloned();
    strip(&mut parts.headers);
    if let Some(upgrade) = upgrade {
        parts.headers.insert(header::UPGRADE, upgrade);
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    parts.version = match protocol {
        Protocol::Http1 => Version::HTTP_11,
        Protocol::Http2 => Version::HTTP_2,
    };
}

fn strip(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| !matches!(*name, header::HOST | header::CONTENT_LENGTH | header::TE))
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in [header::CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE]
    {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(build: impl FnOnce(http::request::Builder) -> http::request::Builder) -> Parts {
        build(Request::builder()).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_host_is_named_in_one_way() {
        for same in ["a.example", "A.Example", "a.example.", "a.example:443", "a.example.:8443"] {
            assert!(same_host(same, "a.example"), "{same}");
        }
        for other in [
            "",
            "b.example",
            "xa.example",
            "a.example.evil",
            "u@a.example",
            "a.example:x",
            "a.example:443:1",
            "a.example/",
            "[::1]",
            "a.example, b.example",
        ] {
            assert!(!same_host(other, "a.example"), "{other}");
        }
    }

    #[test]
    fn doubtful_requests_are_refused() {
        let ok = parts(|r| r.uri("/").header("host", "a.example"));
        assert!(check(&ok, Protocol::Http1).is_ok() && names(&ok, "a.example") && !names(&ok, "b.example"));
        let absolute = parts(|r| r.uri("https://b.example/").header("host", "a.example"));
        assert!(!names(&absolute, "a.example") && !names(&absolute, "b.example"));
        let split = parts(|r| r.uri("https://a.example/").header("host", "b.example"));
        assert!(check(&split, Protocol::Http2).is_ok() && !names(&split, "a.example"));
        for bad in [
            parts(|r| r.uri("/")),
            parts(|r| r.uri("/").header("host", "a.example").header("host", "a.example")),
            parts(|r| r.uri("/").header("host", "a.example").header("transfer-encoding", "gzip, chunked")),
            parts(|r| r.uri("/").header("host", "a.example").header("transfer-encoding", "chunked, chunked")),
            parts(|r| r.method("CONNECT").uri("a.example:443").header("host", "a.example")),
        ] {
            assert_eq!(check(&bad, Protocol::Http1).unwrap_err().reason, Reason::BuildRequest, "{bad:?}");
        }
    }

    #[test]
    fn what_belongs_to_one_connection_stays_there() {
        let mut own = parts(|r| {
            r.uri("https://a.example/p?q=1")
                .header("host", "a.example")
                .header("connection", "keep-alive, X-Hop, Host")
                .header("x-hop", "1")
                .header("keep-alive", "timeout=5")
                .header("te", "trailers")
                .header("x-end", "2")
        });
        forward(&mut own, Protocol::Http1, false).unwrap();
        assert_eq!(own.uri, "/p?q=1");
        let left: Vec<_> = own.headers.keys().map(HeaderName::as_str).collect();
        for gone in ["x-hop", "keep-alive"] {
            assert!(!left.contains(&gone), "{left:?}");
        }
        assert_eq!(own.headers[header::CONNECTION], "TE");
        assert!(left.contains(&"host") && left.contains(&"x-end") && left.contains(&"te"));

        let socket = parts(|r| r.uri("/").header("upgrade", "websocket").header("connection", "Upgrade"));
        assert!(wants_upgrade(&socket, Protocol::Http1) && !wants_upgrade(&socket, Protocol::Http2));
        let mut clear =
            parts(|r| r.uri("/").header("upgrade", "h2c").header("connection", "Upgrade, HTTP2-Settings"));
        assert!(!wants_upgrade(&clear, Protocol::Http1));
        forward(&mut clear, Protocol::Http1, false).unwrap();
        assert!(clear.headers.is_empty(), "{:?}", clear.headers);
    }
}
