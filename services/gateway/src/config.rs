//! Starting the inner half of a gateway.

use std::sync::Arc;

use holdfast_auth::{
    ClusterSecret, OperatorToken, OperatorVerifier, ServiceSigner, SigningKeys, SigningPlan, UnsignedError,
};
use holdfast_cluster::{ClusterConfig, ConfigError, ShardMap};

use crate::directory::{Directory, RateLimits};
use crate::events::{Places, Questions};
use crate::service::{Inner, Service, Tokens};
use holdfast_routing::{Connector, Router, RoutingOptions, TcpConnector};
use tokio_util::sync::CancellationToken;

/// What a gateway needs to know.
pub struct GatewayOptions {
    /// Where the shards are.
    pub cluster_config: ClusterConfig,
    /// What proves to nodes that this process belongs to the cluster.
    pub cluster_secret: ClusterSecret,
    /// Knows the operator token by its hash.
    pub operator: OperatorVerifier,
    /// When the keys that sign tokens and grants change; the same for every gateway of a cluster.
    pub signing: SigningPlan,
    /// How nodes name this process in their logs, like `gateway 127.0.0.1:8080`.
    pub process_name: String,
    /// How connections to nodes are made.
    pub connector: Arc<dyn Connector>,
    /// Times of routing.
    pub routing: RoutingOptions,
}

impl GatewayOptions {
    /// The usual options: TCP, and times that fit failovers of about two seconds.
    pub fn new(
        cluster_config: ClusterConfig,
        cluster_secret: ClusterSecret,
        operator_token: &OperatorToken,
        process_name: impl Into<String>,
    ) -> Self {
        Self {
            cluster_config,
            cluster_secret,
            operator: OperatorVerifier::new(operator_token),
            signing: SigningPlan::default(),
            process_name: process_name.into(),
            connector: Arc::new(TcpConnector),
            routing: RoutingOptions::default(),
        }
    }
}

/// A gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster config is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nothing could be signed.
    #[error(transparent)]
    Unsigned(#[from] UnsignedError),
}

/// Starts gateways.
pub struct Gateway;

impl Gateway {
    /// Connects to the nodes and begins to follow the accounts shard, in the background: nodes may come up later. Needs
    /// a tokio runtime. [`Service::shutdown`] ends it.
    ///
    /// # Errors
    /// When the cluster config is refused.
    pub fn start(options: GatewayOptions) -> Result<Service, StartError> {
        let map = ShardMap::new(options.cluster_config)?;
        let tokens = Tokens::new(SigningKeys::new(&options.cluster_secret, options.signing)?);
        let signer = ServiceSigner::new(&options.cluster_secret, options.process_name);
        // Another one at every start, so that nodes do not take this process for its predecessor.
        let caller_id = uuid::Uuid::new_v4().to_string();
        let router = Router::start(map, signer, caller_id, options.connector, options.routing);
        router.keep_current();
        let directory = Directory::start(router.clone());
        Ok(Service::new(Inner {
            router,
            directory,
            rates: RateLimits::default(),
            turns: Arc::default(),
            operator: options.operator,
            tokens,
            cluster_secret: options.cluster_secret,
            watchers: Places::default(),
            questions: Questions::default(),
            stopping: CancellationToken::new(),
        }))
    }
}
