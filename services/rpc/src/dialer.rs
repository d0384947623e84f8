//! Opens byte streams to other processes; another network can be substituted here.

use std::io;

use futures::future::BoxFuture;
use holdfast_tls::ClientTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection as the system or a TLS library has it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of any kind.
pub type ByteStream = Box<dyn Stream>;

/// A process can't be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ConnectError {
    reason: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Refused,
    TimedOut,
    Other,
}

impl ConnectError {
    /// Creates an error with a human-readable reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), kind: Kind::Other }
    }

    /// Creates an error for a refused connection: the machine is up and no process listens at the port. Must not be used
    /// in any other case.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), kind: Kind::Refused }
    }

    pub(crate) fn timed_out() -> Self {
        Self { reason: "it did not accept a connection in time".to_owned(), kind: Kind::TimedOut }
    }

    /// Returns true if the machine is up and no process listens at the port, so that the process is gone.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Returns true if the process did not answer in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::refused(error.to_string()),
            _ => Self::new(error.to_string()),
        }
    }
}

/// Opens connections, for frames and for HTTP alike.
pub trait Dialer: Send + Sync + 'static {
    /// Connects to `address` (`host:port`). The caller applies the timeout.
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<ByteStream, ConnectError>>;
}

/// TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl Dialer for TcpDialer {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<ByteStream, ConnectError>> {
        let address = address.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as ByteStream)
        })
    }
}

/// TLS over TCP, with certificates on both sides.
#[derive(Clone, Debug)]
pub struct TlsDialer(ClientTls);

impl TlsDialer {
    /// Creates a dialer with the certificates of this process.
    pub fn new(tls: ClientTls) -> Self {
        Self(tls)
    }
}

impl Dialer for TlsDialer {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<ByteStream, ConnectError>> {
        let (tls, address) = (self.0.clone(), address.to_owned());
        Box::pin(async move { Ok(Box::new(tls.connect(&address).await?) as ByteStream) })
    }
}
