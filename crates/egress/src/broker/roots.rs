//! Which services the broker believes: those the host believes, and what the operator adds.

use std::io;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The host's authorities, and those of a PEM file.
///
/// # Errors
/// The file cannot be read or has none.
pub fn trusted_roots(extra: Option<&Path>) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = extra {
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
        let certificates: Result<Vec<_>, _> = certificates.collect();
        let certificates = certificates.map_err(|error| bad(error.to_string()))?;
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(bad("no certificate of an authority is in it".to_owned()));
        }
    }
    Ok(roots)
}
