//! TLS of accepted connections.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_types::limit;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{Acceptor, WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use crate::files::read_root_certs;
use crate::handshake_limit::HandshakeLimit;
use crate::reload::HotReload;
use crate::{IdentityFiles, TlsError};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate that a client must present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// None.
    Disabled,
    /// A certificate that one of the authorities in this file signed.
    Required(PathBuf),
    /// The same, but clients without one are accepted too: later checks decide their permissions.
    Optional(PathBuf),
}

/// Encrypts accepted connections, with the certificate that the files contained last. Clones are cheap.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<HotReload<ServerConfig>>,
    /// Of all clones.
    handshakes: Arc<HandshakeLimit>,
}

impl ServerTls {
    /// Reads the files, and again whenever they change. Needs a tokio runtime.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn load(identity: IdentityFiles, clients: ClientAuth) -> Result<Self, TlsError> {
        let mut files = identity.paths().to_vec();
        if let ClientAuth::Required(path) | ClientAuth::Optional(path) = &clients {
            files.push(path.clone());
        }
        let config = HotReload::start(files, move || config(&identity, &clients))?;
        let max_handshakes = usize::try_from(limit::MAX_TLS_HANDSHAKES).unwrap_or(usize::MAX);
        Ok(Self { config, handshakes: Arc::new(HandshakeLimit::new(max_handshakes)) })
    }

    /// Performs the handshake with a connected peer, once the peer has begun it and fewer than
    /// [`limit::MAX_TLS_HANDSHAKES`] run. While others wait, one that takes over a second is ended, and sooner while
    /// many do. `admit` is told whether this one must wait, and returns whether it may begin.
    ///
    /// # Errors
    /// When it may not, when the handshake fails or does not finish within 10 s.
    pub async fn accept(
        &self,
        stream: TcpStream,
        admit: impl FnOnce(bool) -> bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let accepting = async {
            // Until a peer has said something, it costs nothing and takes no turn of another.
            let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            if !admit(self.handshakes.is_full()) {
                return Err(io::Error::other("there are too many handshakes with its address"));
            }
            let config = self.config.current();
            self.handshakes.run(async move { begun.into_stream(config).await }).await
        };
        timeout(HANDSHAKE_TIMEOUT, accepting).await?
    }

    /// The same for a port that has bounds of its own.
    pub(crate) async fn perform_handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.config.current());
        timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await?
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

fn config(identity: &IdentityFiles, clients: &ClientAuth) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let unusable = |path: &PathBuf, reason: String| TlsError::Unusable { path: path.clone(), reason };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&identity.cert_file, error.to_string()))?;
    let builder = match clients {
        ClientAuth::Disabled => builder.with_no_client_auth(),
        ClientAuth::Required(path) | ClientAuth::Optional(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(read_root_certs(path)?), provider);
            let verifier = match clients {
                ClientAuth::Optional(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| unusable(path, error.to_string()))?)
        }
    };
    let own = identity.read()?;
    let mut config = builder
        .with_single_cert(own.chain, own.key)
        .map_err(|error| unusable(&identity.cert_file, format!("with {}: {error}", identity.key_file.display())))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
