//! The test internet's own certificate authority: a certificate for whatever name is asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    made: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(super) fn new() -> Arc<Self> {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
        params.distinguished_name.push(rcgen::DnType::CommonName, "test internet");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        let pem = params.self_signed(&key).expect("an authority signs itself").pem();
        Arc::new(Self { pem, issuer: Issuer::new(params, key), made: Mutex::default() })
    }

    /// What whoever is to believe it must be given.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// Serves TLS under any name, HTTP/2 before HTTP/1.1.
    pub(super) fn acceptor(self: &Arc<Self>) -> TlsAcceptor {
        let _installed_already = rustls::crypto::ring::default_provider().install_default();
        let certificates = Arc::clone(self) as Arc<dyn ResolvesServerCert>;
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config).into()
    }

    fn certificate(&self, name: &str) -> Arc<CertifiedKey> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name from a hello");
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority signs");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("a usable key");
        Arc::new(CertifiedKey::new(vec![certificate.der().clone()], key))
    }
}

impl ResolvesServerCert for Authority {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or("unnamed.example").to_owned();
        let mut made = self.made.lock().expect("nobody panics while holding it");
        Some(Arc::clone(made.entry(name.clone()).or_insert_with(|| self.certificate(&name))))
    }
}
