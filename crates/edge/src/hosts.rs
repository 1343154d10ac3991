//! Which names this edge answers to, and what a `Host` means (`spec/data-plane.md` §1.2). Pure: names in, target out. The
//! text of a host comes from the client and is never echoed.

use std::net::IpAddr;
use std::sync::Arc;

use domain::{CONTROL_PORT, PreviewPort, SandboxId};

/// A DNS name has at most 253 characters; leave room for a port.
const MAX_HOST_LEN: usize = 260;
/// Longest sandbox id in a label (§1.2).
const MAX_ID_LEN: usize = 64;
/// The shared hosts that official clients derive, and one name that every browser resolves to this machine.
pub const DEFAULT_HOSTS: [&str; 4] = [
    "sandbox.superserve.ai",
    "usw-sandbox.superserve.ai",
    "staging-sandbox.superserve.ai",
    "sandbox.localhost",
];

/// The text is not a host name that can carry sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a sandbox host: a DNS name of at least two labels is expected, e.g. sandbox.example.com"
)]
pub struct BadHostName(pub String);

/// The configured sandbox hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(Arc<[String]>);

/// What a request is addressed to. `None` for an id that is well formed but cannot belong to any sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The shared host; a header names the sandbox.
    Shared,
    /// The data plane of one sandbox.
    Sandbox(Option<SandboxId>),
    /// A port inside a sandbox.
    Preview(PreviewPort, Option<SandboxId>),
}

/// Why a host is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadHost {
    /// Not one of ours.
    Unknown,
    /// One of ours, with a label that means nothing.
    Malformed,
    /// The agent's own port.
    AgentPort,
    /// A port below 1024.
    PrivilegedPort,
}

impl Default for Hosts {
    fn default() -> Self {
        Self(DEFAULT_HOSTS.iter().map(|&h| h.to_owned()).collect())
    }
}

impl Hosts {
    /// Checks and normalises a list of host names.
    ///
    /// # Errors
    /// The first name that cannot be used.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, BadHostName> {
        let mut hosts = Vec::new();
        for name in names {
            let host = name.as_ref().to_ascii_lowercase();
            let bad = || BadHostName(name.as_ref().chars().take(64).collect());
            let label_ok = |label: &str| {
                !label.is_empty()
                    && label.len() <= 63
                    && !label.starts_with('-')
                    && !label.ends_with('-')
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            let ok = host.len() <= 180
                && host.contains('.')
                && host.split('.').all(label_ok)
                && host.parse::<IpAddr>().is_err();
            if !ok {
                return Err(bad());
            }
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        Ok(Self(hosts.into()))
    }

    /// The names, lowercase.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether `host` (no port) is a sandbox host or below one.
    #[must_use]
    pub fn covers(&self, host: &str) -> bool {
        host.len() <= MAX_HOST_LEN && {
            let host = host.to_ascii_lowercase();
            self.iter().any(|own| below(&host, own).is_some())
        }
    }

    /// Reads a `Host` header or the authority of a request target.
    pub(crate) fn parse(&self, authority: &str) -> Result<Target, BadHost> {
        if authority.len() > MAX_HOST_LEN {
            return Err(BadHost::Unknown);
        }
        let host = without_port(authority).to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        // An address or `localhost` names the machine, not a sandbox, so it is the shared host. The header is still
        // needed, and so is the token: a page that rebinds its name to this machine gains nothing.
        if host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Ok(Target::Shared);
        }
        let labels = self.iter().find_map(|own| below(host, own)).or_else(|| below(host, "localhost"));
        match labels {
            None => Err(BadHost::Unknown),
            Some("") => Ok(Target::Shared),
            Some(label) => parse_label(label),
        }
    }
}

/// What stands before `.suffix`; empty when `host` is the suffix itself.
fn below<'a>(host: &'a str, suffix: &str) -> Option<&'a str> {
    let rest = host.strip_suffix(suffix)?;
    if rest.is_empty() { Some("") } else { rest.strip_suffix('.').filter(|label| !label.is_empty()) }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && host != "[" => {
            host
        }
        _ => authority,
    }
}

fn parse_label(label: &str) -> Result<Target, BadHost> {
    let (left, id) = label.split_once('-').ok_or(BadHost::Malformed)?;
    let id_ok = id.len() <= MAX_ID_LEN
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !id_ok {
        return Err(BadHost::Malformed);
    }
    let id = id.parse().ok();
    if left == "boxd" {
        return Ok(Target::Sandbox(id));
    }
    if left.is_empty() || left.starts_with('0') || !left.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadHost::Malformed);
    }
    match left.parse::<u16>().map_err(|_| BadHost::Malformed)? {
        CONTROL_PORT => Err(BadHost::AgentPort),
        port => match PreviewPort::new(port.into()) {
            Ok(port) => Ok(Target::Preview(port, id)),
            Err(_) => Err(BadHost::PrivilegedPort),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b";

    fn check(host: &str, expected: Result<Target, BadHost>) {
        let host = host.replace("ID", ID);
        assert_eq!(Hosts::default().parse(&host), expected, "{host}");
    }

    #[test]
    fn every_form_of_a_host() {
        let id = Some(ID.parse().unwrap());
        let sandbox = Ok(Target::Sandbox(id));
        let preview = |port| Ok(Target::Preview(PreviewPort::new(port).unwrap(), id));
        check("sandbox.superserve.ai", Ok(Target::Shared));
        check("Sandbox.SUPERSERVE.ai:443", Ok(Target::Shared));
        check("usw-sandbox.superserve.ai.", Ok(Target::Shared));
        check("127.0.0.1:8443", Ok(Target::Shared));
        check("[::1]:8443", Ok(Target::Shared));
        check("localhost", Ok(Target::Shared));
        check("boxd-ID.sandbox.superserve.ai", sandbox);
        check("BOXD-ID.sandbox.superserve.ai:8443", sandbox);
        check("boxd-sb-use-ID.sandbox.superserve.ai", sandbox);
        check("boxd-ID.sandbox.localhost:8443", sandbox);
        check("boxd-ID.localhost", sandbox);
        check("boxd-gone.sandbox.superserve.ai", Ok(Target::Sandbox(None)));
        check("3000-ID.staging-sandbox.superserve.ai", preview(3000));
        check("65535-sb-usw-ID.sandbox.localhost", preview(65535));
        check("49983-ID.sandbox.superserve.ai", Err(BadHost::AgentPort));
        check("1023-ID.sandbox.superserve.ai", Err(BadHost::PrivilegedPort));
        for malformed in ["65536", "03000", "+3000", "http", "", "3000a"] {
            check(&format!("{malformed}-ID.sandbox.superserve.ai"), Err(BadHost::Malformed));
        }
        check("ID.sandbox.superserve.ai", Err(BadHost::Malformed));
        check("boxd--x.sandbox.superserve.ai", Err(BadHost::Malformed));
        check("x.boxd-ID.sandbox.superserve.ai", Err(BadHost::Malformed));
        check(&format!("boxd-{}.sandbox.superserve.ai", "a".repeat(65)), Err(BadHost::Malformed));
        for unknown in [
            "sandbox.superserve.ai.evil.com",
            "evilsandbox.superserve.ai",
            "superserve.ai",
            ".sandbox.superserve.ai",
            "sandbox.superserve.ai:x",
            "",
            &"a".repeat(10_000),
        ] {
            check(unknown, Err(BadHost::Unknown));
        }
    }

    #[test]
    fn host_names_are_checked() {
        assert_eq!(Hosts::new(["Box.Example.COM", "box.example.com"]).unwrap().iter().count(), 1);
        for bad in ["", "localhost", "*.example.com", "a..b", "-a.b", "10.0.0.1", "a b.c", "a.b:443"] {
            assert!(Hosts::new([bad]).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_parser(left in "[a-z0-9-]{0,8}", id in ".{0,40}", tail in "(\\.?(sandbox\\.superserve\\.ai|localhost)|.{0,30})(:[0-9]{0,6})?") {
            let host = format!("{left}-{id}{tail}");
            let hosts = Hosts::default();
            match hosts.parse(&host) {
                // A sandbox is found below our own names only, by exactly one label.
                Ok(Target::Sandbox(_) | Target::Preview(..)) => {
                    let bare = without_port(&host);
                    let bare = bare.strip_suffix('.').unwrap_or(bare);
                    let (label, rest) = bare.split_once('.').unwrap();
                    proptest::prop_assert!(rest.eq_ignore_ascii_case("localhost") || hosts.iter().any(|own| rest.eq_ignore_ascii_case(own)), "{host}");
                    proptest::prop_assert!(label.is_ascii());
                }
                Ok(Target::Shared) | Err(_) => {}
            }
        }
    }
}
