//! Connections over the simulated network.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::serve::Listener;
use futures::future::BoxFuture;
use holdfast_routing::{ConnectError, Dialer};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

use crate::host_state::HostState;
use crate::world::World;

/// Every node listens here.
pub(crate) const PORT: u16 = 7_000;
/// As the connector over real TCP has them.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// HTTP/2 over simulated TCP.
pub(crate) struct SimConnector {
    world: Arc<World>,
}

impl SimConnector {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world })
    }
}

impl Dialer for SimConnector {
    fn connect(&self, address: &str) -> BoxFuture<'static, Result<Channel, ConnectError>> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let world = Arc::clone(&self.world);
        Box::pin(async move {
            let endpoint = endpoint.map_err(|error| ConnectError::new(error.to_string()))?;
            let endpoint = endpoint
                .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
                .keep_alive_while_idle(true);
            let was_refused = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&was_refused);
            let connector = tower::service_fn(move |uri: Uri| dial(Arc::clone(&world), uri, Arc::clone(&told)));
            endpoint.connect_with_connector(connector).await.map_err(|error| {
                let refused = was_refused.load(Ordering::Relaxed);
                if refused { ConnectError::refused(error.to_string()) } else { ConnectError::new(error.to_string()) }
            })
        })
    }
}

async fn dial(world: Arc<World>, uri: Uri, was_refused: Arc<AtomicBool>) -> io::Result<TokioIo<TcpStream>> {
    let host = uri.host().unwrap_or_default().to_owned();
    match TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(PORT))).await {
        Ok(stream) => Ok(TokioIo::new(stream)),
        // The simulated network refuses what it loses. Only a host whose process is gone refuses; others keep silent.
        Err(error) if world.hosts.get(&host) == HostState::ConnectionRefused => {
            was_refused.store(true, Ordering::Relaxed);
            Err(error)
        }
        Err(_) => std::future::pending().await,
    }
}

/// Takes connections.
pub(crate) struct SimListener(TcpListener);

impl SimListener {
    pub(crate) async fn bind() -> io::Result<Self> {
        TcpListener::bind(("0.0.0.0", PORT)).await.map(Self)
    }
}

impl Listener for SimListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                // The peer is gone already.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
