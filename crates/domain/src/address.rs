//! Addresses that are not on the public internet: the server never lets a sandbox, or whoever names an image, lead it there
//! unless an operator permits it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::Cidr;

/// Private, local and special networks (`spec/semantics.md` §7.2), and the endpoints by which clouds talk to their own
/// machines. An operator may open parts of them.
pub const INTERNAL_NETWORKS: &[&str] = &[
    "10.0.0.0/8",
    // Carrier-grade NAT: links of sandboxes, overlay networks, one cloud's metadata.
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    // Protocol assignments; another cloud's metadata is among them.
    "192.0.0.0/24",
    "192.168.0.0/16",
    // A cloud's endpoint for its own machines.
    "168.63.129.16/32",
];
/// What leads to this host itself, to several hosts at once, or nowhere.
pub const NO_NETWORKS: &[&str] = &["0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"];

/// Parses one of the lists above.
#[must_use]
pub fn networks(list: &[&str]) -> Vec<Cidr> {
    list.iter().map(|text| text.parse().expect("the built-in networks are well formed")).collect()
}

/// Whether an address is in none of the networks that the public internet consists of. Addresses of the one family that
/// carry one of the other are judged by what they carry.
#[must_use]
pub fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let within = |list| networks(list).iter().any(|cidr| cidr.contains(address));
            within(INTERNAL_NETWORKS) || within(NO_NETWORKS)
        }
        IpAddr::V6(address) => internal_v6(address),
    }
}

fn internal_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_internal(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    };
    match (a, b) {
        // IPv4 behind a translator: RFC 4291 §2.5.5, RFC 6052.
        (0, 0) if (c, d, e, f) == (0, 0, 0, 0xffff) => carried(g, h),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => carried(g, h),
        // 6to4 (RFC 3056).
        (0x2002, high) => carried(high, c),
        // Teredo, ORCHID and the rest of the special assignments (RFC 6890), and documentation.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => true,
        // The internet is in 2000::/3; elsewhere are loopback, private, link-local and multicast addresses.
        _ => !(0x2000..=0x3fff).contains(&a),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_internet() {
        for inside in [
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "192.168.0.1",
            "172.31.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:a00:1::1",
            "2001::1",
            "2001:db8::1",
        ] {
            assert!(is_internal(inside.parse().unwrap()), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "198.51.100.1",
            "172.32.0.1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
        ] {
            assert!(!is_internal(outside.parse().unwrap()), "{outside}");
        }
    }
}
