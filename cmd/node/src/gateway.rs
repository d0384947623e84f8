//! The gateway that a node may have: the calls of its clients to shards that this node leads stay in the process.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use holdfast_auth::OperatorToken;
use holdfast_backend::{Backend, BackendOptions, Service};
use holdfast_gateway::{FrontendArgs, Frontends};
use holdfast_node::{MetricsText, Node, NodeOptions};
use holdfast_routing::Dialer;
use holdfast_runtime::{SigningArgs, TlsArgs, max_client_connections};

/// Flags of the node's gateway. All but the first one have an effect only together with it.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    /// Serve clients on this address too, as holdfast-gateway does: one port carries REST, gRPC, health and metrics.
    /// Clients learn of it by `gateway_address` of this node in the cluster config. Without this flag there is no
    /// gateway, and the flags for clients have no effect (--tls-…, --signing-key-…, --refused-…, --dlocks-…,
    /// --locktopus-…).
    #[arg(long, env = "HOLDFAST_GATEWAY_LISTEN", value_name = "HOST:PORT")]
    gateway_listen: Option<SocketAddr>,
    #[command(flatten)]
    frontends: FrontendArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    signing: SigningArgs,
}

/// A gateway in the process of a node.
pub(crate) struct Gateway {
    frontends: Frontends,
    service: Service,
}

impl GatewayArgs {
    /// Binds the gateway's ports, if there is to be one.
    pub(crate) async fn bind(&self, insecure: bool) -> Result<Option<Frontends>> {
        let Some(listen) = self.gateway_listen else { return Ok(None) };
        let bind = async |address| anyhow::Ok(self.tls.bind(address, insecure).await?);
        let frontends = Frontends::bind(listen, &self.frontends, self.tls.load()?, bind).await?;
        Ok(Some(frontends.with_max_connections(max_client_connections())))
    }

    /// Starts the gateway of a node on its bound ports. `options` are those that the node was opened with.
    pub(crate) fn start(
        &self,
        frontends: Frontends,
        node: &Node,
        options: &NodeOptions,
        operator_token: &OperatorToken,
        dialer: Arc<dyn Dialer>,
    ) -> Result<Gateway> {
        let (node_id, cluster_secret) = (&options.node_id, options.cluster_secret.clone());
        // The node's config may be a later one than that of the file.
        let config = node.cluster_config();
        if config.node(node_id).is_none_or(|node| node.gateway_address.is_none()) {
            tracing::warn!(
                node = node_id,
                "the cluster config has no gateway_address for this node, so clients are not told of its gateway"
            );
        }
        let process_name = format!("gateway of {node_id}");
        let mut backend = BackendOptions::new(config, cluster_secret, operator_token, process_name);
        backend.dialer = dialer;
        backend.local_node = Some(node.local());
        backend.signing = self.signing.rotation();
        backend.refused_credentials_per_second = self.frontends.refused_credentials_per_second();
        Ok(Gateway { frontends, service: Backend::start(backend)? })
    }
}

impl Gateway {
    /// Serves clients until `running` ends. Then completes the calls in flight, closes the connections to the nodes,
    /// and returns what `running` returned.
    pub(crate) async fn serve_while(
        self,
        metrics: MetricsText,
        running: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let result = self.frontends.serve_while(self.service.clone(), metrics, running).await?;
        self.service.shutdown().await;
        result
    }
}
