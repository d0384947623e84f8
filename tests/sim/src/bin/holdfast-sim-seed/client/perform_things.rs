//! Calls about semaphores and latches, and takes of members, as they are made through the gateway's service.

use holdfast_api::{
    AcquirePermits, ApiResult, ConfigureSemaphore, CountDown, CreateLatch, GetSemaphore, LatchName, PageRequest,
    ReleasePermits, ThingName, WaitForLatch,
};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::{LatchIds, Metadata, Path};

use super::Client;
use super::perform::{lock_name, outcome_of, owner_fields};
use crate::history::CALL_KEY;
use crate::things::{PermitsOp, ThingAnswer, ThingOp, WantedOp};

pub(super) fn thing(namespace: &str, path: Path) -> ThingName {
    ThingName { namespace: namespace.to_owned(), name: lock_name(path) }
}

impl Client {
    pub(super) async fn perform_thing(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: ThingOp,
        id: usize,
    ) -> ApiResult<ThingAnswer> {
        let service = &self.service;
        Ok(match op {
            ThingOp::Acquire(asked) => match asked.wanted.clone() {
                WantedOp::Permits { weight, permits } => {
                    self.acquire_permits(caller, context, namespace, (asked, weight, permits), id).await?
                }
                WantedOp::Members { count, prefer } => {
                    self.take_members(caller, context, namespace, (asked, Some(count), None, prefer), id).await?
                }
                WantedOp::Member(member) => {
                    self.take_members(caller, context, namespace, (asked, None, Some(member), None), id).await?
                }
            },
            ThingOp::Release { path, owner, request_id } => {
                let (thing, owner, request_id) = (thing(namespace, path), owner_fields(owner), Some(request_id));
                let request = ReleasePermits { thing, owner, request_id, fencing_token: None };
                let answer = service.release_permits(caller, context, request).await?;
                ThingAnswer::Released { released: answer.released, semaphore: answer.semaphore.into() }
            }
            ThingOp::Configure { path, permits } => {
                let (thing, metadata) = (thing(namespace, path), Metadata::new());
                let request = ConfigureSemaphore { thing, permits, description: None, metadata };
                ThingAnswer::Semaphore(service.configure_semaphore(caller, context, request).await?.into())
            }
            ThingOp::GetSemaphore { path } => {
                let request = GetSemaphore { thing: thing(namespace, path), page: PageRequest::default() };
                ThingAnswer::Semaphore(service.get_semaphore(caller, context, request).await?.semaphore.into())
            }
            ThingOp::Pool(op) => self.perform_for_pool(caller, context, namespace, op).await?,
            ThingOp::Condition(op) => {
                ThingAnswer::Condition(self.perform_for_condition(caller, context, namespace, op, id).await?)
            }
            ThingOp::Ask(op) => ThingAnswer::Asked(self.perform_ask(caller, context, namespace, op, id).await?),
            ThingOp::Barrier(op) => self.perform_for_barrier(caller, context, namespace, op, id).await?,
            op @ (ThingOp::CreateLatch { .. }
            | ThingOp::CountDown { .. }
            | ThingOp::WaitForLatch { .. }
            | ThingOp::DeleteLatch { .. }) => self.perform_for_latch(caller, context, namespace, op).await?,
        })
    }

    async fn perform_for_latch(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: ThingOp,
    ) -> ApiResult<ThingAnswer> {
        let service = &self.service;
        let latch = |path, id| LatchName { thing: thing(namespace, path), id };
        Ok(match op {
            ThingOp::CreateLatch { path, total, expires_in_ms } => {
                let request = CreateLatch {
                    thing: thing(namespace, path),
                    total,
                    ids: LatchIds::Named,
                    expires_in_ms: Some(expires_in_ms),
                    retain_ms: None,
                    description: None,
                    metadata: Metadata::new(),
                };
                let answer = service.create_latch(caller, context, request).await?;
                ThingAnswer::LatchCreated { is_new: answer.created, latch: answer.latch.into() }
            }
            ThingOp::CountDown { path, id, jobs } => {
                let request = CountDown { latch: latch(path, id), ids: Some(jobs), ranges: None };
                let answer = service.count_down(caller, context, request).await?;
                ThingAnswer::CountedDown { counted: answer.counted, latch: answer.latch.into() }
            }
            ThingOp::WaitForLatch { path, id, wait_ms } => {
                let request = WaitForLatch { latch: latch(path, id), wait_ms };
                ThingAnswer::Latch(service.wait_for_latch(caller, context, request).await?.latch.into())
            }
            ThingOp::DeleteLatch { path, id } => {
                service.delete_latch(caller, context, latch(path, id)).await?;
                ThingAnswer::LatchDeleted
            }
            other => unreachable!("{other:?} is about no latch"),
        })
    }

    async fn acquire_permits(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        (asked, weight, permits): (PermitsOp, u64, u64),
        id: usize,
    ) -> ApiResult<ThingAnswer> {
        let request = AcquirePermits {
            thing: thing(namespace, asked.path),
            owner: owner_fields(asked.owner),
            request_id: asked.request_id,
            weight: Some(weight),
            permits: Some(permits),
            priority: asked.priority,
            ttl_ms: asked.ttl_ms,
            transition_ms: asked.transition_ms,
            wait_ms: asked.wait_ms,
            poll_ms: None,
            metadata: [(CALL_KEY.to_owned(), id.to_string())].into(),
            fencing_token: None,
        };
        let answer = self.service.acquire_permits(caller, context, request).await?;
        let outcome = outcome_of(answer.fencing_token, answer.reason);
        Ok(ThingAnswer::Acquired { outcome, members: Vec::new() })
    }
}
