//! Connections over the simulated network.

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{Stream, stream};
use holdfast_rpc::{ByteStream, ConnectError, Dialer, Incoming};
use turmoil::net::{TcpListener, TcpStream};

use crate::host_state::HostState;
use crate::lost_messages::CountedStream;
use crate::world::World;

/// Every node listens here.
pub(crate) const PORT: u16 = 7_000;

/// Simulated TCP.
pub(crate) struct SimConnector {
    world: Arc<World>,
    /// Whether its messages are among those that may be lost one by one.
    is_counted: bool,
}

impl SimConnector {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, is_counted: false })
    }

    /// The same with messages that [`World::lost`] counts.
    pub(crate) fn counted(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, is_counted: true })
    }
}

impl Dialer for SimConnector {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<ByteStream, ConnectError>> {
        let (world, address, is_counted) = (Arc::clone(&self.world), address.to_owned(), self.is_counted);
        Box::pin(async move {
            let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
            match TcpStream::connect((host, port.parse().unwrap_or(PORT))).await {
                Ok(stream) if is_counted => {
                    let counted = CountedStream::new(Box::new(stream), Arc::clone(&world.lost));
                    Ok(Box::new(counted) as ByteStream)
                }
                Ok(stream) => Ok(Box::new(stream) as ByteStream),
                // The simulated network refuses what it loses. Only a host whose process is gone refuses; others keep
                // silent.
                Err(error) if world.hosts.get(host) == HostState::ConnectionRefused => {
                    Err(ConnectError::refused(error.to_string()))
                }
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// Listens, and returns the connections.
pub(crate) async fn listen() -> io::Result<impl Stream<Item = Incoming<()>> + Send> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    Ok(stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let incoming = Incoming { stream: Box::new(stream), peer: (), has_cert: true, counted: None };
                    return Some((incoming, listener));
                }
                // The peer is gone already.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }))
}
