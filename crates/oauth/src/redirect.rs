//! Redirect URIs: which may be registered, which of them a request means, and how an answer is attached to one. A registered
//! URI is compared as text; on the user's own machine the port may differ (RFC 8252 §7.3).

use crate::url::{LOOPBACK_NAMES, authority};

/// Longest URI; the longest known is a quarter of it.
pub(crate) const MAX_BYTES: usize = 1024;
/// Private schemes of MCP clients. Others must contain a dot, as RFC 8252 §7.1 wants it: short ones belong to programs of
/// the system, which must not be started from here.
const KNOWN_SCHEMES: [&str; 7] =
    ["cursor", "vscode", "vscode-insiders", "vscodium", "windsurf", "zed", "claude"];

/// A URI that may be redirected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RedirectUri<'a> {
    text: &'a str,
    scheme: &'a str,
    authority: &'a str,
    /// Path and query, with what separates them from the authority.
    rest: &'a str,
    place: Place,
}

/// Where a redirect leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A web site.
    Site,
    /// A program on the user's machine that listens on a port.
    Loopback,
    /// A program on the user's device that has a scheme of its own.
    Program,
}

impl<'a> RedirectUri<'a> {
    /// `None` for what may not be redirected to.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_graphic() && !b"\"'<>\\^`{|}#;,".contains(&b);
        if text.len() > MAX_BYTES || !text.bytes().all(plain) {
            return None;
        }
        let (scheme, after) = text.split_once("://")?;
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let (named, rest) = after.split_at(end);
        let place = match scheme {
            "https" => authority(named).map(|_| Place::Site)?,
            "http" => authority(named)
                .filter(|host| LOOPBACK_NAMES.contains(&host.as_str()))
                .map(|_| Place::Loopback)?,
            _ => {
                let first = scheme.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
                let all = scheme
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b));
                let known = KNOWN_SCHEMES.contains(&scheme) || scheme.trim_matches('.').contains('.');
                (first && all && known && !named.contains('@')).then_some(Place::Program)?
            }
        };
        Some(Self { text, scheme, authority: named, rest, place })
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// What people are shown.
    pub(crate) fn shown(&self) -> String {
        match self.place {
            Place::Site => self.authority.to_owned(),
            Place::Loopback | Place::Program => format!("{}://{}", self.scheme, self.authority),
        }
    }

    /// Whether this is the registered URI.
    pub(crate) fn is(&self, registered: &str) -> bool {
        if self.text == registered {
            return true;
        }
        let Some(registered) = RedirectUri::parse(registered) else { return false };
        let local = self.place == Place::Loopback && registered.place == Place::Loopback;
        local && authority(self.authority) == authority(registered.authority) && self.rest == registered.rest
    }

    /// The URI with these parameters added.
    pub(crate) fn with(&self, parameters: &[(&str, &str)]) -> String {
        let mut text = self.text.to_owned();
        text.push(if self.rest.contains('?') { '&' } else { '?' });
        text.push_str(&form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_registered() {
        for good in [
            "https://claude.ai/api/mcp/auth_callback",
            "https://chatgpt.com/connector_platform_oauth_redirect",
            "https://vscode.dev/redirect?x=1",
            "http://127.0.0.1:33418/",
            "http://localhost:6274/oauth/callback",
            "http://[::1]:1/cb",
            "http://127.0.0.1",
            "cursor://anysphere.cursor-mcp/oauth/callback",
            "com.example.app://cb",
            "com.example.app:///cb",
        ] {
            assert!(RedirectUri::parse(good).is_some(), "{good}");
        }
        let long = format!("https://a.example/{}", "x".repeat(MAX_BYTES));
        for bad in [
            "",
            "claude.ai",
            "//claude.ai",
            "http://claude.ai/cb",
            "http://127.0.0.1.evil.example/",
            "http://localhost@evil.example/",
            "https://user@a.example/",
            "https:///cb",
            "https://a.example/#x",
            "https://a.example/\"><script>",
            "https://a.example/ b",
            "https://a.example/\r\nx",
            "https://a.example\\@b.example/",
            "https://a.example;script-src/",
            "https://ä.example/",
            "javascript://a.example/%0aalert(1)",
            "data://x",
            "file:///etc/passwd",
            "ms-msdt://x",
            "search-ms://x",
            "blob:https://a.example/1",
            "HTTPS://a.example/",
            ".x://y",
            "1.a://b",
            "com.example.app:/cb",
            &long,
        ] {
            assert_eq!(RedirectUri::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_port_of_ones_own_machine_may_differ() {
        let is =
            |asked: &str, registered: &str| RedirectUri::parse(asked).is_some_and(|uri| uri.is(registered));
        assert!(is("https://a.example/cb", "https://a.example/cb"));
        assert!(is("http://127.0.0.1:2/cb", "http://127.0.0.1:1/cb"));
        assert!(is("http://127.0.0.1:2/cb?a=1", "http://127.0.0.1/cb?a=1"));
        for (asked, registered) in [
            ("https://a.example/cb/", "https://a.example/cb"),
            ("https://a.example/cb?x", "https://a.example/cb"),
            ("https://a.example/CB", "https://a.example/cb"),
            ("https://a.example:444/cb", "https://a.example/cb"),
            ("https://a.example.evil.example/cb", "https://a.example/cb"),
            ("http://127.0.0.1:2/cb/x", "http://127.0.0.1:1/cb"),
            ("http://127.0.0.1:2/cb?x", "http://127.0.0.1:1/cb"),
            ("http://localhost:2/cb", "http://127.0.0.1:1/cb"),
            ("https://127.0.0.1:2/cb", "http://127.0.0.1:1/cb"),
            ("https://localhost:2/cb", "https://localhost:1/cb"),
            ("http://127.0.0.1:2", "http://127.0.0.1:1/"),
            ("cursor://a/cb", "cursor://b/cb"),
        ] {
            assert!(!is(asked, registered), "{asked} is not {registered}");
        }
    }

    #[test]
    fn answers_are_added() {
        let with = |text: &str| RedirectUri::parse(text).unwrap().with(&[("state", "a&b=c\r\n")]);
        assert_eq!(with("https://a.example/cb"), "https://a.example/cb?state=a%26b%3Dc%0D%0A");
        assert_eq!(with("https://a.example/cb?x=1"), "https://a.example/cb?x=1&state=a%26b%3Dc%0D%0A");
    }

    proptest::proptest! {
        /// Whatever is accepted means the same to browsers, which read URLs by other rules, and breaks out of nothing.
        #[test]
        fn browsers_go_where_this_says(
            scheme in "https|http|cursor|a\\.b|javascript|HTTPS",
            rest in "(localhost|127\\.0\\.0\\.1|\\[::1\\]|a\\.example|[a.@:%/\\\\?#\\[\\]0-9xA _;*~\t-]{0,6}){1,3}[/?a:@%.]{0,8}",
        ) {
            let text = format!("{scheme}://{rest}");
            if let Some(uri) = RedirectUri::parse(&text) {
                let answer = uri.with(&[("state", "\r\n \"'<>")]);
                proptest::prop_assert!(answer.bytes().all(|b| b.is_ascii_graphic()), "{}", answer);
                proptest::prop_assert!(uri.is(&text));
                let seen = url::Url::parse(&answer);
                if uri.place() != Place::Program {
                    let seen = seen.map_err(|error| proptest::test_runner::TestCaseError::fail(error.to_string()))?;
                    proptest::prop_assert_eq!(seen.scheme(), uri.scheme);
                    let host = seen.host_str().unwrap_or_default().to_owned();
                    proptest::prop_assert_eq!(host, authority(uri.authority).unwrap_or_default().to_ascii_lowercase());
                    proptest::prop_assert!(seen.username().is_empty() && seen.password().is_none());
                    proptest::prop_assert_eq!(seen.fragment(), None);
                }
            }
        }
    }
}
