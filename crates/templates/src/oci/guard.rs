//! Where a registry may lead. An image is named by a client, who must not make this server speak to what only the server
//! reaches: other services of this machine and its network, a cloud's metadata. So whatever is dialled for a registry, for
//! documents, blobs, tokens and redirects alike, is on the public internet, unless the operator has named the registry;
//! such a registry may lead to the other hosts that the operator has named.
//!
//! What is checked is the address that is dialled, after each look-up: a name may lead elsewhere the next time. A proxy of
//! the environment looks names up by itself, and decides by itself.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::Access;
use super::reference::Reference;

/// A place that a registry must not lead to. Its address is not told: whoever asks may only want to learn that.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{host}` is not on the public internet; if it should be used, the operator of this server has to name it: \
     internal_registries"
)]
pub(super) struct Internal {
    host: String,
}

type LookedUp = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
/// How names are looked up.
type LookUp = Arc<dyn Fn(String) -> LookedUp + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub(super) struct Guard {
    /// Hosts, in small letters and without ports, that may be anywhere.
    named: Arc<BTreeSet<String>>,
    /// Of the environment.
    proxy: Option<String>,
    look_up: LookUp,
}

impl Guard {
    /// For everything that has to do with one reference.
    pub(super) fn of(reference: &Reference, access: &Access) -> Self {
        let named = || access.plain_http.iter().chain(&access.mirrors).chain(&access.internal);
        let asked = reference.host();
        // A registry that a client brings along leads to none of the operator's.
        let trusted = named().any(|known| known.eq_ignore_ascii_case(asked));
        let named = named().filter(|_| trusted).map(|host| name_of(host)).collect();
        let uri = reference.url().parse().ok().filter(|_| !reference.is_plain());
        let proxy = uri.and_then(|uri| Matcher::from_system().intercept(&uri));
        let proxy = proxy.and_then(|proxy| proxy.uri().host().map(name_of));
        Self { named: Arc::new(named), proxy, look_up: Arc::new(|host| Box::pin(of_system(host))) }
    }

    /// Checks a place as far as it can be before a look-up.
    pub(super) fn check(&self, url: &Url) -> Result<(), Internal> {
        let Some(host) = url.host_str() else { return Err(Internal { host: url.to_string() }) };
        let host = name_of(host);
        let literal = host.parse().is_ok_and(refused);
        if !self.named.contains(&host) && (literal || self.proxy.as_ref() == Some(&host)) {
            return Err(Internal { host });
        }
        Ok(())
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name_of(name.as_str());
        let named = self.named.contains(&host) || self.proxy.as_ref() == Some(&host);
        let found = (self.look_up)(host.clone());
        Box::pin(async move {
            let mut found = found.await?;
            if !named {
                found.retain(|address| !refused(*address));
                if found.is_empty() {
                    return Err(Internal { host }.into());
                }
            }
            // The port is that of the URL.
            let found: Addrs = Box::new(found.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(found)
        })
    }
}

async fn of_system(host: String) -> io::Result<Vec<IpAddr>> {
    let found: Vec<_> = tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect();
    if found.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(found) }
}

/// The host of `host:port`, or of an address in brackets.
fn name_of(host: &str) -> String {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        // An address without brackets has no port.
        None if host.matches(':').count() > 1 => host,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn refused(address: IpAddr) -> bool {
    domain::is_internal(address) || is_own(address)
}

/// Whether an address, public or not, is this host's own: packets to it would then have it as their source, too. None are
/// sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Any port will do.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(reference: &str, access: &Access) -> Guard {
        Guard::of(&Reference::parse(reference, access).unwrap(), access)
    }

    fn permits(guard: &Guard, url: &str) -> bool {
        guard.check(&url.parse().unwrap()).is_ok()
    }

    #[test]
    fn addresses_in_every_spelling() {
        let guard = guard("ghcr.io/a/b", &Access::default());
        for inside in [
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001:5000/",
            "https://0/",
            "https://10.0.0.1./",
            "https://[::1]:5000/",
            "https://[::ffff:169.254.169.254]/",
            "https://[fd00:ec2::254]/",
        ] {
            assert!(!permits(&guard, inside), "{inside}");
        }
        for outside in ["https://ghcr.io/", "https://198.51.100.7/", "https://[2606:4700::1111]/"] {
            assert!(permits(&guard, outside), "{outside}");
        }
    }

    #[test]
    fn only_a_named_registry_leads_to_what_is_named() {
        let access = Access {
            plain_http: vec!["10.0.0.5:5000".into()],
            mirrors: vec!["mirror.lan".into()],
            internal: vec!["Harbor.lan:8443".into(), "[fd00::5]:443".into()],
            ..Access::default()
        };
        for own in ["10.0.0.5:5000/x", "harbor.lan:8443/x"] {
            let guard = guard(own, &access);
            for named in ["http://10.0.0.5:5000/v2/", "http://10.0.0.5/token", "https://[fd00::5]/x"] {
                assert!(permits(&guard, named), "{own} {named}");
            }
            assert!(!permits(&guard, "http://10.0.0.6:5000/"), "{own}");
            assert!(guard.named.contains("harbor.lan") && guard.named.contains("mirror.lan"));
        }
        // The default registry is not its mirror; another port is another registry.
        for foreign in ["python:3.11", "ghcr.io/x/y", "10.0.0.5:22/x", "harbor.lan/x", "10.0.0.5/x"] {
            let guard = guard(foreign, &access);
            assert!(guard.named.is_empty() && !permits(&guard, "http://10.0.0.5:5000/v2/"), "{foreign}");
        }
        let mirror = &Reference::parse("python:3.11", &access).unwrap().mirrored(&access)[0];
        assert!(!Guard::of(mirror, &access).named.is_empty());
    }

    #[tokio::test]
    async fn what_is_dialled_is_what_was_checked() {
        let answers =
            std::sync::Mutex::new(vec!["127.0.0.1,10.0.0.1", "127.0.0.1,198.51.100.7", "198.51.100.7"]);
        let look_up: LookUp = Arc::new(move |_| {
            let text = answers.lock().unwrap().pop().unwrap();
            Box::pin(async move { Ok(text.split(',').map(|text| text.parse().unwrap()).collect()) })
        });
        let guard = Guard { look_up, ..guard("rebinding.example/x", &Access::default()) };
        let found = async || {
            let found = guard.resolve("Rebinding.example".parse().unwrap()).await;
            found.map(|found| found.map(|address| address.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(found().await.unwrap(), ["198.51.100.7:0"]);
        assert_eq!(found().await.unwrap(), ["198.51.100.7:0"]);
        assert!(found().await.unwrap_err().to_string().contains("internal_registries"));
    }

    #[test]
    fn this_machine_knows_its_addresses() {
        assert!(is_own("127.0.0.1".parse().unwrap()) && !is_own("198.51.100.1".parse().unwrap()));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("198.51.100.1:9").is_ok() {
            assert!(is_own(socket.local_addr().unwrap().ip()));
        }
    }
}
