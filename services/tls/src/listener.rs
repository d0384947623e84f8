//! A listener whose connections are ready to be read, encrypted or not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_supervise::{TaskSet, spawn_temporary};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::ServerTls;
use crate::port::{PortConnection, PortConnections};

/// Connections that are ready and were not taken yet.
const MAX_READY: usize = 16;
/// Delay after an accept failed for want of file descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A connection.
pub type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it counts as a process of the cluster: it presented a certificate, or none are in use.
    pub has_client_cert: bool,
}

/// A connection whose TLS handshake is done, and the guard that counts it.
type ReadyConnection = (Stream, PeerInfo, PortConnection);

/// Accepts the next connection of a socket. If a peer disconnects before that, the next one follows; after any other
/// error, such as a lack of file descriptors, it tries again after 50 ms. Cancellation loses no connection.
pub async fn accept_one(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The peer disconnected before it was accepted; this is not our error.
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Accepts connections. Handshakes run concurrently, so that a peer that sends nothing blocks no other peer; at the
/// bounds of the port, new ones end old ones.
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<ReadyConnection>,
    /// Accepts, for as long as this value lives.
    _tasks: TaskSet,
}

impl Listener {
    /// Starts to accept, and counts the connections in `port`; with `tls` they are encrypted. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the socket does not know its address.
    pub fn new(listener: TcpListener, tls: Option<ServerTls>, port: Arc<PortConnections>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (accepted, ready) = mpsc::channel(MAX_READY);
        let (listener, tasks) = (Arc::new(listener), TaskSet::of_process());
        tasks.spawn_restarting("accept", move || {
            accept_loop(Arc::clone(&listener), tls.clone(), Arc::clone(&port), accepted.clone())
        });
        Ok(Self { address, ready, _tasks: tasks })
    }

    /// Returns the next connection, and what counts it: drop that when the connection is over.
    pub async fn accept(&mut self) -> (Stream, PeerInfo, PortConnection) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // The accepting task ends only with this value.
            None => std::future::pending().await,
        }
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept_loop(
    listener: Arc<TcpListener>,
    tls: Option<ServerTls>,
    port: Arc<PortConnections>,
    accepted: mpsc::Sender<ReadyConnection>,
) {
    loop {
        let (stream, address) = accept_one(&listener).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%address, %error, "answers may be delayed: TCP_NODELAY cannot be set");
        }
        let connection = port.accept(address.ip());
        spawn_temporary("handshake", deliver(stream, address, tls.clone(), accepted.clone(), connection));
    }
}

async fn deliver(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<ServerTls>,
    accepted: mpsc::Sender<ReadyConnection>,
    connection: PortConnection,
) {
    let ended = connection.ended();
    let delivering = async move {
        let (stream, peer) = match tls {
            None => (Either::Left(stream), PeerInfo { address, has_client_cert: true }),
            Some(tls) => {
                let stream = tls.perform_handshake(stream).await?;
                let has_client_cert = stream.get_ref().1.peer_certificates().is_some();
                (Either::Right(stream), PeerInfo { address, has_client_cert })
            }
        };
        // If the receiver is gone, the connection ends.
        let _ = accepted.send((stream, peer, connection)).await;
        Ok::<(), io::Error>(())
    };
    match ended.run_until_cancelled(delivering).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%address, %error, "the TLS handshake with a peer failed"),
        None => tracing::debug!(%address, "a handshake was ended: too many others came meanwhile"),
    }
}
