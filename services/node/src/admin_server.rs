//! The operators' gRPC service of a node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::ClusterConfig;
use holdfast_core::{LeftOut, NamespaceRef};
use holdfast_proto::internal::operations_service_server::{OperationsService, OperationsServiceServer};
use holdfast_proto::internal::quarantine_request::What;
use holdfast_proto::internal::{
    BackUpHead, BackUpPart, BackUpRequest, ConfigAnswer, GetConfigRequest, HandOverAnswer, HandOverRequest,
    QuarantineAnswer, QuarantineRequest, RebuildShardAnswer, RebuildShardRequest, SetConfigRequest,
};
use holdfast_replication::{ApplyStep, BackupError, FailedEntry, ProposeError};
use holdfast_storage::run_blocking;
use holdfast_supervise::spawn_temporary;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::group_machine::ShardPart;
use crate::leadership_return;
use crate::node::NodeInner;
use crate::replica::{Replica, ShardReplica, StateComparison};

/// Largest cluster config accepted, in bytes: ten thousand shards. As one update, it is below the limit of a reply.
const MAX_CONFIG_BYTES: usize = 4 * 1024 * 1024;
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Parts of a backup buffered ahead of the transport.
const MAX_BUFFERED_PARTS: usize = 4;

pub(crate) struct AdminServer {
    shared: Arc<NodeInner>,
}

impl AdminServer {
    pub(crate) fn new(shared: Arc<NodeInner>) -> OperationsServiceServer<Self> {
        OperationsServiceServer::new(Self { shared }).max_decoding_message_size(MAX_CONFIG_BYTES)
    }

    fn replica(&self, id: u64) -> Result<Arc<Replica>, Status> {
        let unknown = || Status::not_found(format!("replica {id} is not on node {}", self.shared.node_id));
        self.shared.replica(id).ok_or_else(unknown)
    }

    fn config(&self) -> ConfigAnswer {
        let map = self.shared.map();
        ConfigAnswer { version: map.config().version, config: map.config().to_json() }
    }
}

fn shard_of<'a>(replica: &'a Replica, shard: &str) -> Result<&'a ShardReplica, Status> {
    let unknown = || Status::not_found(format!("group {} has no shard {shard:?}", replica.group.id()));
    replica.shard(shard).ok_or_else(unknown)
}

fn not_logged(error: ProposeError) -> Status {
    match error {
        ProposeError::NotLeader(_) => Status::failed_precondition("the replica does not lead its group"),
        error => Status::unavailable(error.to_string()),
    }
}

/// Rejects an exception while other replicas serve the shard, unless it is forced: it takes their copies out of service
/// too, and their saved states may include the excluded command or namespace.
fn check_fails_everywhere(shard: &str, serving: &BTreeSet<u64>, force: bool) -> Result<(), Status> {
    if serving.is_empty() || force {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "shard {shard} serves on replicas {serving:?}: they can bring it back; force the quarantine only if they can't"
    )))
}

/// Returns the command or namespace to leave out, if the shard failed at it.
fn left_out(what: Option<What>, index: u64, failed: &FailedEntry) -> Result<LeftOut, Status> {
    let (at, step, of) = (failed.index, failed.failure.step, failed.failure.namespace.as_str());
    if at != index {
        return Err(Status::failed_precondition(format!("the shard failed at entry {at} here, not at {index}")));
    }
    match what {
        None => Err(Status::invalid_argument("neither a namespace nor a command is named")),
        Some(What::Command(command)) if step == ApplyStep::Command(command) => Ok(LeftOut::Command(command)),
        Some(What::Command(_)) => Err(Status::failed_precondition(format!("the shard failed at {step} of entry {at}"))),
        Some(What::Namespace(text)) if of.is_empty() || of == text => {
            let namespace: NamespaceRef = text.parse().map_err(|_| {
                Status::invalid_argument("a namespace is ACCOUNT/NAME/INCARNATION, as the record of the failure has it")
            })?;
            Ok(LeftOut::Namespace(namespace))
        }
        Some(What::Namespace(_)) => Err(Status::failed_precondition(format!("the shard failed in namespace {of}"))),
    }
}

#[tonic::async_trait]
impl OperationsService for AdminServer {
    type BackUpStream = ReceiverStream<Result<BackUpPart, Status>>;

    async fn get_config(&self, request: Request<GetConfigRequest>) -> Result<Response<ConfigAnswer>, Status> {
        self.shared.authorize(&request)?;
        Ok(Response::new(self.config()))
    }

    async fn set_config(&self, request: Request<SetConfigRequest>) -> Result<Response<ConfigAnswer>, Status> {
        self.shared.authorize(&request)?;
        let next = ClusterConfig::from_json(&request.into_inner().config)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let shared = Arc::clone(&self.shared);
        // The task continues if the caller disconnects: a config is applied as a whole.
        let taken = spawn_temporary("operation", async move { shared.reconfigure(next).await }).await;
        let taken = taken.map_err(|error| Status::internal(error.to_string()))?;
        taken.map_err(|refused| Status::failed_precondition(refused.to_string()))?;
        Ok(Response::new(self.config()))
    }

    async fn hand_over(&self, request: Request<HandOverRequest>) -> Result<Response<HandOverAnswer>, Status> {
        self.shared.authorize(&request)?;
        let HandOverRequest { replica, to, stays } = request.into_inner();
        let (shared, replica) = (Arc::clone(&self.shared), self.replica(replica)?);
        if to != 0 && replica.group.subscribe_leadership().borrow().is_none() {
            return Err(Status::failed_precondition("the replica does not lead"));
        }
        let moving = spawn_temporary("operation", async move {
            let moved = leadership_return::operator_move(&shared, &replica.group, to, stays);
            let group = &replica.group;
            let is_over = group.transfer_leadership_among(|id| to == 0 || id == to, TRANSFER_TIMEOUT).await;
            // A leadership that was relinquished moves, however long it takes.
            if let Some(moved) = moved.filter(|moved| is_over || group.has_relinquished(moved.term)) {
                group.announce_move(moved).await;
            }
            is_over
        });
        match moving.await {
            Ok(true) => Ok(Response::new(HandOverAnswer {})),
            Ok(false) => Err(Status::unavailable(
                "no replica took over the leadership: the new leader must be a voter and up to date",
            )),
            Err(error) => Err(Status::internal(error.to_string())),
        }
    }

    async fn back_up(&self, request: Request<BackUpRequest>) -> Result<Response<Self::BackUpStream>, Status> {
        self.shared.authorize(&request)?;
        let BackUpRequest { replica, shard } = request.into_inner();
        let replica = self.replica(replica)?;
        shard_of(&replica, &shard)?.machine.check_health().map_err(|failed| Status::unavailable(failed.0))?;
        let backup = replica.group.back_up(&shard).await.map_err(|error| match error {
            BackupError::NotLeader(_) => Status::failed_precondition(error.to_string()),
            BackupError::SnapshotFailed(_) => Status::unavailable(error.to_string()),
        })?;
        let part = run_blocking(|| ShardPart::read(&backup.part));
        let part = part.map_err(|error| Status::internal(error.to_string()))?;
        if !part.kept.is_empty() {
            return Err(Status::unavailable(format!("shard {shard} failed on this node")));
        }
        let head = BackUpHead { shard, term: backup.term, index: backup.index, rules: backup.rules.into() };
        let (parts, stream) = mpsc::channel(MAX_BUFFERED_PARTS);
        spawn_temporary("operation", async move {
            let head = BackUpPart { head: Some(head), chunk: bytes::Bytes::new() };
            let (mut chunks, mut next) = (part.state.chunks(), Some(Ok(head)));
            while let Some(part) = next {
                if parts.send(part).await.is_err() {
                    // The caller disconnected.
                    return;
                }
                let chunk = run_blocking(|| chunks.next());
                next = chunk.map(|chunk| match chunk {
                    Ok(chunk) => Ok(BackUpPart { head: None, chunk }),
                    Err(error) => Err(Status::internal(error.to_string())),
                });
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn rebuild_shard(
        &self,
        request: Request<RebuildShardRequest>,
    ) -> Result<Response<RebuildShardAnswer>, Status> {
        self.shared.authorize(&request)?;
        let RebuildShardRequest { replica, shard, from } = request.into_inner();
        let replica = self.replica(replica)?;
        let shard = shard_of(&replica, &shard)?;
        if !replica.group.members().contains_key(&from) {
            return Err(Status::not_found(format!("group {} has no replica {from}", replica.group.id())));
        }
        if shard.has_failed_on(from) {
            return Err(Status::failed_precondition(format!("shard {} has failed on replica {from} too", shard.id)));
        }
        // Those that are rebuilt have the state of the checkpoint, and no digest of their own there.
        let serving = shard.replicas_serving();
        let not_leading = || Status::failed_precondition("the replica does not lead its group");
        let term = shard.leads().ok_or_else(not_leading)?;
        // Other replicas may have answered what the one to believe does not have.
        shard.log_advanced_numbers(term).await.map_err(not_logged)?;
        shard.log_checkpoint_from(from).await.map_err(not_logged)?;
        if shard.leads() != Some(term) {
            return Err(Status::unavailable("the leadership has changed meanwhile; run the command again"));
        }
        tracing::warn!(shard = shard.id, from, "shard rebuild requested by operator");
        let StateComparison { differing, unknown } = shard.compare_with(from, &serving).await;
        let shard = shard.id.as_str();
        if !differing.is_empty() {
            tracing::error!(shard, from, ?differing, "serving replicas differ from the source replica");
        }
        if !unknown.is_empty() {
            tracing::warn!(shard, from, ?unknown, "replicas not compared: state unknown");
        }
        Ok(Response::new(RebuildShardAnswer { differing, unknown }))
    }

    async fn quarantine(&self, request: Request<QuarantineRequest>) -> Result<Response<QuarantineAnswer>, Status> {
        self.shared.authorize(&request)?;
        let QuarantineRequest { replica, shard, index, what, force } = request.into_inner();
        let replica = self.replica(replica)?;
        let shard = shard_of(&replica, &shard)?;
        let serves =
            || Status::failed_precondition(format!("shard {} has not failed here: others rebuild it", shard.id));
        let outage = shard.machine.outage().ok_or_else(serves)?;
        let left_out = left_out(what, index, &outage.failed_entry)?;
        check_fails_everywhere(&shard.id, &shard.other_replicas_serving(), force)?;
        shard.log_exception(index, &left_out).await.map_err(not_logged)?;
        tracing::warn!(shard = shard.id, index, ?left_out, "exception added to shard history by operator");
        Ok(Response::new(QuarantineAnswer {}))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Incarnation};
    use holdfast_replication::ApplyFailure;
    use tonic::Code;

    use super::*;

    fn failed(step: ApplyStep, namespace: &str) -> FailedEntry {
        let (command, message, backtrace) = Default::default();
        let failure = ApplyFailure { step, namespace: namespace.to_owned(), command, message, backtrace };
        FailedEntry { term: 1, index: 9, failure }
    }

    #[test]
    fn nothing_is_left_out_while_others_serve_the_shard_unless_that_is_forced() {
        let check = |serving: &[u64], force| {
            let checked = check_fails_everywhere("locks_00", &serving.iter().copied().collect(), force);
            checked.map_err(|refusal| refusal.code())
        };
        assert_eq!(check(&[2, 3], false), Err(Code::FailedPrecondition));
        assert_eq!(check(&[2, 3], true), Ok(()));
        assert_eq!(check(&[], false), Ok(()));
    }

    #[test]
    fn only_what_a_shard_failed_at_is_left_out() {
        let orders = NamespaceRef { account: AccountId(7), name: "orders".to_owned(), incarnation: Incarnation(1) };
        let (text, other) = (orders.to_string(), "0000000000000008/orders/0000000000000001".to_owned());
        let at_command = failed(ApplyStep::Command(2), &text);
        let code = |what, index, failed: &FailedEntry| left_out(what, index, failed).map_err(|refusal| refusal.code());
        assert_eq!(code(Some(What::Command(2)), 9, &at_command), Ok(LeftOut::Command(2)));
        assert_eq!(code(Some(What::Namespace(text.clone())), 9, &at_command), Ok(LeftOut::Namespace(orders.clone())));
        for wrong in [What::Command(1), What::Namespace(other)] {
            assert_eq!(code(Some(wrong), 9, &at_command), Err(Code::FailedPrecondition));
        }
        assert_eq!(code(Some(What::Command(2)), 8, &at_command), Err(Code::FailedPrecondition), "another entry");
        assert_eq!(code(None, 9, &at_command), Err(Code::InvalidArgument));
        // What was due when it failed is not known: the operator does.
        let at_expiry = failed(ApplyStep::Expiry, "");
        assert_eq!(code(Some(What::Namespace(text)), 9, &at_expiry), Ok(LeftOut::Namespace(orders)));
        assert_eq!(code(Some(What::Command(0)), 9, &at_expiry), Err(Code::FailedPrecondition));
        assert_eq!(code(Some(What::Namespace("orders".to_owned())), 9, &at_expiry), Err(Code::InvalidArgument));
    }
}
