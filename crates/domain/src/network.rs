//! Egress rules as a caller writes them, as they read back, and what they say about one destination
//! (`spec/semantics.md` §7). What no rule can open (private addresses, the operator's blocklist) and which name a
//! connection really belongs to is the gateway's business, which asks here last.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::limits::MAX_EGRESS_ENTRIES;
use crate::network_log::MatchRule;
use crate::problem::Problem;

/// Why an entry of an egress list is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    /// The entry is an IPv6 address or network.
    #[error("IPv6 is not supported; use IPv4 addresses, CIDRs or domain names")]
    Ipv6,
    /// The entry is neither address, network nor domain pattern.
    #[error(
        "expected an IPv4 address, an IPv4 CIDR such as 203.0.113.0/24, or a domain such as *.example.com"
    )]
    Malformed,
    /// A domain stands in a list that takes addresses only.
    #[error("domains are not accepted here, only IPv4 addresses and CIDRs")]
    DomainInDeny,
}

/// An IPv4 network; a single address is a `/32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    network: Ipv4Addr,
    prefix: u8,
}

impl Cidr {
    /// Whether the address lies in this network.
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (u32::from(address) & mask(self.prefix)) == u32::from(self.network)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        if text.contains(':')
            && !text.contains("://")
            && text.bytes().all(|b| b.is_ascii_hexdigit() || b":/.".contains(&b))
        {
            return Err(BadRule::Ipv6);
        }
        let (address, prefix) = match text.split_once('/') {
            None => (text, 32),
            Some((address, prefix)) => {
                let digits =
                    !prefix.is_empty() && prefix.len() <= 2 && prefix.bytes().all(|b| b.is_ascii_digit());
                let prefix = digits.then(|| prefix.parse::<u8>().ok()).flatten().filter(|p| *p <= 32);
                (address, prefix.ok_or(BadRule::Malformed)?)
            }
        };
        let address: Ipv4Addr = address.parse().map_err(|_| BadRule::Malformed)?;
        Ok(Self { network: Ipv4Addr::from(u32::from(address) & mask(prefix)), prefix })
    }
}

/// A host name, or `*.` and a host name: any depth below it, not itself. Kept in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainPattern(String);

impl DomainPattern {
    /// Whether the pattern covers this name, whatever its case and with or without a final dot.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).as_bytes();
        match self.0.strip_prefix('*') {
            None => name.eq_ignore_ascii_case(self.0.as_bytes()),
            // The suffix begins with its dot, and something must stand before it.
            Some(suffix) => {
                let before = name.len().checked_sub(suffix.len()).filter(|before| *before > 0);
                before.is_some_and(|before| name[before..].eq_ignore_ascii_case(suffix.as_bytes()))
            }
        }
    }

    /// The pattern as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainPattern {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let host = text.strip_prefix("*.").unwrap_or(text);
        let label_ok = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // A last label of digits only is a malformed address, never a name.
        let top_ok = host.rsplit('.').next().is_some_and(|top| !top.bytes().all(|b| b.is_ascii_digit()));
        if host.len() > 253 || !host.split('.').all(label_ok) || !top_ok {
            return Err(BadRule::Malformed);
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// What the rules say about a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ruling {
    /// Whether it may be reached.
    pub permitted: bool,
    /// Which kind of rule said so.
    pub rule: MatchRule,
}

/// What a sandbox may reach: allow wins, then deny, else allowed. In strict mode nothing but the allow list may be
/// reached, and names that no allowed domain covers do not resolve; resolvers need not be listed then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressRules {
    /// Networks that are always permitted.
    pub allow_cidrs: Vec<Cidr>,
    /// Names that are always permitted.
    pub allow_domains: Vec<DomainPattern>,
    /// Networks that are refused unless an allow entry matches.
    pub deny_cidrs: Vec<Cidr>,
    /// Nothing but the allow list, and no other name resolves.
    pub strict: bool,
}

impl EgressRules {
    /// Parses the two lists of a request.
    ///
    /// # Errors
    /// A `bad_request` problem that names the list, the entry and what is accepted.
    pub fn parse(allow_out: &[String], deny_out: &[String]) -> Result<Self, Problem> {
        let mut rules = Self::default();
        for (field, list) in [("network.allow_out", allow_out), ("network.deny_out", deny_out)] {
            if list.len() > MAX_EGRESS_ENTRIES {
                return Err(Problem::invalid(
                    field,
                    format!("at most {MAX_EGRESS_ENTRIES} entries are accepted"),
                ));
            }
        }
        let shown = |entry: &str| entry.chars().take(80).collect::<String>();
        for entry in allow_out {
            match entry.parse::<Cidr>() {
                Ok(cidr) => rules.allow_cidrs.push(cidr),
                Err(BadRule::Ipv6) => {
                    return Err(Problem::invalid(
                        "network.allow_out",
                        format!("`{}`: {}", shown(entry), BadRule::Ipv6),
                    ));
                }
                Err(_) => match entry.parse::<DomainPattern>() {
                    Ok(domain) => rules.allow_domains.push(domain),
                    Err(why) => {
                        return Err(Problem::invalid(
                            "network.allow_out",
                            format!("`{}`: {why}", shown(entry)),
                        ));
                    }
                },
            }
        }
        for entry in deny_out {
            let cidr = entry.parse::<Cidr>().map_err(|why| {
                let why = if entry.parse::<DomainPattern>().is_ok() { BadRule::DomainInDeny } else { why };
                Problem::invalid("network.deny_out", format!("`{}`: {why}", shown(entry)))
            })?;
            rules.deny_cidrs.push(cidr);
        }
        Ok(rules)
    }

    /// Whether no rule is set at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.strict
            && self.allow_cidrs.is_empty()
            && self.allow_domains.is_empty()
            && self.deny_cidrs.is_empty()
    }

    /// What the rules say about a connection to `to`. `host` is the name it belongs to, and only if the gateway looks
    /// that name up and dials what it finds: a name that is merely claimed opens nothing.
    #[must_use]
    pub fn rule_on(&self, host: Option<&str>, to: Ipv4Addr) -> Ruling {
        if host.is_some_and(|host| self.allows_name(host)) {
            return Ruling { permitted: true, rule: MatchRule::Domain };
        }
        let in_any = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(to));
        if in_any(&self.allow_cidrs) {
            Ruling { permitted: true, rule: MatchRule::Cidr }
        } else if in_any(&self.deny_cidrs) {
            Ruling { permitted: false, rule: MatchRule::Cidr }
        } else if self.strict {
            Ruling { permitted: false, rule: MatchRule::ImplicitDeny }
        } else {
            Ruling { permitted: true, rule: MatchRule::Default }
        }
    }

    /// Whether an allowed domain covers this name.
    #[must_use]
    pub fn allows_name(&self, name: &str) -> bool {
        self.allow_domains.iter().any(|domain| domain.matches(name))
    }

    /// Whether the gateway may look this name up for the sandbox, as far as the name goes; without strict mode the
    /// resolver's address decides like any other.
    #[must_use]
    pub fn resolves(&self, name: &str) -> bool {
        !self.strict || self.allows_name(name)
    }

    /// `allow_out` as it reads back: networks first, then domains.
    #[must_use]
    pub fn allow_out(&self) -> Vec<String> {
        let cidrs = self.allow_cidrs.iter().map(Cidr::to_string);
        cidrs.chain(self.allow_domains.iter().map(DomainPattern::to_string)).collect()
    }

    /// `deny_out` as it reads back.
    #[must_use]
    pub fn deny_out(&self) -> Vec<String> {
        self.deny_cidrs.iter().map(Cidr::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(allow: &[&str], deny: &[&str]) -> Result<EgressRules, Problem> {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        EgressRules::parse(&own(allow), &own(deny))
    }

    #[test]
    fn reads_back_normalised() {
        let rules = parse(&["*.Example.com", "1.1.1.1", "10.2.3.4/8"], &["0.0.0.0/0"]).unwrap();
        assert_eq!(rules.allow_out(), ["1.1.1.1/32", "10.0.0.0/8", "*.example.com"]);
        assert_eq!(rules.deny_out(), ["0.0.0.0/0"]);
        assert!(rules.deny_cidrs[0].contains(Ipv4Addr::new(203, 0, 113, 9)));
        assert!(!rules.allow_cidrs[0].contains(Ipv4Addr::new(1, 1, 1, 2)));
    }

    #[test]
    fn allow_wins_over_deny_and_nothing_else_is_closed() {
        let check = |rules: &EgressRules, host: Option<&str>, to: &str, permitted: bool, rule: MatchRule| {
            let ruling = rules.rule_on(host, to.parse().unwrap());
            assert_eq!(ruling, Ruling { permitted, rule }, "{host:?} {to}");
        };
        let open = EgressRules::default();
        check(&open, Some("a.example"), "198.51.100.1", true, MatchRule::Default);
        let mut rules = parse(&["api.example.com", "*.example.org", "1.1.1.1"], &["0.0.0.0/0"]).unwrap();
        check(&rules, Some("API.example.com."), "198.51.100.1", true, MatchRule::Domain);
        check(&rules, Some("x.api.example.com"), "198.51.100.1", false, MatchRule::Cidr);
        check(&rules, None, "1.1.1.1", true, MatchRule::Cidr);
        check(&rules, None, "1.1.1.2", false, MatchRule::Cidr);
        rules.deny_cidrs = vec!["198.51.100.0/24".parse().unwrap()];
        check(&rules, Some("evil.example"), "203.0.113.1", true, MatchRule::Default);
        check(&rules, Some("evil.example"), "198.51.100.1", false, MatchRule::Cidr);
        assert!(rules.resolves("evil.example"));
        rules.strict = true;
        check(&rules, Some("evil.example"), "203.0.113.1", false, MatchRule::ImplicitDeny);
        check(&rules, Some("a.example.org"), "203.0.113.1", true, MatchRule::Domain);
        assert!(rules.resolves("a.b.example.ORG.") && !rules.resolves("evil.example"));
    }

    #[test]
    fn halves_of_the_internet_are_networks_too() {
        for (text, inside, outside) in [
            ("128.0.0.0/1", "255.255.255.255", "127.255.255.255"),
            ("240.0.0.0/4", "240.0.0.0", "239.255.255.255"),
            ("255.255.255.255/32", "255.255.255.255", "255.255.255.254"),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert!(
                cidr.contains(inside.parse().unwrap()) && !cidr.contains(outside.parse().unwrap()),
                "{text}"
            );
        }
        let all: Cidr = "9.9.9.9/0".parse().unwrap();
        assert_eq!(all.to_string(), "0.0.0.0/0");
        assert!(all.contains(Ipv4Addr::UNSPECIFIED) && all.contains(Ipv4Addr::BROADCAST));
    }

    #[test]
    fn a_star_is_any_depth_below_and_not_the_name_itself() {
        let check = |pattern: &str, name: &str, expected: bool| {
            let pattern: DomainPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), expected, "{pattern} {name}");
        };
        check("example.com", "Example.COM", true);
        check("example.com", "example.com.", true);
        check("example.com", "example.com..", false);
        check("example.com", "a.example.com", false);
        check("example.com", "example.com\0", false);
        check("*.example.com", "a.example.com", true);
        check("*.example.com", "A.b.EXAMPLE.com.", true);
        check("*.example.com", "example.com", false);
        check("*.example.com", ".example.com", false);
        check("*.example.com", "notexample.com", false);
        check("*.example.com", "example.com.evil.test", false);
        check("*.example.com", "", false);
    }

    #[test]
    fn refuses_what_is_no_rule() {
        for bad in [
            "",
            "*",
            "*.",
            "http://a.b",
            "a.b:80",
            "::1",
            "2001:db8::/32",
            "1.2.3.4/33",
            "1.2.3",
            "a b",
            "-a.b",
        ] {
            assert!(parse(&[bad], &[]).is_err(), "{bad}");
            assert!(parse(&[], &[bad]).is_err(), "{bad}");
        }
        let refused = parse(&[], &["example.com"]).unwrap_err();
        assert!(refused.to_string().contains("domains are not accepted"), "{refused}");
        let refused = parse(&["2001:db8::1"], &[]).unwrap_err();
        assert!(refused.to_string().contains("IPv6 is not supported"), "{refused}");
    }
}
