//! Heads of previewed requests and answers. Unlike on the data plane everything passes that does not belong to a single
//! connection (RFC 9110 §7.6.1): the guest is a web server and the visitor its browser.

use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::carrier;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What servers take for the visitor's address or name besides `Forwarded`; only we know it.
const FORWARDED_PREFIX: &str = "x-forwarded-";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const ONE_CONNECTION: [HeaderName; 9] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HTTP2_SETTINGS,
];

/// What the guest is told of the connection the visitor came over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) peer: IpAddr,
    /// `Host`, as the visitor wrote it.
    pub(super) host: &'a HeaderValue,
    pub(super) encrypted: bool,
}

/// The head for the guest. The length is left out: it is what will be counted, not what was claimed.
pub(super) fn to_guest(visitor: &HeaderMap, origin: Origin<'_>, websocket: bool) -> HeaderMap {
    let trailers = has_token(visitor, &header::TE, "trailers");
    let mut head = visitor.clone();
    end_to_end(&mut head);
    carrier::strip(&mut head);
    head.remove(header::CONTENT_LENGTH);
    head.remove(header::FORWARDED);
    head.remove(REAL_IP);
    let claimed: Vec<HeaderName> =
        head.keys().filter(|name| name.as_str().starts_with(FORWARDED_PREFIX)).cloned().collect();
    claimed.into_iter().for_each(|name| drop(head.remove(name)));
    head.insert(header::HOST, origin.host.clone());
    head.insert(FORWARDED_HOST, origin.host.clone());
    head.insert(FORWARDED_PROTO, HeaderValue::from_static(if origin.encrypted { "https" } else { "http" }));
    if let Ok(peer) = HeaderValue::from_str(&origin.peer.to_canonical().to_string()) {
        head.insert(FORWARDED_FOR, peer);
    }
    if trailers {
        head.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // A connection serves one request: the guest need not wait for another one.
    head.insert(header::CONNECTION, HeaderValue::from_static(if websocket { "Upgrade" } else { "close" }));
    if websocket {
        head.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    head
}

/// The head for the visitor.
pub(super) fn to_visitor(guest: &mut HeaderMap, websocket: bool) {
    end_to_end(guest);
    if websocket {
        guest.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        guest.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}

fn end_to_end(head: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        tokens(head, &header::CONNECTION).filter_map(|name| name.parse().ok()).collect();
    named.iter().chain(&ONE_CONNECTION).for_each(|name| drop(head.remove(name)));
}

pub(super) fn has_token(head: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(head, name).any(|t| t.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(token))
}

fn tokens<'a>(head: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = head.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        let mut head = HeaderMap::new();
        for (name, value) in lines.iter().map(pair) {
            head.append(name, value);
        }
        head
    }

    #[test]
    fn only_what_belongs_to_one_connection_goes() {
        let visitor = head(&[
            ("host", "lies.example"),
            ("connection", "keep-alive, X-Hop"),
            ("connection", "x-forwarded-for"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("proxy-authorization", "p"),
            ("te", "gzip, trailers;q=1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AA"),
            ("content-length", "5"),
            ("forwarded", "for=1"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-prefix", "/x"),
            ("x-real-ip", "6.6.6.6"),
            ("x-superserve-preview-token", "t"),
            ("cookie", "__Host-superserve_preview_token=t; a=1"),
            ("authorization", "Basic eA=="),
            ("x-twice", "1"),
            ("x-twice", "\u{e9}"),
        ]);
        let host = HeaderValue::from_static("3000-x.sandbox.localhost:8443");
        let origin = Origin { peer: "::ffff:10.0.0.1".parse().unwrap(), host: &host, encrypted: true };
        let expected = head(&[
            ("host", "3000-x.sandbox.localhost:8443"),
            ("connection", "close"),
            ("te", "trailers"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-host", "3000-x.sandbox.localhost:8443"),
            ("x-forwarded-proto", "https"),
            ("cookie", "a=1"),
            ("authorization", "Basic eA=="),
            ("x-twice", "1"),
            ("x-twice", "\u{e9}"),
        ]);
        assert_eq!(to_guest(&visitor, origin, false), expected);
        let mut answer = head(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2; Domain=x"),
            ("content-security-policy", "x"),
        ]);
        to_visitor(&mut answer, false);
        let expected =
            head(&[("set-cookie", "a=1"), ("set-cookie", "b=2; Domain=x"), ("content-security-policy", "x")]);
        assert_eq!(answer, expected);
    }
}
