//! Opens connections to nodes; another network can be substituted here.

use std::time::Duration;

use futures::future::BoxFuture;
use holdfast_tls::ClientTls;
use hyper_util::rt::TokioIo;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Interval of keep-alives on an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a node may take to answer a keep-alive before the connection is closed.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// A node can't be reached.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ConnectError {
    reason: String,
    is_refused: bool,
}

impl ConnectError {
    /// Creates an error with a human-readable reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_refused: false }
    }

    /// Creates an error for a refused connection: the machine is up and no process listens at the port.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_refused: true }
    }

    /// Returns true if the machine is up and no process listens at the port, so that the process is gone.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }
}

/// Opens connections to nodes.
pub trait Dialer: Send + Sync + 'static {
    /// Connects to `address` (`host:port`). The caller applies the timeout.
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Channel, ConnectError>>;
}

/// HTTP/2 over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl Dialer for TcpDialer {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        let endpoint = endpoint(address);
        Box::pin(async move { endpoint?.connect().await.map_err(|error| connect_error(&error)) })
    }
}

/// HTTP/2 over TLS, with certificates on both sides.
#[derive(Clone, Debug)]
pub struct TlsDialer(ClientTls);

impl TlsDialer {
    /// Creates a dialer with the certificates of this process.
    pub fn new(tls: ClientTls) -> Self {
        Self(tls)
    }
}

impl Dialer for TlsDialer {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        let (endpoint, tls, address) = (endpoint(address), self.0.clone(), address.to_owned());
        Box::pin(async move {
            // The endpoint has no TLS of its own: the connector returns an encrypted stream.
            let connect = service_fn(move |_: Uri| {
                let (tls, address) = (tls.clone(), address.clone());
                async move { tls.connect(&address).await.map(TokioIo::new) }
            });
            endpoint?.connect_with_connector(connect).await.map_err(|error| connect_error(&error))
        })
    }
}

fn endpoint(address: &str) -> Result<Endpoint, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| ConnectError::new(error.to_string()))?;
    Ok(endpoint
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

fn connect_error(error: &tonic::transport::Error) -> ConnectError {
    ConnectError { reason: error_chain(error), is_refused: was_refused(error) }
}

/// Returns true if the root cause is a refused connection.
fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

/// Formats an error with its causes: the transport puts the useful part last. Text that repeats its cause appears once.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let deeper = error.to_string();
        if !text.ends_with(&deeper) {
            text = format!("{text}: {deeper}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        cause: Option<Box<Layer>>,
    }

    #[test]
    fn what_a_cause_repeats_is_said_once() {
        let layers = [
            "BadSignature",
            "invalid certificate: BadSignature",
            "invalid certificate: BadSignature",
            "transport error",
        ];
        let wrap = |cause: Option<Box<Layer>>, text| Some(Box::new(Layer { text, cause }));
        let error = layers.into_iter().fold(None, wrap).unwrap();
        assert_eq!(error_chain(&*error), "transport error: invalid certificate: BadSignature");
    }
}
