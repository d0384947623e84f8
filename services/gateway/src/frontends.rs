//! All frontends of a gateway: a port for every protocol, and one for Locktopus clients if it is enabled.
//!
//! The ports are bound first and served later, so that a program that finds its port in use has changed nothing yet.

use std::io;
use std::net::SocketAddr;

use holdfast_backend::Service;
use holdfast_tls::ServerTls;
use holdfast_types::limit;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::args::FrontendArgs;
use crate::grpc::DescriptorsError;
use crate::locktopus::{LocktopusOptions, serve_locktopus};
use crate::rest::health::MetricsRenderer;
use crate::server::{ServerOptions, serve};

/// Connections at a time on the port for Locktopus clients, if that is less than half of all.
const MAX_LOCKTOPUS_CONNECTIONS: usize = 1_000;

/// The bound ports of a gateway.
pub struct Frontends {
    listener: TcpListener,
    address: SocketAddr,
    locktopus: Option<LocktopusPort>,
    tls: Option<ServerTls>,
    dlocks_account_metadata: bool,
    max_connections: usize,
}

/// The port for Locktopus clients.
struct LocktopusPort {
    listener: TcpListener,
    address: SocketAddr,
    options: LocktopusOptions,
}

impl Frontends {
    /// Binds `listen`, and the port for Locktopus clients if `args` enable it, with `bind`, which also decides whether
    /// the address may be used. With `tls`, both ports are encrypted.
    ///
    /// # Errors
    /// When `bind` fails, or the system does not name a bound address.
    pub async fn bind<E: From<io::Error>>(
        listen: SocketAddr,
        args: &FrontendArgs,
        tls: Option<ServerTls>,
        bind: impl AsyncFn(SocketAddr) -> Result<TcpListener, E>,
    ) -> Result<Self, E> {
        let listener = bind(listen).await?;
        let address = listener.local_addr()?;
        let locktopus = match args.locktopus() {
            Some((listen, options)) => {
                let listener = bind(listen).await?;
                Some(LocktopusPort { address: listener.local_addr()?, listener, options })
            }
            None => None,
        };
        let dlocks_account_metadata = args.dlocks_account_metadata;
        let max_connections = usize::try_from(limit::MAX_GATEWAY_CONNECTIONS).unwrap_or(usize::MAX);
        Ok(Self { listener, address, locktopus, tls, dlocks_account_metadata, max_connections })
    }

    /// Takes at most this many connections at a time, but one on each port, and never more than
    /// [`limit::MAX_GATEWAY_CONNECTIONS`]: each needs an open file. The port for Locktopus clients has half of them, or
    /// 1,000 if that is less.
    #[must_use]
    pub fn with_max_connections(self, max_connections: usize) -> Self {
        Self { max_connections: self.max_connections.min(max_connections), ..self }
    }

    /// Returns the address of the port for all clients but those of Locktopus, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address for Locktopus clients, if their frontend is enabled.
    pub fn locktopus_address(&self) -> Option<SocketAddr> {
        self.locktopus.as_ref().map(|port| port.address)
    }

    /// Returns true if clients need TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Serves all frontends until `running` ends. Then ends streams, waits for calls in flight, and returns what
    /// `running` returned. `service` stays usable: whoever started it shuts it down.
    ///
    /// # Errors
    /// When the built-in descriptors are unreadable.
    pub async fn serve_while<T>(
        self,
        service: Service,
        metrics: MetricsRenderer,
        running: impl Future<Output = T>,
    ) -> Result<T, DescriptorsError> {
        let Self { listener, address, locktopus, tls, dlocks_account_metadata, max_connections } = self;
        let (max_connections, max_of_locktopus) = match &locktopus {
            Some(_) => split_connections(max_connections),
            None => (max_connections, 0),
        };
        info!(%address, tls = tls.is_some(), max_connections, "gateway listening");
        let of_locktopus = (tls.clone(), service.clone());
        let options = ServerOptions { service, dlocks_account_metadata, metrics, tls, max_connections };
        let stopped = CancellationToken::new();
        let serving_locktopus = async {
            if let Some(LocktopusPort { listener, address, options }) = locktopus {
                info!(%address, max_connections = max_of_locktopus, "gateway listening for Locktopus clients");
                let (tls, service) = of_locktopus;
                serve_locktopus(listener, tls, service, options, max_of_locktopus, stopped.cancelled()).await;
            }
        };
        let ending = async {
            let outcome = running.await;
            stopped.cancel();
            outcome
        };
        let (served, (), outcome) =
            tokio::join!(serve(listener, options, stopped.cancelled()), serving_locktopus, ending);
        served.map(|()| outcome)
    }
}

/// Returns how many of these connections the port for all clients has, and that for Locktopus clients: none takes the
/// files of the other's.
fn split_connections(max: usize) -> (usize, usize) {
    let of_locktopus = (max / 2).clamp(1, MAX_LOCKTOPUS_CONNECTIONS);
    (max.saturating_sub(of_locktopus).max(1), of_locktopus)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser;
    use tokio::net::TcpStream;

    use super::*;
    use crate::test_cluster::TestCluster;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        frontends: FrontendArgs,
    }

    #[test]
    fn both_ports_together_have_as_many_connections_as_the_gateway() {
        let split = [10_000, 2_002, 2_000, 101, 2, 1, 0].map(split_connections);
        assert_eq!(split, [(9_000, 1_000), (1_002, 1_000), (1_000, 1_000), (51, 50), (1, 1), (1, 1), (1, 1)]);
    }

    #[tokio::test]
    async fn ports_are_open_until_what_runs_beside_them_has_ended() {
        let cluster = TestCluster::start().await;
        let flags = ["program", "--locktopus-listen", "127.0.0.1:0", "--locktopus-account", "demo"];
        let args = Program::parse_from(flags).frontends;
        let bind = async |address: SocketAddr| TcpListener::bind(address).await;
        let frontends = Frontends::bind("127.0.0.1:0".parse().unwrap(), &args, None, bind).await.unwrap();
        let ports = [frontends.address(), frontends.locktopus_address().unwrap()];
        let running = async {
            let health = reqwest::get(format!("http://{}/healthz", ports[0])).await.unwrap();
            assert_eq!(health.status(), 200);
            TcpStream::connect(ports[1]).await.unwrap();
            "outcome"
        };
        let outcome = frontends.serve_while(cluster.service.clone(), Arc::new(String::new), running).await;
        assert_eq!(outcome.unwrap(), "outcome");
        for port in ports {
            assert!(TcpStream::connect(port).await.is_err(), "{port} is still open");
        }
    }
}
