//! Whom to trust behind `https://`.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::Connector;

use super::BaseUrl;

/// Set once at the start, when the service is behind TLS.
static TRUSTED: OnceLock<Arc<ClientConfig>> = OnceLock::new();

/// Trusts the authorities in a file, or those of this machine. For `http://` nothing is to be done.
///
/// # Errors
/// When there is none.
pub(crate) fn trust(url: &BaseUrl, ca_file: Option<&Path>) -> Result<()> {
    if !url.is_encrypted() {
        return Ok(());
    }
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let found = CertificateDer::pem_file_iter(path).with_context(|| format!("--ca-file {}", path.display()))?;
            for certificate in found {
                let shown = || format!("--ca-file {}", path.display());
                roots.add(certificate.with_context(shown)?).with_context(shown)?;
            }
            ensure!(!roots.is_empty(), "--ca-file {}: holds no certificate in PEM", path.display());
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            ensure!(!roots.is_empty(), "this machine trusts no authority; name one with --ca-file");
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS can't be set up")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    TRUSTED.get_or_init(|| Arc::new(config));
    Ok(())
}

/// Makes HTTP clients. A proxy of the environment could not reach what listens on this machine's loopback.
pub(crate) fn http() -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().no_proxy();
    match TRUSTED.get() {
        Some(config) => builder.tls_backend_preconfigured(ClientConfig::clone(config)),
        None => builder,
    }
}

/// Makes WebSockets.
pub(crate) fn web_socket() -> Connector {
    TRUSTED.get().map_or(Connector::Plain, |config| Connector::Rustls(Arc::clone(config)))
}
