//! The way to every shard.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use holdfast_auth::ServiceSigner;
use holdfast_cluster::{Application, ShardMap};
use holdfast_core::{Command, Query, Reply, codec};
use tokio::time::Instant;

use crate::connection::Caller;
use crate::course::Course;
use crate::leaders::ShardRoute;
use crate::link::{Body, NodeLink};
use crate::{Connector, Repeat, RouteError, Routed, RoutingOptions};

/// Sends commands and queries to the shards that own their keys. A cheap clone.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

struct Inner {
    map: ShardMap,
    routes: HashMap<String, ShardRoute>,
    links: Vec<(String, Arc<NodeLink>)>,
    options: RoutingOptions,
}

impl Router {
    /// Begins to connect to every node of the config. `signer` proves that this process belongs to the cluster;
    /// `caller_id` must be another one at every start of the process. Needs a tokio runtime.
    pub fn start(
        map: ShardMap,
        signer: ServiceSigner,
        caller_id: String,
        connector: Arc<dyn Connector>,
        options: RoutingOptions,
    ) -> Self {
        let caller = Arc::new(Caller { connector, id: caller_id, signer, connections: AtomicU64::new(1) });
        let links: Vec<(String, Arc<NodeLink>)> = map
            .config()
            .nodes
            .iter()
            .map(|node| {
                let link = NodeLink::start(&node.id, &node.address, caller.clone(), &options);
                (node.id.clone(), Arc::new(link))
            })
            .collect();
        let routes = Application::ALL
            .into_iter()
            .flat_map(|application| map.shards(application))
            .map(|shard| (shard.id.clone(), ShardRoute::new(shard, &map, &links)))
            .collect();
        Self { inner: Arc::new(Inner { map, routes, links, options }) }
    }

    /// Sends a command to the shard that owns the key.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] only when nothing was done; [`RouteError::OutcomeUnknown`] when it may have been.
    pub async fn command(
        &self,
        application: Application,
        key: u32,
        command: &Command,
        repeat: Repeat,
        deadline: Instant,
    ) -> Result<Routed, RouteError> {
        let body = Body::Command(Bytes::from(codec::encode(command)));
        let mut course = Course::new(self.route(application, key), &self.inner.options, body, repeat, deadline);
        let bytes = course.run().await?;
        let reply = read(course.shard_id(), &bytes)?;
        Ok(Routed { reply, maybe_done_before: course.maybe_done_before() })
    }

    /// Sends a query to the shard that owns the key.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] when there is no answer in time.
    pub async fn query(
        &self,
        application: Application,
        key: u32,
        query: &Query,
        deadline: Instant,
    ) -> Result<Reply, RouteError> {
        let body = Body::Query(Bytes::from(codec::encode(query)));
        let route = self.route(application, key);
        let mut course = Course::new(route, &self.inner.options, body, Repeat::InLaterTerm, deadline);
        let bytes = course.run().await?;
        read(course.shard_id(), &bytes)
    }

    /// Ends the connections.
    pub async fn shutdown(&self) {
        for (_, link) in &self.inner.links {
            link.shutdown().await;
        }
    }

    fn route(&self, application: Application, key: u32) -> &ShardRoute {
        let shard = self.inner.map.shard_for(application, key);
        // The routes were made from this very map.
        &self.inner.routes[&shard.id]
    }
}

fn read(shard: &str, bytes: &[u8]) -> Result<Reply, RouteError> {
    codec::decode(bytes).map_err(|error| {
        tracing::error!(shard, %error, "a reply cannot be read");
        RouteError::Damaged { shard: shard.to_owned(), reason: error.to_string() }
    })
}
