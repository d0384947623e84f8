//! A listener whose connections are ready to be read, encrypted or not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_supervise::{TaskOwner, TaskSet, spawn_temporary};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::ServerTls;

/// Maximum concurrent handshakes; further peers wait to be accepted, and delay no connected peer.
const MAX_HANDSHAKES: usize = 256;
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

/// Accepts connections. Handshakes run concurrently, so that a peer that sends nothing blocks no other peer.
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<(Stream, PeerInfo)>,
    /// Accepts, for as long as this value lives.
    _tasks: TaskSet,
}

impl Listener {
    /// Starts to accept; with `tls` connections are encrypted. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the socket does not know its address.
    pub fn new(listener: TcpListener, tls: Option<ServerTls>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (accepted, ready) = mpsc::channel(MAX_HANDSHAKES);
        let (listener, tasks) = (Arc::new(listener), TaskSet::new(TaskOwner::process()));
        tasks.spawn_restarting("accept", move || accept_loop(Arc::clone(&listener), tls.clone(), accepted.clone()));
        Ok(Self { address, ready, _tasks: tasks })
    }

    /// Returns the next connection.
    pub async fn accept(&mut self) -> (Stream, PeerInfo) {
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

async fn accept_loop(listener: Arc<TcpListener>, tls: Option<ServerTls>, accepted: mpsc::Sender<(Stream, PeerInfo)>) {
    let room = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%address, %error, "answers may be delayed: TCP_NODELAY cannot be set");
                }
                spawn_temporary("handshake", deliver(stream, address, tls.clone(), accepted.clone(), permit));
            }
            Err(error) => {
                use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
                // The peer disconnected before it was accepted; this is not our error.
                if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

async fn deliver(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<ServerTls>,
    accepted: mpsc::Sender<(Stream, PeerInfo)>,
    _permit: OwnedSemaphorePermit,
) {
    let ready = match tls {
        None => (Either::Left(stream), PeerInfo { address, has_client_cert: true }),
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => {
                let has_client_cert = stream.get_ref().1.peer_certificates().is_some();
                (Either::Right(stream), PeerInfo { address, has_client_cert })
            }
            Err(error) => {
                tracing::debug!(%address, %error, "no keys were agreed on with a peer");
                return;
            }
        },
    };
    // If the receiver is gone, the connection ends.
    let _ = accepted.send(ready).await;
}
