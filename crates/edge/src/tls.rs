//! The certificate of the TLS side: from the platform's authority, renewed while the server runs, or the operator's
//! files, read again when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::ca::{Ca, CaError};
use crate::hosts::Hosts;
use crate::limits::lock;

/// A third of a certificate's life.
const RENEW_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often the operator's files are looked at; also the pause after a failed renewal.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// TLS with a certificate of the platform's authority for `hosts`.
///
/// # Errors
/// No certificate can be issued.
pub fn server_config(ca: Arc<Ca>, hosts: &Hosts) -> Result<Arc<ServerConfig>, CaError> {
    let current = Arc::new(ca.issue(hosts)?);
    let hosts = hosts.clone();
    config(Current {
        renew: Renew::Issue { ca, hosts, issued: SystemTime::now() },
        looked: Instant::now(),
        current,
    })
}

/// TLS with the operator's certificate chain and key (PEM files), which are read again when they change.
///
/// # Errors
/// The files cannot be read, or do not belong together.
pub fn server_config_from_files(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, CaError> {
    let files = Files { cert: cert.to_owned(), key: key.to_owned() };
    let stamp = files.stamp();
    let current = Arc::new(files.load()?);
    config(Current { renew: Renew::Read { files, stamp }, looked: Instant::now(), current })
}

fn config(current: Current) -> Result<Arc<ServerConfig>, CaError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Certificate(Mutex::new(current))));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Certificate(Mutex<Current>);

#[derive(Debug)]
struct Current {
    current: Arc<CertifiedKey>,
    looked: Instant,
    renew: Renew,
}

#[derive(Debug)]
enum Renew {
    Issue { ca: Arc<Ca>, hosts: Hosts, issued: SystemTime },
    Read { files: Files, stamp: Stamp },
}

#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// Times of change of both files.
type Stamp = [Option<SystemTime>; 2];

impl Files {
    fn stamp(&self) -> Stamp {
        [&self.cert, &self.key].map(|path| fs::metadata(path).and_then(|m| m.modified()).ok())
    }

    fn load(&self) -> Result<CertifiedKey, CaError> {
        let damaged = |path: &Path, error: rustls::pki_types::pem::Error| CaError::Damaged {
            path: path.to_owned(),
            detail: error.to_string(),
        };
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| damaged(&self.cert, e))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| damaged(&self.key, e))?;
        let provider = rustls::crypto::ring::default_provider();
        Ok(CertifiedKey::from_der(chain, key, &provider)?)
    }
}

impl Current {
    /// The certificate to show now. A failed renewal keeps the old one: it is better than none.
    fn get(&mut self) -> Arc<CertifiedKey> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            match self.renew.due() {
                None => {}
                Some(Ok(renewed)) => {
                    tracing::info!("renewed the TLS certificate");
                    self.current = Arc::new(renewed);
                }
                Some(Err(error)) => tracing::error!(%error, "cannot renew the TLS certificate"),
            }
        }
        Arc::clone(&self.current)
    }
}

impl Renew {
    fn due(&mut self) -> Option<Result<CertifiedKey, CaError>> {
        match self {
            Self::Issue { ca, hosts, issued } => {
                let fresh = issued.elapsed().is_ok_and(|age| age < RENEW_AFTER);
                (!fresh).then(|| ca.issue(hosts).inspect(|_| *issued = SystemTime::now()))
            }
            Self::Read { files, stamp } => {
                let now = files.stamp();
                (now != *stamp).then(|| files.load().inspect(|_| *stamp = now))
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(lock(&self.0).get())
    }
}
