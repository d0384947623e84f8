//! Calls as they are made through the gateway's service.

use std::time::Duration;

use holdfast_api::{
    AcquireLock, AcquireLocks, ApiResult, CreateNamespace, CreateSession, LockName, OwnerFields, ReasonInfo,
    ReleaseLock, ReleaseLocks, Resource, Terms,
};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::{Durability, Metadata, Owner, Path, Reason};

use super::Client;
use crate::history::{AT_LEAST_KEY, AcquireOp, Answer, CALL_KEY, ObservedLock, Op};
use crate::world::Tenant;

impl Client {
    pub(super) async fn perform(
        &self,
        tenant: &Tenant,
        namespace: &str,
        op: &Op,
        id: usize,
        limit: Duration,
    ) -> ApiResult<Answer> {
        let service = &self.service;
        let context = CallContext::new(format!("call {id}")).with_timeout(limit);
        let caller = service.authenticate(Some(&tenant.api_key), &context).await?;
        Ok(match op.clone() {
            Op::Acquire(acquiring) => self.acquire(&caller, &context, namespace, acquiring, id).await?,
            Op::Release { owner, path, token } => {
                let (namespace, lock, owner) = (namespace.to_owned(), LockName::Path(path.0), owner_fields(owner));
                let request = ReleaseLock { namespace, lock, owner, fencing_token: token };
                let answer = service.release_lock(&caller, &context, request).await?;
                Answer::Released { released: answer.released, locks: vec![answer.lock.into()] }
            }
            Op::ReleaseAll { owner } => {
                let (namespace, owner) = (namespace.to_owned(), owner_fields(owner));
                let request = ReleaseLocks { namespace, owner, paths: None, all: true };
                let answer = service.release_locks(&caller, &context, request).await?;
                let locks = answer.locks.into_iter().map(ObservedLock::from).collect();
                Answer::Released { released: answer.released, locks }
            }
            Op::Get { path } => {
                Answer::Lock(service.get_lock(&caller, &context, namespace, &lock_name(path)).await?.into())
            }
            Op::Check { path, token } => {
                let answer = service.check_lock(&caller, &context, namespace, &lock_name(path), token).await?;
                Answer::Checked { current: answer.current, lock: answer.lock.into() }
            }
            Op::Delete { path } => {
                service.delete_lock(&caller, &context, namespace, &lock_name(path)).await?;
                Answer::Done
            }
            Op::OpenSession { process, ttl_ms } => {
                let namespace = namespace.to_owned();
                let request = CreateSession { namespace, process_id: process, ttl_ms, metadata: Default::default() };
                Answer::Session { id: service.create_session(&caller, &context, request).await?.session_id }
            }
            Op::KeepAlive { session, .. } => Answer::KeptAlive {
                remaining_ms: service.keep_session_alive(&caller, &context, namespace, &session).await?,
            },
            Op::CloseSession { session } => {
                service.delete_session(&caller, &context, namespace, &session).await?;
                Answer::Done
            }
            Op::CreateNamespace => {
                let (description, durability) = (Some(format!("call {id}")), Durability::Full);
                let request = CreateNamespace { name: namespace.to_owned(), description, durability };
                Answer::Namespace { id: service.create_namespace(&caller, &context, request).await?.id }
            }
            Op::GetNamespace => Answer::Namespace { id: service.get_namespace(&caller, &context, namespace).await?.id },
            Op::DeleteNamespace { id } => {
                service.delete_namespace(&caller, &context, namespace, id.as_deref()).await?;
                Answer::Done
            }
            Op::Thing(op) => Answer::Thing(self.perform_thing(&caller, &context, namespace, op, id).await?),
        })
    }

    async fn acquire(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        acquiring: AcquireOp,
        id: usize,
    ) -> ApiResult<Answer> {
        let AcquireOp { owner, mut claims, ttl_ms, transition_ms, wait_ms, token, allow_upgrade, at_least_ms } =
            acquiring;
        let (namespace, owner) = (namespace.to_owned(), owner_fields(owner));
        let terms = Terms {
            ttl_ms,
            wait_ms,
            transition_ms,
            at_least_ms,
            metadata: metadata_of(id, at_least_ms),
            allow_upgrade,
            fencing_token: token,
            ..Terms::default()
        };
        if claims.len() == 1
            && let Some(claim) = claims.pop()
        {
            let request = AcquireLock { namespace, lock: lock_name(claim.path), owner, mode: claim.mode, terms };
            let answer = self.service.acquire_lock(caller, context, request).await?;
            return Ok(acquired(answer.fencing_token, answer.reason, vec![answer.lock.into()]));
        }
        let resources = claims.into_iter().map(|claim| Resource { path: claim.path.0, mode: claim.mode }).collect();
        let request = AcquireLocks { namespace, resources, owner, request_id: None, terms };
        let answer = self.service.acquire_locks(caller, context, request).await?;
        let locks = answer.locks.into_iter().map(ObservedLock::from).collect();
        Ok(acquired(answer.fencing_token, answer.reason, locks))
    }
}

fn metadata_of(id: usize, at_least_ms: u64) -> Metadata {
    let call = (CALL_KEY.to_owned(), id.to_string());
    let at_least = (at_least_ms > 0).then(|| (AT_LEAST_KEY.to_owned(), at_least_ms.to_string()));
    std::iter::once(call).chain(at_least).collect()
}

fn acquired(token: Option<u64>, reason: Option<ReasonInfo>, locks: Vec<ObservedLock>) -> Answer {
    Answer::Acquired { outcome: outcome_of(token, reason), locks }
}

/// Returns the token, or the reason of a refusal.
pub(super) fn outcome_of(token: Option<u64>, reason: Option<ReasonInfo>) -> Result<u64, Reason> {
    match (token, reason.map(|reason| reason.code)) {
        (Some(token), None) => Ok(token),
        (None, Some(reason)) => Err(reason),
        both => unreachable!("an acquire answers with a token or a reason, not {both:?}"),
    }
}

pub(super) fn lock_name(path: Path) -> LockName {
    LockName::Path(path.0)
}

pub(super) fn owner_fields(owner: Owner) -> OwnerFields {
    match owner {
        Owner::Process(process_id) => OwnerFields::process(process_id),
        Owner::Session { session_id, holder } => OwnerFields { process_id: None, session_id: Some(session_id), holder },
    }
}
