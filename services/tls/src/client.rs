//! TLS of outgoing connections.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::files::read_root_certs;
use crate::reload::HotReload;
use crate::{IdentityFiles, TlsError};

/// Connects to servers with a certificate of one of the authorities in a file, and presents its own certificate. Clones
/// are cheap.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<HotReload<ClientConfig>>,
}

impl ClientTls {
    /// Reads the files, and again whenever they change. Negotiates HTTP/2. Needs a tokio runtime.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn load(ca_file: PathBuf, identity: IdentityFiles) -> Result<Self, TlsError> {
        let mut files = identity.paths().to_vec();
        files.push(ca_file.clone());
        let config = HotReload::start(files, move || config(&ca_file, &identity))?;
        Ok(Self { config })
    }

    /// Connects to `address` (`host:port`). The server's certificate must be for the host. The caller sets the timeout.
    ///
    /// # Errors
    /// That of the connection, so that the caller can recognise a refused one; or the reason why the handshake failed.
    pub async fn connect(&self, address: &str) -> io::Result<TlsStream<TcpStream>> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| invalid(format!("{address}: {error}")))?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(self.config.current()).connect(name, stream).await
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

fn config(ca_file: &Path, identity: &IdentityFiles) -> Result<ClientConfig, TlsError> {
    let unusable = |error: rustls::Error| TlsError::Unusable {
        path: identity.cert_file.clone(),
        reason: format!("with {}: {error}", identity.key_file.display()),
    };
    let own = identity.read()?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(read_root_certs(ca_file)?)
        .with_client_auth_cert(own.chain, own.key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
