//! Which headers pass between client and guest. Both ways it is a list of what is allowed: a token, cookie or proxy
//! credential never reaches a guest, and a guest cannot set cookies or policy on the hosts of the edge.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Version};

/// Longest accepted token. Ours are far shorter.
const MAX_TOKEN_LEN: usize = 512;
/// Subprotocol entry that carries the token (`spec/data-plane.md` §2).
const TOKEN_ENTRY: &str = "token.";
/// Subprotocol entry that carries a routing hint.
const HINT_ENTRY: &str = "route.";

/// Without `Content-Length`: the length is what was counted, not what was claimed.
const REQUEST: [HeaderName; 12] = [
    header::ACCEPT,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::IF_UNMODIFIED_SINCE,
    header::RANGE,
    header::USER_AGENT,
    HeaderName::from_static("connect-protocol-version"),
    HeaderName::from_static("connect-timeout-ms"),
];

const RESPONSE: [HeaderName; 12] = [
    header::ACCEPT_RANGES,
    header::ALLOW,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::RETRY_AFTER,
    HeaderName::from_static("x-accel-buffering"),
    HeaderName::from_static(wire::data_plane::SESSION_ID_HEADER),
];

/// How a request shows its token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Not at all.
    Missing,
    /// In a form that cannot be right.
    Malformed,
    /// As this text; still to be checked.
    Given(&'a str),
}

/// Finds the token: in its header, or for WebSockets among the subprotocols.
pub(crate) fn token<'a>(headers: &'a HeaderMap, websocket: bool) -> Token<'a> {
    let mut values = headers.get_all(wire::data_plane::ACCESS_TOKEN_HEADER).iter();
    if let Some(value) = values.next() {
        return match value.to_str() {
            Ok("") => Token::Missing,
            Ok(token) if token.len() <= MAX_TOKEN_LEN && values.next().is_none() => Token::Given(token),
            _ => Token::Malformed,
        };
    }
    let entry = |value: &'a HeaderValue| protocols(value).find_map(|p| p.strip_prefix(TOKEN_ENTRY));
    let found =
        websocket.then(|| headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().find_map(entry)).flatten();
    match found {
        None => Token::Missing,
        Some(token) if token.is_empty() || token.len() > MAX_TOKEN_LEN => Token::Malformed,
        Some(token) => Token::Given(token),
    }
}

/// Whether the client asks for a WebSocket.
pub(crate) fn is_websocket(method: &Method, version: Version, headers: &HeaderMap) -> bool {
    method == Method::GET
        && version == Version::HTTP_11
        && has_token(headers, &header::UPGRADE, "websocket")
        && has_token(headers, &header::CONNECTION, "upgrade")
}

/// What the guest gets to see of a request.
pub(crate) fn to_guest(client: &HeaderMap, websocket: bool) -> HeaderMap {
    let mut guest = pick(client, &REQUEST);
    // The name of the host says nothing the agent needs; HTTP/1.1 wants one.
    guest.insert(header::HOST, HeaderValue::from_static("sandbox"));
    if websocket {
        guest.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        guest.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        copy(client, &mut guest, &header::SEC_WEBSOCKET_KEY);
        copy(client, &mut guest, &header::SEC_WEBSOCKET_VERSION);
        if let Some(offered) = offered(client) {
            guest.insert(header::SEC_WEBSOCKET_PROTOCOL, offered);
        }
    }
    guest
}

/// What the client gets to see of a guest's response.
pub(crate) fn to_client(guest: &HeaderMap) -> HeaderMap {
    pick(guest, &RESPONSE)
}

/// The head of a guest's 101, or `None` when it selects a subprotocol that was not offered to it.
pub(crate) fn to_client_upgraded(client: &HeaderMap, guest: &HeaderMap) -> Option<HeaderMap> {
    let mut head = HeaderMap::new();
    head.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    head.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    copy(guest, &mut head, &header::SEC_WEBSOCKET_ACCEPT);
    copy(guest, &mut head, &HeaderName::from_static(wire::data_plane::SESSION_ID_HEADER));
    if let Some(selected) = guest.get(header::SEC_WEBSOCKET_PROTOCOL) {
        let offered = offered(client)?;
        protocols(&offered).find(|p| p.as_bytes() == selected.as_bytes())?;
        head.insert(header::SEC_WEBSOCKET_PROTOCOL, selected.clone());
    }
    Some(head)
}

/// The subprotocols without those that are meant for the edge.
fn offered(client: &HeaderMap) -> Option<HeaderValue> {
    let all = client.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    let kept: Vec<&str> = all
        .iter()
        .flat_map(protocols)
        .filter(|p| !p.starts_with(TOKEN_ENTRY) && !p.starts_with(HINT_ENTRY))
        .collect();
    if kept.is_empty() { None } else { HeaderValue::from_str(&kept.join(", ")).ok() }
}

fn protocols(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|p| !p.is_empty())
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().flat_map(protocols).any(|t| t.eq_ignore_ascii_case(token))
}

fn pick(from: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let mut picked = HeaderMap::with_capacity(names.len());
    for name in names {
        copy(from, &mut picked, name);
    }
    picked
}

/// Copies the first value only: none of these headers may come twice.
fn copy(from: &HeaderMap, to: &mut HeaderMap, name: &HeaderName) {
    if let Some(value) = from.get(name) {
        to.insert(name, value.clone());
    }
}
