//! The secrets broker: TLS to hosts of a secret that is bound to the sandbox is opened here, so that stand-ins in the
//! headers become values on their way out. Nothing else is opened, bodies pass as they are, and a value exists only while a
//! request is written.
//!
//! Both sides speak the same protocol: the service is asked first, with what the guest offered, and its choice is the guest's.

mod authority;
mod exchange;
mod roots;
mod swap;

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;

use domain::{Credentials, SandboxId};
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use crate::dial::{self, NotDialled};
use crate::gateway::Shared;
use crate::metered::Metered;
use crate::name::Name;
use crate::relay;
use crate::sandboxes::Sandbox;
use exchange::Exchange;

pub use authority::{Authority, AuthorityError};
pub use roots::trusted_roots;

/// A handshake takes two ways there and back; a guest that is slower is none.
const HANDSHAKE: Duration = Duration::from_secs(10);
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// What opening TLS takes.
pub struct Broker {
    pub(crate) credentials: Arc<dyn Credentials>,
    authority: Authority,
    roots: Arc<RootCertStore>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Broker {
    /// `roots` are the authorities whose services are believed.
    #[must_use]
    pub fn new(credentials: Arc<dyn Credentials>, authority: Authority, roots: RootCertStore) -> Self {
        Self { credentials, authority, roots: Arc::new(roots) }
    }

    /// The authority that a sandbox is to believe, PEM; `None` while no secret is bound to it.
    #[must_use]
    pub fn authority_for(&self, sandbox: SandboxId) -> Option<&str> {
        (!self.credentials.bound(sandbox).is_empty()).then(|| self.authority.pem())
    }

    /// Whether TLS to this host is opened for this sandbox.
    pub(crate) fn opens(&self, sandbox: &Sandbox, host: &Name) -> bool {
        self.credentials.bound(sandbox.id).iter().any(|bound| bound.policy.covers(host.as_str()))
    }
}

/// How a connection that is opened ended up.
pub(crate) enum Opened {
    /// It was connected, or the guest did not get so far.
    Connected,
    /// It was not, which the guest has been told.
    Not(NotDialled),
}

/// The way to the service of one connection, for as often as it takes.
pub(crate) struct Way {
    pub(crate) shared: Arc<Shared>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) host: Name,
    pub(crate) to: SocketAddrV4,
}

type Service = tokio_rustls::client::TlsStream<TcpStream>;

impl Way {
    /// Connects, in one of these protocols.
    async fn open(&self, protocols: Vec<Vec<u8>>) -> Result<Service, NotDialled> {
        let dialled = dial::dial(&self.shared, &self.sandbox, Some(&self.host), self.to).await?;
        let failed = |why| NotDialled::Failed(dialled.rule, why);
        // Its last request is to arrive, even when the guest has gone meanwhile.
        relay::close_when_dropped(&dialled.service);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| failed("tls"))?;
        let mut config = config.with_root_certificates(Arc::clone(&self.broker.roots)).with_no_client_auth();
        config.alpn_protocols = protocols;
        // A session would be resumed by the next sandbox, and tell the service that both are one.
        config.resumption = rustls::client::Resumption::disabled();
        let name = ServerName::try_from(self.host.to_string()).map_err(|_| failed("tls"))?;
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, dialled.service);
        match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(service)) => Ok(service),
            Ok(Err(error)) => {
                tracing::debug!(host = %self.host, %error, "the TLS of a service cannot be used");
                Err(failed("tls"))
            }
            Err(_) => Err(failed("timeout")),
        }
    }
}

/// Serves the requests of a connection until it ends.
pub(crate) async fn serve(way: Way, guest: Metered) -> Opened {
    let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), guest);
    let Ok(Ok(start)) = timeout(HANDSHAKE, acceptor).await else { return Opened::Connected };
    let offered: Vec<Vec<u8>> = start
        .client_hello()
        .alpn()
        .map(|list| list.filter(|name| [H2, HTTP1].contains(name)).map(<[u8]>::to_vec).collect())
        .unwrap_or_default();
    let service = way.open(offered.clone()).await;
    let protocol = match &service {
        Ok(service) => service.get_ref().1.alpn_protocol().map(<[u8]>::to_vec),
        // Whoever is refused is told so in what was offered first.
        Err(_) => offered.first().cloned(),
    };
    let not = service.as_ref().err().copied();
    let config = match server_config(&way, protocol.clone()) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(%error, "no certificate can be made for a host of a secret");
            return Opened::Connected;
        }
    };
    let Ok(Ok(guest)) = timeout(HANDSHAKE, start.into_stream(config)).await else {
        return not.map_or(Opened::Connected, Opened::Not);
    };
    let is_h2 = protocol.as_deref() == Some(H2);
    Exchange::new(way, service, is_h2).await.serve(guest).await;
    not.map_or(Opened::Connected, Opened::Not)
}

fn server_config(way: &Way, protocol: Option<Vec<u8>>) -> Result<Arc<ServerConfig>, io::Error> {
    let certificate = way.broker.authority.certificate(&way.host).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let mut config = config.with_no_client_auth().with_cert_resolver(Arc::new(One(certificate)));
    config.alpn_protocols = protocol.into_iter().collect();
    Ok(Arc::new(config))
}

/// The certificate of the one name a connection is for.
#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}
