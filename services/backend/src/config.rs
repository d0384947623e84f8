//! Options and start of the backend of a gateway.

use std::sync::Arc;
use std::time::Duration;

use holdfast_auth::{
    ClusterSecret, KeyRotation, OperatorToken, OperatorVerifier, ServiceSigner, SigningError, SigningKeys,
};
use holdfast_clock::Clocks;
use holdfast_cluster::{ClusterConfig, ConfigError, ShardMap};
use holdfast_routing::{Dialer, LocalNode, Router, RoutingOptions, TcpDialer};
use tokio_util::sync::CancellationToken;

use crate::Service;
use crate::account_connections::AccountConnections;
use crate::account_rates::AccountRates;
use crate::admission::{Admission, DeferredCalls};
use crate::auth_cache::AuthCache;
use crate::buffers::BufferBudgets;
use crate::directory::Directory;
use crate::events::{EventFeeds, WatcherLimiter};
use crate::ops::TokenIssuer;
use crate::service::Inner;
use crate::session::RetainedLedgers;
use crate::strangers::Strangers;

/// How long heavy work keeps other heavy work waiting: what takes longer waits for a shard that others may not need.
const MAX_HEAVY_TIME: Duration = Duration::from_millis(100);
/// Reports of sessions in progress, and how long one keeps others waiting.
const MAX_REPORTS: usize = 256;
const MAX_REPORT_TIME: Duration = Duration::from_millis(500);
/// Sessions that are subscribing again, and how long one keeps others waiting.
const MAX_SUBSCRIPTION_STARTS: usize = 256;
const MAX_START_TIME: Duration = Duration::from_millis(100);

/// The options of a gateway.
pub struct BackendOptions {
    /// The locations of the shards.
    pub cluster_config: ClusterConfig,
    /// Proves to nodes that this process belongs to the cluster.
    pub cluster_secret: ClusterSecret,
    /// Checks the operator token by its hash.
    pub operator: OperatorVerifier,
    /// When the keys that sign tokens and grants rotate; the same for every gateway of a cluster.
    pub signing: KeyRotation,
    /// Names this process in the logs of nodes, like `gateway 127.0.0.1:8080`.
    pub process_name: String,
    /// Opens connections to nodes.
    pub dialer: Arc<dyn Dialer>,
    /// Timeouts and delays of routing.
    pub routing: RoutingOptions,
    /// The node of this process, if there is one: its calls stay in the process.
    pub local_node: Option<LocalNode>,
    /// They age what the gateway knows of accounts and keys.
    pub clocks: Clocks,
    /// How many credentials from one address may be refused in a second; 0 for any number.
    pub refused_credentials_per_second: u32,
}

impl BackendOptions {
    /// Returns the default options: TCP, and timeouts that fit failovers of about two seconds.
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
            signing: KeyRotation::default(),
            process_name: process_name.into(),
            dialer: Arc::new(TcpDialer),
            routing: RoutingOptions::default(),
            local_node: None,
            clocks: Clocks::default(),
            refused_credentials_per_second: Strangers::REFUSED_PER_SECOND,
        }
    }
}

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The cluster config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Signing failed.
    #[error(transparent)]
    Unsigned(#[from] SigningError),
}

/// Starts the backend of a gateway.
pub struct Backend;

impl Backend {
    /// Connects to the nodes and follows the accounts shard in the background, so nodes may start later. Needs a tokio
    /// runtime. [`Service::shutdown`] ends it.
    ///
    /// # Errors
    /// When the cluster config is invalid.
    pub fn start(options: BackendOptions) -> Result<Service, StartError> {
        let map = ShardMap::new(options.cluster_config)?;
        let tokens = TokenIssuer::new(SigningKeys::new(&options.cluster_secret, options.signing)?);
        let signer = ServiceSigner::new(&options.cluster_secret, options.process_name);
        // A new id at every start, so that nodes do not confuse this process with its predecessor.
        let caller_id = uuid::Uuid::new_v4().to_string();
        let local_node = options.local_node.clone();
        let router = Router::start(map, signer, caller_id, options.dialer, options.routing, options.local_node);
        router.follow_config_updates();
        let admission = Arc::<Admission>::default();
        let directory = Directory::start(router.clone(), Arc::clone(&admission), options.clocks.clone());
        Ok(Service::new(Inner {
            router,
            directory,
            checked_callers: AuthCache::default(),
            rates: AccountRates::default(),
            strangers: Strangers::new(options.refused_credentials_per_second),
            admission,
            heavy_admission: Arc::new(Admission::fixed(1, MAX_HEAVY_TIME)),
            report_admission: Arc::new(Admission::fixed(MAX_REPORTS, MAX_REPORT_TIME)),
            subscription_admission: Arc::new(Admission::fixed(MAX_SUBSCRIPTION_STARTS, MAX_START_TIME)),
            deferred_calls: DeferredCalls::default(),
            buffers: BufferBudgets::default(),
            connections: AccountConnections::default(),
            operator: options.operator,
            tokens,
            cluster_secret: options.cluster_secret,
            clocks: options.clocks,
            watchers: WatcherLimiter::default(),
            event_feeds: EventFeeds::default(),
            retained_ledgers: RetainedLedgers::default(),
            local_node,
            stopping: CancellationToken::new(),
        }))
    }
}
