//! Distributes cluster config changes: every process subscribes to the config of each node that it is connected to.
//! Gateways and nodes do so alike, so a change sent to any node soon reaches all.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_cluster::ClusterConfig;
use holdfast_supervise::TaskSet;
use holdfast_types::Topic;
use tokio::time::sleep;

use crate::channel::NodeChannel;
use crate::local_call::LocalNode;
use crate::router::Inner;
use crate::subscription::{Publisher, Subscription};

/// Delay before a config that can't follow the current one is fetched again.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Follows the node's config as long as its channel exists. For a node of this process, see [`start_local`].
pub(super) fn start(inner: &Arc<Inner>, node: &str, channel: &Arc<NodeChannel>) {
    let Some(tasks) = channel.tasks() else { return };
    let (weak, channel, node) = (Arc::downgrade(inner), Arc::downgrade(channel), node.to_owned());
    tasks.spawn_restarting("config_watch", move || run(Weak::clone(&weak), Weak::clone(&channel), node.clone()));
}

/// Follows the config of the node of this process until `tasks` end. For gateways: a node applies its config to its own
/// router itself.
pub(super) fn start_local(tasks: &TaskSet, inner: &Arc<Inner>, node: &LocalNode) {
    let channel = Arc::new(NodeChannel::Local(node.clone(), Arc::default()));
    let (weak, node) = (Arc::downgrade(inner), node.node_id.clone());
    tasks.spawn_restarting("config_watch", move || run(Weak::clone(&weak), Arc::downgrade(&channel), node.clone()));
}

async fn run(inner: Weak<Inner>, channel: Weak<NodeChannel>, node: String) {
    let after_known = || inner.upgrade().map(|inner| inner.known_version() + 1);
    let publisher = Publisher::Node(channel, node);
    let mut configs: Subscription<String> =
        Subscription::new(publisher, Topic::ClusterConfig, after_known(), Duration::MAX);
    loop {
        // The subscription backs off by itself.
        let Ok(update) = configs.next().await else { continue };
        for config in update.items {
            let Some(inner) = inner.upgrade() else { return };
            if !check_and_offer(&inner, &config) {
                sleep(RETRY_DELAY).await;
                configs.restart(after_known());
            }
        }
    }
}

/// Checks that the config can follow the current one, and offers it.
fn check_and_offer(inner: &Inner, text: &str) -> bool {
    let checked = ClusterConfig::from_json(text).and_then(|next| {
        inner.map().config().check_transition(&next)?;
        Ok(next)
    });
    match checked {
        Ok(next) => {
            inner.offer_config(next);
            true
        }
        Err(error) => {
            // It may have been applied from another node meanwhile.
            let later = ClusterConfig::from_json(text).is_ok_and(|next| next.version > inner.known_version());
            if later {
                tracing::error!(%error, "incompatible cluster config from node");
            }
            !later
        }
    }
}
