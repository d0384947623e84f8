//! Distributes cluster config changes: every process connected to a node long-polls it for a later config. Gateways and
//! nodes do so alike, so a change sent to any node soon reaches all.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_cluster::ClusterConfig;
use holdfast_proto::internal::operations_service_client::OperationsServiceClient;
use holdfast_proto::internal::{ConfigAnswer, GetConfigRequest};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::channel::NodeChannel;
use crate::http::HttpCaller;
use crate::router::Inner;

/// How long a node defers its reply.
const LONG_POLL: Duration = Duration::from_secs(20);
/// Timeout of the reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(25);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts while the node is not reached.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Delay for a node of an earlier release, which does not know the call.
const LONG_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Polls the node as long as its channel exists. A node of this process is told of changes by other ways.
pub(super) fn start(inner: &Arc<Inner>, address: &str, link: &NodeChannel) {
    let Some(tasks) = link.tasks() else { return };
    let (weak, caller, address) = (Arc::downgrade(inner), Arc::clone(inner.caller()), address.to_owned());
    tasks.spawn_restarting("config_watch", move || run(Weak::clone(&weak), Arc::clone(&caller), address.clone()));
}

async fn run(inner: Weak<Inner>, caller: Arc<HttpCaller>, address: String) {
    let mut channel = None;
    loop {
        let Some(known) = inner.upgrade().map(|inner| inner.known_version()) else { return };
        if channel.is_none() {
            channel = timeout(CONNECT_TIMEOUT, caller.connect(&address)).await.ok().and_then(Result::ok);
        }
        let Some(connected) = channel.clone() else {
            sleep(RETRY_DELAY).await;
            continue;
        };
        match poll(&caller, connected, known).await {
            Ok(answer) if answer.config.is_empty() => {}
            Ok(answer) => {
                let Some(inner) = inner.upgrade() else { return };
                if !check_and_offer(&inner, &answer.config) {
                    sleep(LONG_RETRY_DELAY).await;
                }
            }
            Err(status) => {
                channel = None;
                sleep(if status.code() == Code::Unimplemented { LONG_RETRY_DELAY } else { RETRY_DELAY }).await;
            }
        }
    }
}

async fn poll(caller: &HttpCaller, channel: Channel, known_version: u64) -> Result<ConfigAnswer, Status> {
    let hold_ms = u32::try_from(LONG_POLL.as_millis()).unwrap_or(u32::MAX);
    let request = caller.request(GetConfigRequest { known_version, hold_ms });
    let request = request.map_err(|error| Status::unauthenticated(error.to_string()))?;
    let mut client =
        OperationsServiceClient::new(channel).max_decoding_message_size(super::admin_client::MAX_CONFIG_BYTES);
    let asking = client.get_config(request);
    let answered =
        timeout(RESPONSE_TIMEOUT, asking).await.map_err(|_| Status::deadline_exceeded("no answer in time"))?;
    answered.map(tonic::Response::into_inner)
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
                tracing::error!(%error, "a node has a cluster config that can't follow the one in use here");
            }
            !later
        }
    }
}
