//! Maintains the stream to a node and dispatches its replies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use holdfast_auth::ServiceSigner;
use holdfast_proto::internal::node_service_client::NodeServiceClient;
use holdfast_proto::internal::{Answer, AnswerFrame, answer};
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Streaming};

use crate::channel::{CallReply, ChannelState, ObservedRules, ReplySink};
use crate::frames::{FrameStream, Gate};
use crate::leader_cache::Leader;
use crate::{ConnectError, Dialer, RoutingOptions};

/// Largest frame of replies accepted: a page of locks with all details.
const MAX_FRAME_BYTES: usize = 64 << 20;
/// Shortest delay between connection attempts.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// A connection that lived this long was stable: the next attempt follows at once.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// This gateway's identity to nodes.
pub(super) struct ClientIdentity {
    pub(super) connector: Arc<dyn Dialer>,
    /// Drawn when the process starts.
    pub(super) id: String,
    pub(super) signer: ServiceSigner,
    /// Incremented with each connection of this process.
    pub(super) connections: AtomicU64,
}

impl ClientIdentity {
    /// Adds the metadata of a connection: the caller id, the connection's number, and the credentials.
    fn handshake(&self, metadata: &mut MetadataMap) -> Result<(), ConnectError> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        for (key, value) in [("holdfast-caller", self.id.clone()), ("holdfast-connection", number.to_string())] {
            let value = MetadataValue::try_from(value).map_err(|error| ConnectError::new(error.to_string()))?;
            metadata.insert(key, value);
        }
        self.authorize(metadata)
    }

    /// Adds the credentials.
    pub(super) fn authorize(&self, metadata: &mut MetadataMap) -> Result<(), ConnectError> {
        let token = self.signer.token().map_err(|error| ConnectError::new(error.to_string()))?;
        let value = MetadataValue::try_from(format!("Bearer {}", token.expose()));
        let mut value = value.map_err(|error| ConnectError::new(error.to_string()))?;
        value.set_sensitive(true);
        metadata.insert("authorization", value);
        Ok(())
    }
}

/// Connects, serves the connection until it ends, and reconnects. Never returns.
pub(super) async fn run(
    shared: Arc<ChannelState>,
    address: String,
    caller: Arc<ClientIdentity>,
    options: RoutingOptions,
) {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(options.max_reconnect_backoff)
        .without_max_times()
        .with_jitter();
    let mut pause = pauses.build();
    let mut told = String::new();
    loop {
        let gate = Arc::<Gate>::default();
        let mut ends =
            DisconnectGuard { shared: &shared, gate: gate.clone(), reason: "its connection was given up".to_owned() };
        let opened = tokio::time::timeout(options.connect_timeout, connect(&shared, &address, &caller, gate.clone()));
        let reason = match opened.await {
            Ok(Ok(answers)) => {
                count_event(&shared, "opened");
                shared.set_connected();
                gate.open();
                let since = Instant::now();
                let reason = receive(&shared, answers).await;
                if since.elapsed() >= STABLE_AFTER {
                    pause = pauses.build();
                }
                count_event(&shared, "ended");
                reason
            }
            Ok(Err(error)) => {
                count_event(&shared, "refused");
                error.to_string()
            }
            Err(_) => {
                count_event(&shared, "timed_out");
                "it did not accept a connection in time".to_owned()
            }
        };
        if reason != told {
            // Logged once per new reason, not per attempt.
            tracing::warn!(node = %shared.node_id, address, reason, "no connection to the node");
            told.clone_from(&reason);
        }
        ends.reason = reason;
        drop(ends);
        // The iterator is endless; if it ended, the longest backoff would apply.
        tokio::time::sleep(pause.next().unwrap_or(options.max_reconnect_backoff)).await;
    }
}

/// Runs at the end of a connection, whatever ends it: no caller waits for a reply that can't arrive.
struct DisconnectGuard<'a> {
    shared: &'a Arc<ChannelState>,
    gate: Arc<Gate>,
    reason: String,
}

impl Drop for DisconnectGuard<'_> {
    fn drop(&mut self) {
        self.gate.close(self.shared);
        self.shared.set_disconnected(&self.reason);
        self.shared.fail_in_flight(&self.reason);
    }
}

async fn connect(
    shared: &Arc<ChannelState>,
    address: &str,
    caller: &ClientIdentity,
    gate: Arc<Gate>,
) -> Result<Streaming<AnswerFrame>, ConnectError> {
    let channel = caller.connector.connect(address).await?;
    let mut client = NodeServiceClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let mut request = Request::new(FrameStream::new(shared.clone(), gate));
    caller.handshake(request.metadata_mut())?;
    let response = client.connect(request).await.map_err(|status| ConnectError::new(status.to_string()))?;
    Ok(response.into_inner())
}

/// Dispatches replies until the connection ends; returns the reason.
async fn receive(shared: &ChannelState, mut answers: Streaming<AnswerFrame>) -> String {
    loop {
        match answers.message().await {
            Ok(Some(frame)) => {
                let mut in_flight = shared.in_flight.lock();
                for answer in frame.answers {
                    dispatch(&mut in_flight, answer);
                }
            }
            Ok(None) => return "the node ended it".to_owned(),
            Err(status) => return status.message().to_owned(),
        }
    }
}

/// Dispatches a reply. If its call is not found, no caller waits for it.
fn dispatch(in_flight: &mut HashMap<u64, (ReplySink, ObservedRules)>, answer: Answer) {
    let (id, rules) = (answer.id, answer.rules);
    if let Some((_, heard)) = in_flight.get(&id) {
        heard.observe(rules);
    }
    match reply_from(answer) {
        told @ (CallReply::Deferred | CallReply::Update(_)) => {
            // A receiver that does not read its updates is dropped rather than awaited; it sees that its call has
            // ended.
            if in_flight.get(&id).is_some_and(|(waiting, _)| !waiting.send(told)) {
                in_flight.remove(&id);
            }
        }
        last => {
            if let Some((waiting, _)) = in_flight.remove(&id) {
                waiting.finish(last);
            }
        }
    }
}

fn reply_from(answer: Answer) -> CallReply {
    match answer.outcome {
        Some(answer::Outcome::Reply(bytes)) => CallReply::Reply(bytes, answer.attempt),
        Some(answer::Outcome::Held(_)) => CallReply::Deferred,
        Some(answer::Outcome::Notice(bytes)) => CallReply::Update(bytes),
        Some(answer::Outcome::NotLeader(hint)) => {
            metrics::counter!("holdfast_routing_not_leader_total").increment(1);
            let leader = Leader { replica: hint.leader, term: hint.term };
            CallReply::NotLeader((hint.leader != 0 && hint.term != 0).then_some(leader))
        }
        Some(answer::Outcome::NotProposed(reason)) => CallReply::NotProposed(reason),
        Some(answer::Outcome::Unknown(reason)) => CallReply::Unknown(reason),
        None => CallReply::Unknown("the node's answer has no outcome that this gateway knows".to_owned()),
    }
}

fn count_event(shared: &ChannelState, event: &'static str) {
    let node = shared.node_id.clone();
    metrics::counter!("holdfast_routing_node_connections_total", "node" => node, "event" => event).increment(1);
}
