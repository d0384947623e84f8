//! Handles unary messages: votes, heartbeats, transfers, and what concerns a leader's death or a shard to be built again.

use bytes::Bytes;
use holdfast_proto::internal::{Kind, RaftMessage};
use openraft::raft::{TransferLeaderRequest, VoteRequest};

use crate::checkpoints::RebuildQuery;
use crate::error::WireError;
use crate::group::Group;
use crate::leader_death::LeaderDeath;
use crate::types::{TypeConfig, decode, decode_append, encode};

/// Passes the message, sent by process run `run`, to the replica and builds the response.
pub(crate) async fn handle_unary(group: &Group, message: RaftMessage, run: u64) -> RaftMessage {
    let (call, kind) = (message.call, message.kind());
    let result = match kind {
        Kind::Vote => vote(group, &message.body).await,
        Kind::PreVote => pre_vote(group, &message.body).await,
        Kind::Heartbeat => heartbeat(group, &message.body, message.clock_ms, run).await,
        Kind::TransferLeader => transfer(group, &message.body).await,
        Kind::IsGone => is_gone(group, &message.body).await,
        Kind::Rebuild => rebuild(group, &message.body).await,
        Kind::LeaderMoved => leader_moved(group, &message.body),
        other => Err(format!("{other:?} is not a question")),
    };
    match result {
        Ok(body) if kind == Kind::Heartbeat => {
            let (from, applied_index) = (group.replica(), group.last_applied_index());
            RaftMessage { from, applied_index, ..response(call, body) }
        }
        Ok(body) => response(call, body),
        Err(reason) => error(call, &reason),
    }
}

/// Builds a response with a body.
pub(crate) fn response(call: u64, body: Bytes) -> RaftMessage {
    RaftMessage { call, kind: Kind::Answer.into(), body, ..RaftMessage::default() }
}

/// Builds an error response; the peer treats it like a broken connection.
pub(crate) fn error(call: u64, reason: &str) -> RaftMessage {
    let body = Bytes::copy_from_slice(reason.as_bytes());
    RaftMessage { call, kind: Kind::Error.into(), body, ..RaftMessage::default() }
}

fn damaged(error: WireError) -> String {
    error.to_string()
}

/// Response of a replica restarted less than a lease ago: it may have granted a lease that it no longer knows. A vote
/// in a leader's own transfer is no danger to that leader.
const HOLDOFF: &str = "restarted less than a lease ago; neither votes nor stands yet";

async fn vote(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    let request: VoteRequest<TypeConfig> = decode(body).map_err(damaged)?;
    if !group.may_vote() && !request.leadership_transfer {
        return Err(HOLDOFF.into());
    }
    let (term, log) = (request.vote.leader_id.term, request.last_log_id);
    let response = group.raft().vote(request).await.map_err(|error| error.to_string())?;
    if !response.vote_granted && response.last_log_id > log {
        group.record_rejected_candidate(term);
    }
    Ok(encode(&response))
}

async fn pre_vote(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    if !group.may_vote() {
        return Err(HOLDOFF.into());
    }
    let request: VoteRequest<TypeConfig> = decode(body).map_err(damaged)?;
    group.raft().pre_vote(request).await.map(|response| encode(&response)).map_err(|error| error.to_string())
}

async fn heartbeat(group: &Group, body: &[u8], clock_ms: u64, run: u64) -> Result<Bytes, String> {
    let request = decode_append(body).map_err(damaged)?;
    let term = request.vote.leader_id.term;
    let response = group.raft().append_entries(request).await.map_err(|error| error.to_string())?;
    if response.is_success() {
        group.leader_run().observe(term, run);
        if clock_ms > 0 {
            group.observe_clock(term, clock_ms);
        }
    }
    Ok(encode(&response))
}

async fn transfer(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    let request: TransferLeaderRequest<TypeConfig> = decode(body).map_err(damaged)?;
    let response = group.raft().handle_transfer_leader(request).await.map_err(|error| error.to_string())?;
    Ok(encode(&response))
}

async fn rebuild(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    let question: RebuildQuery = decode(body).map_err(damaged)?;
    Ok(encode(&group.answer_rebuild(question).await))
}

fn leader_moved(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    group.record_move(decode(body).map_err(damaged)?);
    Ok(Bytes::new())
}

async fn is_gone(group: &Group, body: &[u8]) -> Result<Bytes, String> {
    let death: LeaderDeath = decode(body).map_err(damaged)?;
    Ok(encode(&group.confirms(&death).await))
}
