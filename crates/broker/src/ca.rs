//! The authority that signs for intercepted hosts: made on the first start, kept in one file of the state directory that
//! only its owner reads. Sandboxes that have secrets trust it, nobody else does, and it signs for nothing else: whoever
//! has its key can read what those sandboxes send. It cannot be bound to names, because secrets may be for any host.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use wire::agent::Trust;

const FILE: &str = "egress-ca.pem";
/// Everybody else has no business with it.
const MODE: u32 = 0o600;
/// Name of the authority. A digest of it names the guest's link to the certificate.
const NAME: &str = "Superserve secrets";
/// `openssl x509 -subject_hash` of the certificate, by which OpenSSL finds an authority in a directory.
const SUBJECT_HASH: &str = "8f1b30f9";
/// Disks of sandboxes keep the certificate.
const CA_DAYS: i64 = 3650;
const LEAF_DAYS: i64 = 14;
/// A clock that is behind must not make a new certificate invalid.
const BACKDATED_DAYS: i64 = 2;
/// Half of a leaf's life.
const RENEW_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);
/// A wildcard covers any number of hosts, and a guest chooses which; making a leaf takes a tenth of a millisecond.
const MAX_LEAVES: usize = 1_024;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// Its file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its file has been damaged.
    #[error("{path} is damaged ({detail}); restore it, or delete it to get a new authority")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// How.
        detail: String,
    },
    /// Others may read its file.
    #[error("{path} can be read by others (mode {mode:o}); delete it to get a new authority")]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// A certificate could not be used.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// A certificate with its key, and when it was made.
type Leaf = (Arc<CertifiedKey>, SystemTime);

/// The authority, and what it has signed lately.
pub struct Ca {
    pem: String,
    cert: CertificateDer<'static>,
    key: KeyPair,
    /// One key for all leaves: they are shown by the same process.
    leaf_key: KeyPair,
    leaves: Mutex<HashMap<Box<str>, Leaf>>,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").finish_non_exhaustive()
    }
}

impl Ca {
    /// Reads the authority in `dir`, or makes one.
    ///
    /// # Errors
    /// Its file cannot be read or written, is damaged, or others may read it.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        let path = dir.join(FILE);
        let file = |source| CaError::File { path: path.clone(), source };
        let pem = match fs::read_to_string(&path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let pem = make()?;
                write(&path, &pem).map_err(file)?;
                pem
            }
            Err(source) => return Err(file(source)),
        };
        let mode = fs::metadata(&path).map_err(file)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CaError::Exposed { path, mode });
        }
        let damaged = |detail: String| CaError::Damaged { path: path.clone(), detail };
        let cert = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let key = KeyPair::try_from(&key).map_err(|e| damaged(e.to_string()))?;
        Issuer::from_ca_cert_der(&cert, &key).map_err(|e| damaged(e.to_string()))?;
        let end = pem.find("-----BEGIN PRIVATE KEY").ok_or_else(|| damaged("it has no key".to_owned()))?;
        Ok(Self {
            pem: pem[..end].to_owned(),
            cert,
            key,
            leaf_key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
            leaves: Mutex::default(),
        })
    }

    /// The certificate, for the sandboxes that must trust it.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What a guest needs to trust it.
    #[must_use]
    pub fn trust(&self) -> Trust {
        // Guests without roots of their own get the host's.
        let found = rustls_native_certs::load_native_certs().certs;
        let roots = found.iter().map(|cert| pem(cert)).collect();
        Trust { authority: self.pem.clone(), subject_hash: SUBJECT_HASH.to_owned(), roots }
    }

    /// A certificate for this one host.
    pub(crate) fn leaf(&self, host: &str) -> Result<Arc<CertifiedKey>, CaError> {
        let now = SystemTime::now();
        let fresh = |made: &SystemTime| now.duration_since(*made).is_ok_and(|age| age < RENEW_AFTER);
        let known = self.leaves.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned();
        if let Some((leaf, _)) = known.filter(|(_, made)| fresh(made)) {
            return Ok(leaf);
        }
        let leaf = Arc::new(self.sign(host)?);
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if leaves.len() >= MAX_LEAVES {
            leaves.retain(|_, (_, made)| fresh(made));
            if leaves.len() >= MAX_LEAVES {
                leaves.clear();
            }
        }
        leaves.insert(host.into(), (Arc::clone(&leaf), now));
        Ok(leaf)
    }

    fn sign(&self, host: &str) -> Result<CertifiedKey, CaError> {
        let mut params = CertificateParams::default();
        // Another name than the authority's, or it would look self-signed.
        params.distinguished_name.push(DnType::CommonName, "Opened by Superserve");
        params.subject_alt_names = vec![SanType::DnsName(host.try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, LEAF_DAYS);
        let issuer = Issuer::from_ca_cert_der(&self.cert, &self.key)?;
        let leaf = params.signed_by(&self.leaf_key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        Ok(CertifiedKey::new(vec![leaf.der().clone()], key))
    }
}

/// Certificate and key of a new authority.
fn make() -> Result<String, CaError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, CA_DAYS);
    let cert = params.self_signed(&key)?;
    Ok(format!("{}{}", cert.pem(), key.serialize_pem()))
}

fn pem(cert: &[u8]) -> String {
    let text = STANDARD.encode(cert);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
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

/// Writes beside the target and renames: the file is there in full or not at all.
fn write(path: &Path, content: &str) -> io::Result<()> {
    let beside = path.with_extension("pem.new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(MODE).open(&beside)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn is_kept_and_kept_to_itself() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ca::open(dir.path()).unwrap();
        assert!(!first.pem().contains("PRIVATE"));
        let path = dir.path().join(FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Ca::open(dir.path()).unwrap().pem(), first.pem());
        let trust = first.trust();
        assert_eq!(trust.authority, first.pem());
        for cert in CertificateDer::pem_slice_iter(trust.roots.as_bytes()) {
            cert.unwrap();
        }

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Ca::open(dir.path()), Err(CaError::Exposed { mode: 0o644, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, first.pem()).unwrap();
        assert!(matches!(Ca::open(dir.path()), Err(CaError::Damaged { .. })));
    }

    #[test]
    fn leaves_are_made_once_and_not_kept_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(dir.path()).unwrap();
        let (one, again) = (ca.leaf("a.example").unwrap(), ca.leaf("a.example").unwrap());
        assert_eq!(one.cert, again.cert);
        assert_ne!(one.cert, ca.leaf("b.example").unwrap().cert);
        for n in 0..=MAX_LEAVES {
            ca.leaf(&format!("h{n}.example")).unwrap();
        }
        assert!(ca.leaves.lock().unwrap().len() <= MAX_LEAVES);
    }

    #[test]
    fn openssl_finds_it_by_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(dir.path()).unwrap();
        let file = dir.path().join("cert.pem");
        fs::write(&file, ca.pem()).unwrap();
        let Ok(output) = std::process::Command::new("openssl")
            .args(["x509", "-noout", "-subject_hash", "-in"])
            .arg(&file)
            .output()
        else {
            println!("SKIPPED: there is no openssl here to compare the hash with");
            return;
        };
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), SUBJECT_HASH);
    }
}
