//! Reads certificates and keys from PEM files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TlsError;

/// The files of a process's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Its certificate, and those between it and the authority.
    pub cert_file: PathBuf,
    /// The private key of the certificate.
    pub key_file: PathBuf,
}

/// A certificate with its chain, and its key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl IdentityFiles {
    pub(crate) fn read(&self) -> Result<Identity, TlsError> {
        let chain = read_certificates(&self.cert_file)?;
        let key = PrivateKeyDer::from_pem_file(&self.key_file).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::Empty { path: self.key_file.clone(), what: "private key" },
            error => TlsError::Unreadable { path: self.key_file.clone(), reason: error.to_string() },
        })?;
        Ok(Identity { chain, key })
    }

    pub(crate) fn paths(&self) -> [PathBuf; 2] {
        [self.cert_file.clone(), self.key_file.clone()]
    }
}

/// Reads the authorities in a file.
pub(crate) fn read_root_certs(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Unusable { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error: pem::Error| TlsError::Unreadable { path: path.to_owned(), reason: error.to_string() };
    let read = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let found: Vec<_> = read.collect::<Result<_, _>>().map_err(unreadable)?;
    if found.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), what: "certificate" });
    }
    Ok(found)
}

/// Returns a stamp that changes with the file; none while it does not exist.
pub(crate) fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
