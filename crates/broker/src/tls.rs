//! TLS on both sides: towards the service by the public roots and those the operator added, towards the guest with a leaf
//! of our own, and the same protocol on both.

use std::sync::Arc;
use std::time::Duration;

use egress::Stream;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{Acceptor, ClientHello};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, TlsConnector, client, server};

use crate::reason::{Reason, Refused};

/// Two round trips and some arithmetic, also over a satellite; the same for both sides.
const HANDSHAKE: Duration = Duration::from_secs(10);
const H2: &[u8] = b"h2";
const H1: &[u8] = b"http/1.1";

/// What is spoken in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1, agreed on or not.
    Http1,
    /// HTTP/2, always agreed on.
    Http2,
}

/// Configuration of both sides.
pub(crate) struct Tls {
    client: ClientConfig,
    provider: Arc<CryptoProvider>,
}

/// What a guest has said.
pub(crate) type Started = StartHandshake<Box<dyn Stream>>;

impl Tls {
    /// `extra` are trusted besides the host's own roots.
    pub(crate) fn new(extra: &[CertificateDer<'static>]) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (public, _) = roots.add_parsable_certificates(found.certs);
        if public == 0 {
            tracing::warn!("this host has no public root certificates: install ca-certificates");
        }
        for cert in extra {
            roots.add(cert.clone())?;
        }
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A session would be resumed by the next sandbox, and tell the service that both are one.
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self { client, provider })
    }

    /// Opens TLS to the service with these protocols on offer.
    pub(crate) async fn connect(
        &self,
        host: &str,
        offer: &[Protocol],
        over: Box<dyn Stream>,
    ) -> Result<(client::TlsStream<Box<dyn Stream>>, Protocol), Refused> {
        let unreachable = |detail: String| Refused::new(Reason::UpstreamUnreachable, detail);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| unreachable("the host's name cannot have a certificate".to_owned()))?;
        let mut config = self.client.clone();
        config.alpn_protocols = offer.iter().map(|one| one.name().to_vec()).collect();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, over);
        let stream = timeout(HANDSHAKE, connecting)
            .await
            .map_err(|_| unreachable("the service did not answer in TLS in time".to_owned()))?
            .map_err(|error| unreachable(format!("there is no TLS with the service ({error})")))?;
        let agreed = Protocol::of(stream.get_ref().1.alpn_protocol());
        Ok((stream, agreed))
    }

    /// Ends the handshake with the guest.
    pub(crate) async fn accept(
        &self,
        started: Started,
        leaf: Arc<CertifiedKey>,
        protocol: Protocol,
    ) -> Option<server::TlsStream<Box<dyn Stream>>> {
        let named = offered(&started.client_hello()).contains(&protocol);
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .ok()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(leaf)));
        // The configuration is gone after this handshake, and tickets with it.
        config.send_tls13_tickets = 0;
        config.alpn_protocols = if named { vec![protocol.name().to_vec()] } else { Vec::new() };
        match timeout(HANDSHAKE, started.into_stream(Arc::new(config))).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                // Most of all a guest that does not trust us.
                tracing::debug!(%error, "a guest did not finish TLS");
                None
            }
            Err(_) => None,
        }
    }
}

/// Waits for the whole ClientHello.
pub(crate) async fn hello(guest: Box<dyn Stream>) -> Option<Started> {
    timeout(HANDSHAKE, LazyConfigAcceptor::new(Acceptor::default(), guest)).await.ok()?.ok()
}

/// The protocols a guest offers of those we speak.
pub(crate) fn offered(hello: &ClientHello<'_>) -> Vec<Protocol> {
    let names: Vec<&[u8]> = hello.alpn().into_iter().flatten().collect();
    [Protocol::Http2, Protocol::Http1].into_iter().filter(|one| names.contains(&one.name())).collect()
}

impl Protocol {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => H1,
            Self::Http2 => H2,
        }
    }

    fn of(name: Option<&[u8]>) -> Self {
        if name == Some(H2) { Self::Http2 } else { Self::Http1 }
    }
}
