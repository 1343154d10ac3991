//! The platform's certificate authority for the sandbox hosts: made on the first start, kept in the state directory. It
//! is limited by name constraints to these hosts, so whoever trusts it risks nothing else. It must never sign for
//! anything but the edge; interception of egress has an authority of its own.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use crate::Hosts;

const KEY_FILE: &str = "ca-key.pem";
const CERT_FILE: &str = "ca.pem";
/// Users import the authority once.
const CA_DAYS: i64 = 3650;
/// Renewed long before, see [`crate::tls`]; well under the 398 days some clients accept.
const LEAF_DAYS: i64 = 90;
/// A clock that is behind must not make a new certificate invalid.
const BACKDATED_DAYS: i64 = 2;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file of it cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of it has been damaged.
    #[error(
        "{path} is damaged: {detail}; restore it, or delete it together with {CERT_FILE} to get a new authority"
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// How.
        detail: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Issue(#[from] rcgen::Error),
    /// A certificate could not be used.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// The authority.
pub struct Ca {
    cert: CertificateDer<'static>,
    pem: String,
    path: PathBuf,
    key: KeyPair,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Ca {
    /// Reads the authority in `dir`, or makes one. One that may not sign for `hosts` is replaced: its users must trust
    /// the new one.
    ///
    /// # Errors
    /// The files cannot be read or written, or are damaged.
    pub fn open(dir: &Path, hosts: &Hosts) -> Result<Self, CaError> {
        let (key_path, path) = (dir.join(KEY_FILE), dir.join(CERT_FILE));
        let (key_pem, pem) = (read(&key_path)?, read(&path)?);
        let Some(key_pem) = key_pem else { return Self::create(dir, hosts) };
        let damaged = |path: &Path, detail: &dyn std::fmt::Display| CaError::Damaged {
            path: path.to_owned(),
            detail: detail.to_string(),
        };
        let key = KeyPair::from_pem(&key_pem).map_err(|e| damaged(&key_path, &e))?;
        // Without a certificate the first start was interrupted between the two files.
        let Some(pem) = pem else { return Self::certify(path, key, hosts) };
        let cert = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| damaged(&path, &e))?;
        let ca = Self { cert, pem, path, key };
        match ca.issue(hosts).and_then(|leaf| ca.accepts(&leaf, hosts.iter())) {
            Ok(()) => Ok(ca),
            Err(CaError::Tls(reason)) => {
                tracing::warn!(%reason, "the authority does not fit the sandbox hosts; clients must trust the new one");
                Self::create(dir, hosts)
            }
            Err(error) => Err(error),
        }
    }

    /// The certificate that clients must trust.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The file of that certificate.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A certificate for all hosts, everything one label below them, and `localhost`. It names no address: BoringSSL
    /// (Bun) rejects a chain in which both a certificate and a name constraint have one.
    pub(crate) fn issue(&self, hosts: &Hosts) -> Result<CertifiedKey, CaError> {
        let mut names = vec![SanType::DnsName("localhost".try_into()?)];
        for host in hosts.iter() {
            names.push(SanType::DnsName(host.try_into()?));
            names.push(SanType::DnsName(format!("*.{host}").try_into()?));
        }
        self.sign(names)
    }

    /// A certificate for this machine's loopback addresses, for clients that connect by address.
    pub(crate) fn issue_for_loopback(&self) -> Result<CertifiedKey, CaError> {
        self.sign(LOOPBACK.map(SanType::IpAddress).to_vec())
    }

    fn sign(&self, names: Vec<SanType>) -> Result<CertifiedKey, CaError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Superserve sandbox edge");
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, LEAF_DAYS);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let issuer = Issuer::from_ca_cert_der(&self.cert, &self.key)?;
        let leaf = params.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        Ok(CertifiedKey::new(vec![leaf.der().clone()], key))
    }

    /// Whether a client that trusts this authority accepts the certificate for all names.
    fn accepts<'a>(
        &self,
        leaf: &CertifiedKey,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), CaError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.cert.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
            .build()
            .map_err(|e| rustls::Error::General(e.to_string()))?;
        for name in names {
            let name = ServerName::try_from(name).map_err(|e| rustls::Error::General(e.to_string()))?;
            verifier.verify_server_cert(leaf.end_entity_cert()?, &[], &name, &[], UnixTime::now())?;
        }
        Ok(())
    }

    fn create(dir: &Path, hosts: &Hosts) -> Result<Self, CaError> {
        let path = dir.join(CERT_FILE);
        // The old certificate must not outlive its key, nor be taken for the new key's when we are interrupted here.
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(CaError::File { path, source });
            }
            _ => {}
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        write_private(&dir.join(KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
        Self::certify(path, key, hosts)
    }

    fn certify(path: PathBuf, key: KeyPair, hosts: &Hosts) -> Result<Self, CaError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Superserve sandbox hosts");
        params.distinguished_name.push(DnType::OrganizationName, "Superserve");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let names = hosts.iter().chain(["localhost"]).map(|host| GeneralSubtree::DnsName(host.to_owned()));
        let addresses = LOOPBACK.map(|address| {
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(
                address,
                if address.is_ipv4() { 32 } else { 128 },
            ))
        });
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: names.chain(addresses).collect(),
            excluded_subtrees: Vec::new(),
        });
        set_validity(&mut params, CA_DAYS);
        let cert = params.self_signed(&key)?;
        write_private(&path, cert.pem().as_bytes(), 0o644)?;
        Ok(Self { cert: cert.der().clone(), pem: cert.pem(), path, key })
    }
}

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

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

fn read(path: &Path) -> Result<Option<String>, CaError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CaError::File { path: path.to_owned(), source }),
    }
}

/// Writes beside the target and renames: the file is there in full or not at all.
fn write_private(path: &Path, content: &[u8], mode: u32) -> Result<(), CaError> {
    let beside = path.with_extension("pem.new");
    let write = || {
        let _ = fs::remove_file(&beside);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| CaError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_have_certificates_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = Hosts::default();
        let ca = Ca::open(dir.path(), &hosts).unwrap();
        let named = ca.issue(&hosts).unwrap();
        ca.accepts(&named, ["localhost", "boxd-x.sandbox.superserve.ai"]).unwrap();
        assert!(
            ca.accepts(&named, ["127.0.0.1"]).is_err(),
            "Bun rejects an address under a constraint on addresses"
        );
        ca.accepts(&ca.issue_for_loopback().unwrap(), ["127.0.0.1", "::1"]).unwrap();
    }

    #[test]
    fn the_constraints_bind_whoever_has_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::open(dir.path(), &Hosts::default()).unwrap();
        let other = Hosts::new(["bank.example.com"]).unwrap();
        assert!(ca.accepts(&ca.issue(&other).unwrap(), other.iter()).is_err());
        let address = ca.sign(vec![SanType::IpAddress([10, 0, 0, 1].into())]).unwrap();
        assert!(ca.accepts(&address, ["10.0.0.1"]).is_err());
    }
}
