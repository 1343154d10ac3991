//! Host names as a guest writes them: only what is a name in every part of the system is one here.

use std::fmt;
use std::net::Ipv4Addr;

/// Longest name the DNS can carry.
const MAX_NAME: usize = 253;
/// Longest part of one.
const MAX_LABEL: usize = 63;

/// A well-formed host name in lower case, without a final dot. An address is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name(Box<str>);

impl Name {
    /// Reads a name; `None` for whatever two programs could read in two ways: NUL, control and percent characters, user
    /// information, characters beyond ASCII, labels that are empty or too long.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_suffix('.').unwrap_or(text);
        let label_ok = |label: &str| {
            !label.is_empty()
                && label.len() <= MAX_LABEL
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // `127.1` and `0x7f.1` are addresses to some programs.
        let last = text.rsplit('.').next()?;
        let numeric =
            last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
        (text.len() <= MAX_NAME && !numeric && text.split('.').all(label_ok))
            .then(|| Self(text.to_ascii_lowercase().into()))
    }

    /// The name of an authority such as `example.com:8080`; `None` for addresses and for whatever is no name.
    pub(crate) fn of_authority(authority: &[u8]) -> Option<Self> {
        let host = match authority.iter().position(|b| *b == b':') {
            None => authority,
            Some(colon) => {
                let port = &authority[colon + 1..];
                let digits = port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
                if !digits {
                    return None;
                }
                &authority[..colon]
            }
        };
        Self::parse(host)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether an authority is an IPv4 address, which opens nothing and names nothing.
pub(crate) fn is_address(authority: &[u8]) -> bool {
    std::str::from_utf8(authority)
        .is_ok_and(|text| text.split(':').next().is_some_and(|host| host.parse::<Ipv4Addr>().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        Name::of_authority(text.as_bytes()).map(|name| name.to_string())
    }

    #[test]
    fn names_are_read_in_one_way() {
        for good in ["example.com", "EXAMPLE.com", "example.com.", "example.com:80", "Example.Com.:8080"] {
            assert_eq!(name(good).as_deref(), Some("example.com"), "{good}");
        }
        assert_eq!(name("xn--bcher-kva.example").as_deref(), Some("xn--bcher-kva.example"));
        assert_eq!(name("a_b.example").as_deref(), Some("a_b.example"));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_name() {
        let long = format!("{}.example.com", "a".repeat(64));
        let longer = format!("{}example.com", "a.".repeat(130));
        for bad in [
            "",
            ".",
            "..",
            "example..com",
            ".example.com",
            "example.com..",
            "example.com\0",
            "example.com%00.evil.example",
            "example.com\r\n",
            "example.com\r\nHost: evil.example",
            "user@example.com",
            "example.com@evil.example",
            "example.com/x",
            "example.com:80:80",
            "example.com:http",
            "bücher.example",
            "example.com:999999",
            "-a.example",
            "exa mple.com",
            "[::1]",
            "::1",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0x1",
            "*.example.com",
            &long,
            &longer,
        ] {
            assert_eq!(name(bad), None, "{bad:?}");
        }
        assert_eq!(Name::parse(b"example.com\xff"), None);
    }

    #[test]
    fn addresses_are_recognised() {
        assert!(is_address(b"198.51.100.1") && is_address(b"198.51.100.1:80"));
        assert!(!is_address(b"example.com") && !is_address(b"198.51.100.1.example"));
    }
}
