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
    config(Certificate { own: None, platform: Mutex::new(Current::issued(ca, hosts)?) })
}

/// The same, and for `host` and everything below it the operator's certificate chain and key (PEM files), which are read
/// again when they change.
///
/// # Errors
/// The files cannot be read, or do not belong together.
pub fn server_config_with_own(
    ca: Arc<Ca>,
    hosts: &Hosts,
    host: &str,
    cert: &Path,
    key: &Path,
) -> Result<Arc<ServerConfig>, CaError> {
    let files = Files { cert: cert.to_owned(), key: key.to_owned() };
    let stamp = files.stamp();
    let current = files.load()?;
    let current = Current { renew: Renew::Read { files, stamp }, looked: Instant::now(), current };
    let own = Some((format!(".{}", host.to_ascii_lowercase()), Mutex::new(current)));
    config(Certificate { own, platform: Mutex::new(Current::issued(ca, hosts)?) })
}

fn config(certificate: Certificate) -> Result<Arc<ServerConfig>, CaError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Certificate {
    /// The operator's, with the end of the names it is for.
    own: Option<(String, Mutex<Current>)>,
    platform: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    current: Shown,
    looked: Instant,
    renew: Renew,
}

/// What clients are shown.
#[derive(Debug)]
struct Shown {
    /// To those that say which name they want.
    named: Arc<CertifiedKey>,
    /// To those that do not: they connect by address.
    unnamed: Arc<CertifiedKey>,
}

impl Shown {
    fn issue(ca: &Ca, hosts: &Hosts) -> Result<Self, CaError> {
        Ok(Self { named: Arc::new(ca.issue(hosts)?), unnamed: Arc::new(ca.issue_for_loopback()?) })
    }
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

    fn load(&self) -> Result<Shown, CaError> {
        let damaged = |path: &Path, error: rustls::pki_types::pem::Error| CaError::Damaged {
            path: path.to_owned(),
            detail: error.to_string(),
        };
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| damaged(&self.cert, e))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| damaged(&self.key, e))?;
        let provider = rustls::crypto::ring::default_provider();
        let pair = Arc::new(CertifiedKey::from_der(chain, key, &provider)?);
        Ok(Shown { named: Arc::clone(&pair), unnamed: pair })
    }
}

impl Current {
    fn issued(ca: Arc<Ca>, hosts: &Hosts) -> Result<Self, CaError> {
        let current = Shown::issue(&ca, hosts)?;
        let renew = Renew::Issue { ca, hosts: hosts.clone(), issued: SystemTime::now() };
        Ok(Self { renew, looked: Instant::now(), current })
    }

    /// The certificate to show now. A failed renewal keeps the old one: it is better than none.
    fn get(&mut self, named: bool) -> Arc<CertifiedKey> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            match self.renew.due() {
                None => {}
                Some(Ok(renewed)) => {
                    tracing::info!("renewed the TLS certificate");
                    self.current = renewed;
                }
                Some(Err(error)) => tracing::error!(%error, "cannot renew the TLS certificate"),
            }
        }
        Arc::clone(if named { &self.current.named } else { &self.current.unnamed })
    }
}

impl Renew {
    fn due(&mut self) -> Option<Result<Shown, CaError>> {
        match self {
            Self::Issue { ca, hosts, issued } => {
                let fresh = issued.elapsed().is_ok_and(|age| age < RENEW_AFTER);
                (!fresh).then(|| Shown::issue(ca, hosts).inspect(|_| *issued = SystemTime::now()))
            }
            Self::Read { files, stamp } => {
                let now = files.stamp();
                (now != *stamp).then(|| files.load().inspect(|_| *stamp = now))
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        let covers =
            |end: &str| name.is_some_and(|name| format!(".{}", name.to_ascii_lowercase()).ends_with(end));
        let current = match &self.own {
            Some((end, own)) if covers(end) => own,
            _ => &self.platform,
        };
        Some(lock(current).get(name.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_pair(files: &Files, name: &str, changed: SystemTime) {
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
        for (path, text) in [(&files.cert, cert.pem()), (&files.key, key.serialize_pem())] {
            fs::write(path, text).unwrap();
            fs::File::options().write(true).open(path).unwrap().set_modified(changed).unwrap();
        }
    }

    #[test]
    fn changed_files_are_read_again_and_bad_ones_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
        let start = SystemTime::now();
        write_pair(&files, "a.example.com", start);
        let first = files.load().unwrap();
        let mut renew = Renew::Read { stamp: files.stamp(), files };
        assert!(renew.due().is_none());
        let Renew::Read { files, .. } = &renew else { unreachable!() };
        write_pair(files, "b.example.com", start + Duration::from_secs(1));
        let second = renew.due().unwrap().unwrap();
        assert_ne!(first.named.cert, second.named.cert);
        assert!(renew.due().is_none());
        let Renew::Read { files, .. } = &renew else { unreachable!() };
        fs::remove_file(&files.key).unwrap();
        assert!(renew.due().unwrap().is_err());
        assert!(renew.due().unwrap().is_err(), "it is tried until it works");
    }
}
