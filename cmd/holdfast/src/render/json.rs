//! JSON output with the same fields as the service's REST responses.

use holdfast_client::protocol::{self as v1, Mode, holder};
use serde_json::{Value, json};

use super::{barrier_outcome, event_type, latch_status, state, timestamp};

pub(crate) fn lock(lock: &v1::Lock) -> Value {
    json!({
        "namespace": lock.namespace,
        "name": lock.name,
        "path": lock.path,
        "state": state(lock),
        "locked_at": lock.locked_at.as_ref().and_then(timestamp),
        "write_lock_holder": lock.write_lock_holder.as_ref().map(holder),
        "read_lock_holders": lock.read_lock_holders.iter().map(holder).collect::<Vec<_>>(),
        "holders_total": lock.holders_total,
        "waiting": lock.waiting,
        "revision": lock.revision,
    })
}

fn holder(holder: &v1::Holder) -> Value {
    let shown = json!({
        "process_id": holder.process_id,
        "session_id": holder.session_id,
        "holder": holder.holder,
        "mode": mode(holder.mode()),
        "fencing_token": holder.fencing_token,
        "locked_at": holder.locked_at.as_ref().and_then(timestamp),
        "expires_at": holder.expires_at.as_ref().and_then(timestamp),
        "remaining_ms": holder.remaining_ms,
        "phase": match holder.phase() {
            holder::Phase::Held => "HELD",
            holder::Phase::Transition => "TRANSITION",
        },
        "metadata": holder.metadata,
    });
    with_release_request(shown, holder.release_requested.as_ref())
}

/// Adds the latest request to release a hold, if there is one.
fn with_release_request(mut shown: Value, request: Option<&v1::ReleaseRequest>) -> Value {
    if let Some(request) = request {
        shown["release_requested"] = release_request(request);
    }
    shown
}

fn release_request(request: &v1::ReleaseRequest) -> Value {
    json!({
        "by": request.by,
        "reason": request.reason,
        "within_ms": request.within_ms,
        "requested_at": request.requested_at.as_ref().and_then(timestamp),
        "remaining_ms": request.remaining_ms,
        "force": request.force,
    })
}

/// Renders a refused acquire.
pub(crate) fn refused(answer: &v1::AcquireLockResponse) -> Value {
    let reason = answer.reason.clone().unwrap_or_default();
    let blocker = |blocker: &v1::Blocker| {
        let mut shown = blocker.holder.as_ref().map(holder).unwrap_or_default();
        shown["path"] = json!(blocker.path);
        shown["waiting"] = json!(blocker.waiting);
        shown
    };
    let mut shown = json!({
        "code": reason.code().as_str_name(),
        "blockers": reason.blockers.iter().map(blocker).collect::<Vec<_>>(),
        "queue_position": reason.queue_position,
    });
    if !reason.cycle.is_empty() {
        shown["cycle"] = reason.cycle.iter().map(cycle_step).collect();
    }
    json!({"success": false, "reason": shown, "lock": answer.lock.as_ref().map(lock)})
}

fn cycle_step(step: &v1::CycleStep) -> Value {
    json!({
        "process_id": step.process_id,
        "session_id": step.session_id,
        "holder": step.holder,
        "path": step.path,
        "waiting": step.waiting,
    })
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "WRITE",
        Mode::Read => "READ",
    }
}

pub(crate) fn session(session: &v1::Session) -> Value {
    json!({
        "session_id": session.session_id,
        "process_id": session.process_id,
        "ttl_ms": session.ttl_ms,
        "remaining_ms": session.remaining_ms,
        "metadata": session.metadata,
        "opened_at": session.opened_at.as_ref().and_then(timestamp),
        "holds": session.holds,
        "waiting": session.waiting,
    })
}

pub(crate) fn event(event: &v1::Event) -> Value {
    let claim = |claim: &v1::event::Claim| json!({"path": claim.path, "mode": mode(claim.mode())});
    let mut shown = json!({
        "revision": event.revision,
        "type": event_type(event),
        "at": event.at.as_ref().and_then(timestamp),
        "process_id": event.process_id,
        "session_id": event.session_id,
        "holder": event.holder,
        "fencing_token": event.fencing_token,
        "claims": event.claims.iter().map(claim).collect::<Vec<_>>(),
    });
    if let Some(kind) = &event.kind {
        shown["kind"] = json!(kind);
        shown["path"] = json!(event.path);
    }
    if let Some(weight) = event.weight {
        shown["weight"] = json!(weight);
    }
    if !event.members.is_empty() {
        shown["members"] = json!(event.members);
    }
    if let Some(generation) = event.generation {
        shown["generation"] = json!(generation);
        shown["parties"] = json!(event.parties);
    }
    if let Some(cause) = &event.cause {
        shown["cause"] = json!(cause);
    }
    if let Some(condition) = &event.condition {
        shown["condition"] = json!(condition);
    }
    if let Some(woken) = &event.woken {
        shown["woken"] = json!(woken);
    }
    shown
}

pub(crate) fn semaphore(semaphore: &v1::Semaphore) -> Value {
    json!({
        "namespace": semaphore.namespace,
        "name": semaphore.name,
        "path": semaphore.path,
        "configured": semaphore.configured,
        "permits": semaphore.permits,
        "in_use": semaphore.in_use,
        "available": semaphore.available,
        "holders_total": semaphore.holders_total,
        "waiting": semaphore.waiting,
        "description": semaphore.description,
        "metadata": semaphore.metadata,
        "revision": semaphore.revision,
    })
}

pub(crate) fn pool(pool: &v1::Pool) -> Value {
    json!({
        "namespace": pool.namespace,
        "name": pool.name,
        "path": pool.path,
        "members_total": pool.members_total,
        "free": pool.free,
        "in_use": pool.in_use,
        "leaving": pool.leaving,
        "cooldown_ms": pool.cooldown_ms,
        "holders_total": pool.holders_total,
        "waiting": pool.waiting,
        "description": pool.description,
        "metadata": pool.metadata,
        "revision": pool.revision,
    })
}

pub(crate) fn pool_member(member: &v1::PoolMemberState) -> Value {
    json!({
        "name": member.name,
        "disabled": member.disabled,
        "leaving": member.leaving,
        "metadata": member.metadata,
        "free_since": member.free_since,
        "rests_ms": member.rests_ms,
        "holder": member.holder.as_ref().map(permit_holder),
    })
}

pub(crate) fn permit_holder(holder: &v1::PermitHolder) -> Value {
    let shown = json!({
        "process_id": holder.process_id,
        "session_id": holder.session_id,
        "holder": holder.holder,
        "request_id": holder.request_id,
        "weight": holder.weight,
        "members": holder.members,
        "fencing_token": holder.fencing_token,
        "locked_at": holder.locked_at.as_ref().and_then(timestamp),
        "expires_at": holder.expires_at.as_ref().and_then(timestamp),
        "remaining_ms": holder.remaining_ms,
        "phase": holder.phase().as_str_name(),
        "metadata": holder.metadata,
    });
    with_release_request(shown, holder.release_requested.as_ref())
}

pub(crate) fn latch(latch: &v1::Latch) -> Value {
    json!({
        "namespace": latch.namespace,
        "name": latch.name,
        "path": latch.path,
        "id": latch.id,
        "status": latch_status(latch),
        "total": latch.total,
        "done": latch.done,
        "ids": latch.ids().as_str_name(),
        "expires_at": latch.expires_at.as_ref().and_then(timestamp),
        "remaining_ms": latch.remaining_ms,
        "finished_at": latch.finished_at.as_ref().and_then(timestamp),
        "retain_ms": latch.retain_ms,
        "description": latch.description,
        "metadata": latch.metadata,
        "revision": latch.revision,
        "waiters": latch.waiters,
    })
}

pub(crate) fn barrier(barrier: &v1::Barrier) -> Value {
    json!({
        "namespace": barrier.namespace,
        "name": barrier.name,
        "path": barrier.path,
        "configured": barrier.configured,
        "parties": barrier.parties,
        "double": barrier.double,
        "on_loss": barrier.on_loss().as_str_name(),
        "retain_ms": barrier.retain_ms,
        "generation": barrier.generation,
        "arrived": barrier.arrived,
        "inside": barrier.inside,
        "inside_generation": barrier.inside_generation,
        "remaining_ms": barrier.remaining_ms,
        "description": barrier.description,
        "metadata": barrier.metadata,
        "revision": barrier.revision,
    })
}

/// Renders a barrier with those who have come, and with how its latest generations ended.
pub(crate) fn barrier_details(found: &v1::GetBarrierResponse) -> Value {
    let arrival = |arrival: &v1::BarrierArrival| {
        json!({
            "process_id": arrival.process_id,
            "session_id": arrival.session_id,
            "holder": arrival.holder,
            "request_id": arrival.request_id,
            "inside": arrival.inside,
            "arrived_at": arrival.arrived_at.as_ref().and_then(timestamp),
            "remaining_ms": arrival.remaining_ms,
            "metadata": arrival.metadata,
        })
    };
    let generation = |ended: &v1::BarrierGeneration| {
        json!({
            "generation": ended.generation,
            "outcome": barrier_outcome(ended.outcome()),
            "parties": ended.parties,
            "ended_at": ended.ended_at.as_ref().and_then(timestamp),
            "lost": ended.lost,
        })
    };
    json!({
        "barrier": found.barrier.as_ref().map(barrier),
        "arrivals": found.arrivals.iter().map(arrival).collect::<Vec<_>>(),
        "generations": found.generations.iter().map(generation).collect::<Vec<_>>(),
    })
}

/// Returns where the lock table of a namespace is kept. Services of earlier releases have FULL ones only.
pub(crate) fn durability_name(namespace: &v1::Namespace) -> &'static str {
    match namespace.durability() {
        v1::Durability::Session => "SESSION",
        v1::Durability::Full | v1::Durability::Unspecified => "FULL",
    }
}

pub(crate) fn namespace(namespace: &v1::Namespace) -> Value {
    let mut shown = json!({
        "id": namespace.id,
        "name": namespace.name,
        "description": namespace.description,
        "created_at": namespace.created_at.as_ref().and_then(timestamp),
        "updated_at": namespace.updated_at.as_ref().and_then(timestamp),
        "durability": durability_name(namespace),
    });
    if let Some(table) = &namespace.table {
        shown["table"] = json!({
            "state": table_state(table),
            "epoch": table.epoch,
            "since": table.since.as_ref().and_then(timestamp),
            "sessions": table.sessions,
            "missing": table.missing,
            "waiting_for": table.waiting_for,
        });
    }
    shown
}

/// Returns how far the lock table of a namespace is that is in its leader's memory.
pub(crate) fn table_state(table: &v1::namespace::Table) -> &'static str {
    if table.state() == v1::namespace::table::State::Ready { "READY" } else { "REBUILDING" }
}

/// Renders a key, with the secret if it is present.
pub(crate) fn api_key(key: &v1::ApiKey) -> Value {
    let mut shown = json!({
        "key_id": key.key_id,
        "account_id": key.account_id,
        "description": key.description,
        "scopes": key.scopes,
        "namespaces": key.namespaces,
        "expires_at": key.expires_at.as_ref().and_then(timestamp),
        "created_at": key.created_at.as_ref().and_then(timestamp),
    });
    if let Some(secret) = &key.api_key {
        shown["api_key"] = json!(secret);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_its_cycle_and_no_other_has_one() {
        let step = v1::CycleStep { process_id: "p".into(), path: vec!["a".into()], ..v1::CycleStep::default() };
        let of = |cycle: Vec<v1::CycleStep>| {
            let reason = v1::Refusal { cycle, ..v1::Refusal::default() };
            refused(&v1::AcquireLockResponse { reason: Some(reason), ..v1::AcquireLockResponse::default() })
        };
        let expected =
            json!([{"process_id": "p", "session_id": null, "holder": null, "path": ["a"], "waiting": false}]);
        assert_eq!(of(vec![step])["reason"]["cycle"], expected);
        assert!(of(vec![])["reason"].get("cycle").is_none());
    }
}
