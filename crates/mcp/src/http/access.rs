//! Which hosts and browser origins may be used (`spec/mcp.md` §B.5). A page that rebinds its name to a local address sends its
//! own name as `Host` and `Origin`, which is how it is told from a client on this machine.

use std::fmt;

use axum::response::{IntoResponse, Response};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, HOST, ORIGIN, VARY,
};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::refusal::Refusal;

const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
const ALLOWED_HEADERS: &str = "authorization, content-type, accept, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, last-event-id";
/// Headers in a preflight that are looked at; nobody asks for more.
const MAX_ASKED_HEADERS: usize = 64;

/// Who may ask.
#[derive(Debug, Clone, Default)]
pub(super) struct Access {
    /// Bound to a loopback address: the names of this machine are hosts, and its pages are origins.
    pub(super) loopback: bool,
    pub(super) hosts: Vec<Allowed>,
    pub(super) origins: Vec<Origin>,
}

/// `example.com`, with any port, or `example.com:8080`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allowed {
    host: String,
    port: Option<u16>,
}

/// `https://example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Allowed {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
        // A port that is no number must not count as none.
        let port = authority.port_u16();
        if port.is_none() && authority.as_str().len() != authority.host().len() {
            return None;
        }
        Some(Self { host: authority.host().to_ascii_lowercase(), port })
    }

    fn covers(&self, asked: &Self) -> bool {
        self.host == asked.host && (self.port.is_none() || self.port == asked.port)
    }
}

impl Origin {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme: Scheme = scheme.to_ascii_lowercase().parse().ok()?;
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let Allowed { host, port } = Allowed::parse(rest)?;
        Some(Self { scheme, host, port: port.unwrap_or(default) })
    }
}

impl fmt::Display for Origin {
    /// As browsers write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        match (self.scheme.as_str(), self.port) {
            ("http", 80) | ("https", 443) => Ok(()),
            (_, port) => write!(f, ":{port}"),
        }
    }
}

impl Access {
    /// Whether browsers are served at all.
    pub(super) fn cors(&self) -> bool {
        !self.origins.is_empty()
    }

    pub(super) fn check(&self, parts: &Parts) -> Result<(), Refusal> {
        if (self.loopback || !self.hosts.is_empty()) && !self.host_allowed(&parts.uri, &parts.headers) {
            return Err(Refusal::Host);
        }
        if parts.headers.contains_key(ORIGIN) && !self.origin_allowed(&parts.headers) {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    fn host_allowed(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let named: Vec<&str> = match uri.authority() {
            Some(authority) => vec![authority.as_str()],
            None => headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or_default()).collect(),
        };
        let [named] = named[..] else { return false };
        let Some(asked) = Allowed::parse(named) else { return false };
        let local = self.loopback && LOOPBACK_NAMES.contains(&asked.host.as_str());
        local || self.hosts.iter().any(|allowed| allowed.covers(&asked))
    }

    fn origin_allowed(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = origin(headers) else { return false };
        let local = self.loopback && LOOPBACK_NAMES.contains(&origin.host.as_str());
        local || self.origins.contains(&origin)
    }

    /// The answer to a preflight that passed [`Access::check`]; the origin itself is added by [`Access::add_cors`].
    pub(super) fn preflight(&self, headers: &HeaderMap) -> Response {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST"));
        let mut allowed = ALLOWED_HEADERS.to_owned();
        let asked = headers.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
        let asked = asked.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        for name in asked.map(|name| name.trim().to_ascii_lowercase()).take(MAX_ASKED_HEADERS) {
            if name.starts_with("mcp-param-") && http::HeaderName::try_from(name.as_str()).is_ok() {
                allowed.push_str(&format!(", {name}"));
            }
        }
        if let Ok(allowed) = HeaderValue::try_from(allowed) {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        }
        response
    }

    /// Lets the page of an allowed origin read the answer, whatever it is.
    pub(super) fn add_cors(&self, asked: &HeaderMap, answer: &mut HeaderMap) {
        if !self.cors() {
            return;
        }
        answer.append(VARY, HeaderValue::from_static("Origin"));
        if let (Some(value), Some(origin)) = (asked.get(ORIGIN), origin(asked))
            && self.origins.contains(&origin)
        {
            answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, value.clone());
            answer.insert(
                ACCESS_CONTROL_EXPOSE_HEADERS,
                HeaderValue::from_static("www-authenticate, mcp-protocol-version"),
            );
        }
    }
}

fn origin(headers: &HeaderMap) -> Option<Origin> {
    let mut values = headers.get_all(ORIGIN).iter();
    match (values.next(), values.next()) {
        (Some(one), None) => Origin::parse(one.to_str().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(loopback: bool, hosts: &[&str], origins: &[&str]) -> Access {
        Access {
            loopback,
            hosts: hosts.iter().map(|text| Allowed::parse(text).unwrap()).collect(),
            origins: origins.iter().map(|text| Origin::parse(text).unwrap()).collect(),
        }
    }

    fn check(access: &Access, host: &str, origin: Option<&str>) -> Result<(), Refusal> {
        let mut request = http::Request::builder().uri("/mcp").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        access.check(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn hosts() {
        let local = access(true, &[], &[]);
        for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "[::1]"] {
            assert_eq!(check(&local, host, None), Ok(()), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io", "", "a b"]
                .into_iter()
                .chain(["localhost:x", "x@localhost", "::1", "localhost:", "127.0.0.2", "localhost."])
        {
            assert_eq!(check(&local, host, None), Err(Refusal::Host), "{host}");
        }
        let listed = access(false, &["mcp.example.com", "other.example:8443"], &[]);
        for host in ["mcp.example.com", "MCP.example.com:443", "other.example:8443"] {
            assert_eq!(check(&listed, host, None), Ok(()), "{host}");
        }
        for host in ["other.example", "other.example:1", "localhost"] {
            assert_eq!(check(&listed, host, None), Err(Refusal::Host), "{host}");
        }
        assert_eq!(check(&access(false, &[], &[]), "anything", None), Ok(()));
        assert_eq!(check(&access(true, &["proxy.example"], &[]), "proxy.example", None), Ok(()));
        let two = http::Request::builder().header(HOST, "localhost").header(HOST, "evil.example");
        let two = two.body(()).unwrap().into_parts().0;
        assert_eq!(local.check(&two), Err(Refusal::Host));
        let absolute = http::Request::builder().uri("http://evil.example/mcp").header(HOST, "localhost");
        let absolute = absolute.body(()).unwrap().into_parts().0;
        assert_eq!(local.check(&absolute), Err(Refusal::Host));
    }

    #[test]
    fn origins() {
        let local = access(true, &[], &[]);
        for origin in ["http://localhost:6274", "https://127.0.0.1", "http://[::1]:3"] {
            assert_eq!(check(&local, "localhost", Some(origin)), Ok(()), "{origin}");
        }
        for origin in ["null", "", "http://evil.example", "http://localhost.evil.example", "ftp://localhost"]
            .into_iter()
            .chain(["file://", "localhost", "http://x@localhost", "chrome-extension://abc"])
        {
            assert_eq!(check(&local, "localhost", Some(origin)), Err(Refusal::Origin), "{origin}");
        }
        let listed = access(false, &[], &["https://APP.example.com:443"]);
        assert_eq!(listed.origins[0].to_string(), "https://app.example.com");
        assert_eq!(Origin::parse("http://a:8080").unwrap().to_string(), "http://a:8080");
        for origin in ["https://app.example.com", "https://APP.example.com:443"] {
            assert_eq!(check(&listed, "any", Some(origin)), Ok(()), "{origin}");
        }
        for origin in ["http://app.example.com", "https://app.example.com:444", "http://localhost"] {
            assert_eq!(check(&listed, "any", Some(origin)), Err(Refusal::Origin), "{origin}");
        }
    }
}
