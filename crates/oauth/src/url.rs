//! The URL under which the operator says that the server is reached. It is the issuer, and with `/mcp` the audience of every
//! token; never taken from a request.

use std::net::Ipv4Addr;

use http::uri::Authority;

pub(crate) const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// An origin: `https://mcp.example.com`, or `http://127.0.0.1:8080` on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl {
    origin: String,
    host: String,
    https: bool,
}

/// Not such a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an https origin without a path (http only for this machine)")]
pub struct BadUrl;

impl PublicUrl {
    /// Reads and normalises one.
    ///
    /// # Errors
    /// [`BadUrl`] for anything with a path, a query or a user, and for plain http beyond this machine.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let (scheme, rest) = text.split_once("://").ok_or(BadUrl)?;
        let (https, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "https" => (true, ":443"),
            "http" => (false, ":80"),
            _ => return Err(BadUrl),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
        let host = authority(&rest).ok_or(BadUrl)?;
        if !https && !LOOPBACK_NAMES.contains(&host.as_str()) {
            return Err(BadUrl);
        }
        let rest = rest.strip_suffix(default_port).unwrap_or(&rest);
        Ok(Self { origin: format!("{}://{rest}", if https { "https" } else { "http" }), host, https })
    }

    /// Scheme, host, and the port unless it is the usual one.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The host without a port.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether browsers reach it through TLS.
    #[must_use]
    pub fn https(&self) -> bool {
        self.https
    }
}

/// The host of `host[:port]`, if it is nothing else.
pub(crate) fn authority(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
    let host = authority.host();
    let plain = host.starts_with('[') || is_name(host);
    // A port that is no number must not count as none.
    let ports = authority.port_u16().is_some() || authority.as_str().len() == host.len();
    (plain && ports && !host.is_empty()).then(|| host.to_owned())
}

/// A name, or an address in its usual form: browsers read all that ends in a number as an address.
fn is_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().next().is_some_and(|b| b.is_ascii_digit());
    host.split('.').all(label) && (!number || host.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_only() {
        let check = |text: &str, origin: &str| assert_eq!(PublicUrl::parse(text).unwrap().origin(), origin);
        check("https://MCP.example.com/", "https://mcp.example.com");
        check("HTTPS://mcp.example.com:443", "https://mcp.example.com");
        check("https://mcp.example.com:8443", "https://mcp.example.com:8443");
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080");
        check("http://[::1]:80", "http://[::1]");
        check("http://localhost:1", "http://localhost:1");
        for bad in ["", "mcp.example.com", "http://mcp.example.com", "https://", "https://a/b", "https://a//"]
            .into_iter()
            .chain([
                "https://u@a",
                "https://a?b",
                "https://a#b",
                "ftp://a",
                "https://a:x",
                "https://a:",
                "https://ä",
            ])
            .chain([
                "http://127.0.0.1.evil.example",
                "https://a b",
                "https://*.a",
                "https://a\"b",
                "https://a;b",
            ])
        {
            assert_eq!(PublicUrl::parse(bad), Err(BadUrl), "{bad}");
        }
    }
}
