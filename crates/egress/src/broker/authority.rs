//! The authority for names whose TLS the broker opens. Sandboxes trust it, so whoever has its key could read what they say
//! to anybody: it never leaves this host's state directory, and certificates are made for names of bound secrets only.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use tokio::time::Instant;

use crate::name::Name;

const KEY_FILE: &str = "egress-ca-key.pem";
const CERT_FILE: &str = "egress-ca.pem";
/// Sandboxes get it when they are made, and may be kept for long.
const CA_DAYS: i64 = 3_650;
/// A certificate is used for a day and valid for a little longer.
const LEAF_DAYS: i64 = 3;
const LEAF_USED: Duration = Duration::from_secs(24 * 60 * 60);
/// A clock that is behind must not make a new certificate invalid.
const BACKDATED_DAYS: i64 = 2;
/// Certificates that are kept; one costs a tenth of a millisecond to make.
const MAX_KEPT: usize = 1_024;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of it cannot be read or written.
    #[error("{path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate or key cannot be made or used.
    #[error(
        "the authority of the secrets broker cannot be used ({0}); restore {KEY_FILE} and {CERT_FILE}, or delete both"
    )]
    Unusable(String),
}

/// The authority.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    kept: Mutex<HashMap<Name, (Arc<CertifiedKey>, Instant)>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Reads the authority in a directory, or makes one.
    ///
    /// # Errors
    /// Its files cannot be read or written, or are damaged.
    pub fn open(dir: &Path) -> Result<Self, AuthorityError> {
        let (key_path, path) = (dir.join(KEY_FILE), dir.join(CERT_FILE));
        let key = match read(&key_path)? {
            Some(pem) => KeyPair::from_pem(&pem).map_err(unusable)?,
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(unusable)?;
                // The certificate of a former key is none of this one.
                remove(&path)?;
                write(&key_path, key.serialize_pem().as_bytes(), 0o600)?;
                key
            }
        };
        let pem = match read(&path)? {
            Some(pem) => pem,
            None => {
                let pem = certify(&key).map_err(unusable)?;
                write(&path, pem.as_bytes(), 0o644)?;
                pem
            }
        };
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unusable)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(unusable)?;
        Ok(Self { pem, issuer, kept: Mutex::default() })
    }

    /// The certificate that sandboxes trust, PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for one name.
    pub(super) fn certificate(&self, name: &Name) -> Result<Arc<CertifiedKey>, rcgen::Error> {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((certificate, until)) = kept.get(name)
            && now < *until
        {
            return Ok(Arc::clone(certificate));
        }
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        let certificate = Arc::new(self.issue(name)?);
        kept.insert(name.clone(), (Arc::clone(&certificate), now + LEAF_USED));
        Ok(certificate)
    }

    fn issue(&self, name: &Name) -> Result<CertifiedKey, rcgen::Error> {
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Superserve secrets broker");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, LEAF_DAYS);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let leaf = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|_| rcgen::Error::KeyGenerationUnavailable)?;
        Ok(CertifiedKey::new(vec![leaf.der().clone()], key))
    }
}

fn certify(key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Superserve secrets broker");
    params.distinguished_name.push(DnType::OrganizationName, "Superserve");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, CA_DAYS);
    Ok(params.self_signed(key)?.pem())
}

/// Valid from a little while ago for so many days.
fn set_validity(params: &mut CertificateParams, days: i64) {
    let midnight = |offset: i64| {
        let date =
            (Timestamp::now() + SignedDuration::from_hours(24 * offset)).to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = midnight(-BACKDATED_DAYS);
    params.not_after = midnight(days);
}

fn unusable(error: impl std::fmt::Display) -> AuthorityError {
    AuthorityError::Unusable(error.to_string())
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> AuthorityError {
    move |source| AuthorityError::File { path: path.to_owned(), source }
}

fn read(path: &Path) -> Result<Option<String>, AuthorityError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file(path)(error)),
    }
}

fn remove(path: &Path) -> Result<(), AuthorityError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(path)(error)),
        _ => Ok(()),
    }
}

/// Writes beside the target and renames: the file is there in full or not at all.
fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), AuthorityError> {
    let beside = path.with_extension("new");
    remove(&beside)?;
    let write = || {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(file(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_authority_is_kept_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::open(dir.path()).unwrap();
        assert_eq!(Authority::open(dir.path()).unwrap().pem(), first.pem());
        let mode = std::fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Interrupted between the two files: a certificate for the key that is there.
        std::fs::remove_file(dir.path().join(CERT_FILE)).unwrap();
        Authority::open(dir.path()).unwrap().certificate(&Name::parse(b"a.example").unwrap()).unwrap();
        std::fs::write(dir.path().join(KEY_FILE), "damaged").unwrap();
        assert!(matches!(Authority::open(dir.path()), Err(AuthorityError::Unusable(_))));
    }
}
