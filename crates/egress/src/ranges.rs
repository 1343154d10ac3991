//! Where no rule leads: networks that are never reached from a sandbox, whatever name leads there.

use std::net::Ipv4Addr;

use domain::{Cidr, INTERNAL_NETWORKS, MatchRule, NO_NETWORKS, networks};

/// What of [`INTERNAL_NETWORKS`] the operator opens, what he closes, and [`NO_NETWORKS`], which nobody opens.
#[derive(Debug)]
pub(crate) struct Blocked {
    never: Vec<Cidr>,
    listed: Vec<Cidr>,
    permitted: Vec<Cidr>,
    internal: Vec<Cidr>,
}

impl Blocked {
    /// `links` is the network that sandboxes' own links are in.
    pub(crate) fn new(links: Cidr, listed: Vec<Cidr>, permitted: Vec<Cidr>) -> Self {
        let mut never = networks(NO_NETWORKS);
        never.push(links);
        Self { never, listed, permitted, internal: networks(INTERNAL_NETWORKS) }
    }

    /// Why an address cannot be reached; `None` when the sandbox's own rules decide.
    pub(crate) fn why(&self, address: Ipv4Addr) -> Option<MatchRule> {
        let within = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(address));
        if within(&self.never) {
            Some(MatchRule::InternalIp)
        } else if within(&self.listed) {
            Some(MatchRule::Blocklist)
        } else if within(&self.permitted) || !within(&self.internal) {
            None
        } else {
            Some(MatchRule::InternalIp)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(listed: &[&str], permitted: &[&str]) -> Blocked {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Blocked::new("100.96.0.0/16".parse().unwrap(), parse(listed), parse(permitted))
    }

    #[test]
    fn internal_networks_are_closed_to_their_edges() {
        let blocked = blocked(&[], &[]);
        let edges = [
            ("10.0.0.0", "10.255.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("0.0.0.0", "0.255.255.255"),
            ("224.0.0.0", "255.255.255.255"),
            ("168.63.129.16", "168.63.129.16"),
            ("192.0.0.0", "192.0.0.255"),
        ];
        for (first, last) in edges {
            let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().unwrap(), last.parse().unwrap());
            for inside in [first, last] {
                assert_eq!(blocked.why(inside), Some(MatchRule::InternalIp), "{inside}");
            }
            for outside in
                [u32::from(first).checked_sub(1), u32::from(last).checked_add(1)].into_iter().flatten()
            {
                let outside = Ipv4Addr::from(outside);
                assert_eq!(blocked.why(outside), None, "{outside}");
            }
        }
        for open in ["1.1.1.1", "8.8.8.8", "198.51.100.1", "198.18.0.1", "126.255.255.255", "223.255.255.255"]
        {
            assert_eq!(blocked.why(open.parse().unwrap()), None, "{open}");
        }
    }

    #[test]
    fn operators_close_and_open() {
        let blocked =
            blocked(&["198.51.100.0/24", "10.1.2.0/24"], &["10.1.0.0/16", "127.0.0.0/8", "100.96.0.0/16"]);
        for (address, why) in [
            ("198.51.100.9", Some(MatchRule::Blocklist)),
            ("10.1.1.1", None),
            // A closed part of what was opened stays closed.
            ("10.1.2.3", Some(MatchRule::Blocklist)),
            ("10.2.0.1", Some(MatchRule::InternalIp)),
            // Loopback and links cannot be opened.
            ("127.0.0.1", Some(MatchRule::InternalIp)),
            ("100.96.0.1", Some(MatchRule::InternalIp)),
        ] {
            assert_eq!(blocked.why(address.parse().unwrap()), why, "{address}");
        }
    }
}
