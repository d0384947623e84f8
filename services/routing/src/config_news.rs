//! How a change of the cluster config spreads: whoever is connected to a node asks it for a later one, and the node
//! answers once it has one. Gateways and nodes do so alike, so that whichever node is told first, all soon know.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_cluster::ClusterConfig;
use holdfast_proto::internal::operations_service_client::OperationsServiceClient;
use holdfast_proto::internal::{ConfigAnswer, GetConfigRequest};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::connection::Caller;
use crate::link::NodeLink;
use crate::router::Inner;

/// How long a node holds its answer back.
const HOLD: Duration = Duration::from_secs(20);
/// After that an answer is not waited for any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Between two attempts at a node that is not reached.
const PAUSE: Duration = Duration::from_millis(500);
/// A node of an earlier release does not know the call.
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Asks that node for as long as there is a link to it.
pub(super) fn follow(inner: &Arc<Inner>, address: &str, link: &NodeLink) {
    let (weak, caller, address) = (Arc::downgrade(inner), Arc::clone(inner.caller()), address.to_owned());
    link.tasks().keep("config news", move || ask_on(Weak::clone(&weak), Arc::clone(&caller), address.clone()));
}

async fn ask_on(inner: Weak<Inner>, caller: Arc<Caller>, address: String) {
    let mut channel = None;
    loop {
        let Some(known) = inner.upgrade().map(|inner| inner.known_version()) else { return };
        if channel.is_none() {
            channel = timeout(CONNECT_WITHIN, caller.connector.connect(&address)).await.ok().and_then(Result::ok);
        }
        let Some(connected) = channel.clone() else {
            sleep(PAUSE).await;
            continue;
        };
        match ask(&caller, connected, known).await {
            Ok(answer) if answer.config.is_empty() => {}
            Ok(answer) => {
                let Some(inner) = inner.upgrade() else { return };
                if !take(&inner, &answer.config) {
                    sleep(LONG_PAUSE).await;
                }
            }
            Err(status) => {
                channel = None;
                sleep(if status.code() == Code::Unimplemented { LONG_PAUSE } else { PAUSE }).await;
            }
        }
    }
}

async fn ask(caller: &Caller, channel: Channel, known_version: u64) -> Result<ConfigAnswer, Status> {
    let hold_ms = u32::try_from(HOLD.as_millis()).unwrap_or(u32::MAX);
    let mut request = Request::new(GetConfigRequest { known_version, hold_ms });
    caller.authorize(request.metadata_mut()).map_err(|error| Status::unauthenticated(error.to_string()))?;
    let mut client = OperationsServiceClient::new(channel).max_decoding_message_size(super::operations::MAX_CONFIG);
    let asking = client.get_config(request);
    let answered = timeout(ANSWER_WITHIN, asking).await.map_err(|_| Status::deadline_exceeded("no answer in time"))?;
    answered.map(tonic::Response::into_inner)
}

/// Whether the config can follow the one in use.
fn take(inner: &Inner, text: &str) -> bool {
    let checked = ClusterConfig::from_json(text).and_then(|next| {
        inner.map().config().check_successor(&next)?;
        Ok(next)
    });
    match checked {
        Ok(next) => {
            inner.hear_of(next);
            true
        }
        Err(error) => {
            // It may have been taken over from another node meanwhile.
            let later = ClusterConfig::from_json(text).is_ok_and(|next| next.version > inner.known_version());
            if later {
                tracing::error!(%error, "a node has a cluster config that can't follow the one in use here");
            }
            !later
        }
    }
}
