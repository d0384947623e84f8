//! What calls about semaphores and about pools share.

use std::pin::pin;
use std::time::Duration;

use holdfast_api::validate::WaitOptions;
use holdfast_api::{ApiResult, OwnerFields, ReleasePermits, ThingName, Timestamp, validate};
use holdfast_routing::RetryPolicy;
use holdfast_types::{
    AcquirePermits, Command, FencingToken, Kind, Limits, LocksCommand, Metadata, NamespaceRef, Owner, Path,
    PermitCommand, PermitQuery, Query, ReleasePermits as ReleaseCommand, Reply, Response, Scopes, Wanted,
};
use tokio_util::sync::CancellationToken;

use super::acquire::as_outcome_unknown;
use crate::access_watch::AccessWatch;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{AuthContext, CallContext, Service};

/// What a caller is told whose access can't be checked while it waits.
const WAIT_ABANDONED: &str =
    "who calls can't be checked any more, so that the wait is given up; it may have been granted";

/// A request for permits of a semaphore, or for members of a pool.
pub(super) struct PermitRequest {
    pub(super) thing: ThingName,
    pub(super) owner: OwnerFields,
    pub(super) request_id: String,
    pub(super) wanted: Wanted,
    pub(super) priority: u32,
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u64,
    pub(super) wait_ms: u64,
    pub(super) poll_ms: Option<u64>,
    pub(super) metadata: Metadata,
    pub(super) fencing_token: Option<FencingToken>,
}

/// A validated request.
pub(super) struct CheckedRequest {
    request: PermitRequest,
    path: Path,
    owner: Owner,
    priority: u8,
    ttl_ms: Option<u64>,
    waiting: Option<WaitOptions>,
}

impl CheckedRequest {
    pub(super) fn new(request: PermitRequest, limits: &Limits) -> ApiResult<Self> {
        let path = match request.fencing_token {
            Some(_) => validate::existing_thing(&request.thing.name, limits)?,
            None => validate::new_thing(&request.thing.name, limits)?,
        };
        let owner = validate::owner(&request.owner)?;
        validate::request_id(&request.request_id)?;
        validate::wanted(&request.wanted)?;
        let priority = validate::priority(request.priority)?;
        let ttl_ms = validate::permit_ttl_ms(&owner, request.ttl_ms, limits)?;
        validate::transition_ms(request.transition_ms, limits)?;
        validate::metadata(&request.metadata, limits)?;
        let waiting = validate::permit_wait(request.wait_ms, request.poll_ms, request.fencing_token, limits)?;
        Ok(Self { request, path, owner, priority, ttl_ms, waiting })
    }

    fn command(&self, namespace: NamespaceRef) -> AcquirePermits {
        AcquirePermits {
            namespace,
            path: self.path.clone(),
            owner: self.owner.clone(),
            request_id: self.request.request_id.clone(),
            wanted: self.request.wanted.clone(),
            priority: self.priority,
            ttl_ms: self.ttl_ms,
            transition_ms: self.request.transition_ms,
            wait: validate::to_wait(self.waiting),
            metadata: self.request.metadata.clone(),
            fencing_token: self.request.fencing_token,
            // Only the leader's node knows which attempt of the queued request this call is.
            attempt: 0,
            abandoned: Vec::new(),
            message: None,
        }
    }
}

impl Service {
    /// Sends a request for permits or members, and waits if it does.
    pub(super) async fn request_permits<'a>(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        checked: &'a CheckedRequest,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let (namespace, waiting) = (&checked.request.thing.namespace, checked.waiting);
        if checked.request.fencing_token.is_none() {
            let has_hold = |namespace| {
                let (kind, path, owner) = (checked.request.wanted.kind(), checked.path.clone(), checked.owner.clone());
                let request_id = checked.request.request_id.clone();
                Query::Permit(PermitQuery::HasHold { namespace, kind, path, owner, request_id })
            };
            self.admit_unless_extension(tenant, context, namespace, has_hold).await?;
        }
        let make = |namespace| {
            let acquire = checked.command(namespace);
            match waiting {
                Some(waiting) => {
                    ShardRequest::WaitForPermits(Box::new(acquire), waiting.poll, CancellationToken::new())
                }
                None => ShardRequest::from(Command::Locks(LocksCommand::Permit(PermitCommand::Acquire(acquire)))),
            }
        };
        let longer = waiting.map(|waiting| context.with_wait(Duration::from_millis(waiting.wait_ms)));
        let context = longer.as_ref().unwrap_or(context);
        let answered = pin!(self.call_and_view(tenant, context, namespace, make));
        match waiting {
            None => answered.await,
            // A caller without access stops waiting: dropping the call cancels its queued request.
            Some(_) => tokio::select! {
                answer = answered => {
                    let (reply, _) = answer?;
                    // The time of the grant is unknown; before the wait there was none.
                    let shown = ViewBuilder::new(namespace, reply.clock_ms, Timestamp::now());
                    Ok((reply, shown))
                }
                error = AccessWatch::new(self.clone(), caller.clone()).wait_revoked() => {
                    Err(as_outcome_unknown(error, WAIT_ABANDONED))
                }
            },
        }
    }

    /// Releases one hold, or some of its members, or ends the wait for it. The rate limit never applies.
    pub(super) async fn release_of<'a>(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        (kind, request): (Kind, &'a ReleasePermits),
        members: Vec<String>,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        let owner = validate::owner(&request.owner)?;
        validate::permits_to_release(request.request_id.as_deref(), request.fencing_token)?;
        let make = |namespace| {
            let release = ReleaseCommand {
                namespace,
                kind,
                path: path.clone(),
                owner: owner.clone(),
                request_id: request.request_id.clone(),
                fencing_token: request.fencing_token,
                members: members.clone(),
                message: None,
            };
            ShardRequest::from(Command::Locks(LocksCommand::Permit(PermitCommand::Release(release))))
        };
        self.call_and_view(tenant, context, &request.thing.namespace, make).await
    }

    /// Ends all holds and waits of a semaphore or a pool, and deletes it.
    pub(super) async fn delete_of(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        kind: Kind,
        thing: &ThingName,
    ) -> ApiResult<()> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let delete = PermitCommand::Delete { namespace, kind, path: path.clone() };
            let command = caller.audited(context, Command::Locks(LocksCommand::Permit(delete)));
            // A second execution could end holds that were granted in between, as with the deletion of a lock.
            ShardRequest::Command(Box::new(command), RetryPolicy::Never)
        };
        let (reply, _) = self.call_and_view(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Done => ())
    }

    pub(super) async fn query_permits<'a>(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        namespace: &'a str,
        make: impl Fn(NamespaceRef) -> PermitQuery,
    ) -> ApiResult<(Reply, ViewBuilder<'a>)> {
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| ShardRequest::from(Query::Permit(make(namespace)));
        self.call_and_view(tenant, context, namespace, make).await
    }
}
