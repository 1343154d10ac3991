//! Whose address a request comes from, for limits only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::extract::ConnectInfo;
use http::request::Parts;

/// The peer; or, when that is a proxy on this machine, whom the proxy names last, which is whom it saw itself.
pub(crate) fn of(parts: &Parts) -> IpAddr {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip().to_canonical());
    let peer = peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    if !peer.is_loopback() {
        return peer;
    }
    let named = parts.headers.get_all("x-forwarded-for").iter().next_back();
    let named = named.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
    named.unwrap_or(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proxy_here_is_believed_and_only_in_what_it_saw() {
        let from = |peer: &str, forwarded: &[&str]| {
            let mut request = http::Request::builder();
            for value in forwarded {
                request = request.header("x-forwarded-for", *value);
            }
            let mut parts = request.body(()).unwrap().into_parts().0;
            parts.extensions.insert(ConnectInfo::<SocketAddr>((peer.parse::<IpAddr>().unwrap(), 1).into()));
            of(&parts).to_string()
        };
        assert_eq!(from("127.0.0.1", &[]), "127.0.0.1");
        assert_eq!(from("::ffff:127.0.0.1", &["198.51.100.1, 198.51.100.2"]), "198.51.100.2");
        assert_eq!(from("127.0.0.1", &["198.51.100.1", "198.51.100.3"]), "198.51.100.3");
        assert_eq!(from("127.0.0.1", &["unknown"]), "127.0.0.1");
        assert_eq!(from("198.51.100.9", &["198.51.100.1"]), "198.51.100.9");
    }
}
