//! Egress rules as a caller writes them and as they read back (`spec/semantics.md` §7). Evaluation lives in the
//! gateway; here is only what a rule may say.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::limits::MAX_EGRESS_ENTRIES;
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

/// What a sandbox may reach: allow wins, then deny, else allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressRules {
    /// Networks that are always permitted.
    pub allow_cidrs: Vec<Cidr>,
    /// Names that are always permitted.
    pub allow_domains: Vec<DomainPattern>,
    /// Networks that are refused unless an allow entry matches.
    pub deny_cidrs: Vec<Cidr>,
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
        self.allow_cidrs.is_empty() && self.allow_domains.is_empty() && self.deny_cidrs.is_empty()
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
