//! Pools: holds of named members.

use holdfast_api::{
    ApiResult, ChangePool, CheckPoolAnswer, ConfigurePool, GetPool, ListThings, Page, PoolInfo, PoolMember,
    PoolMembers, ReleasePermits, ReturnMembers, ReturnMembersAnswer, TakeMembers, TakeMembersAnswer, ThingName,
    page_token, validate,
};
use holdfast_types::{
    ChangePool as ChangeCommand, Command, ConfigurePool as ConfigureCommand, FencingToken, Kind, LocksCommand,
    MemberSpec, Path, PermitCommand, PermitQuery, PermitsView, Response, Scopes,
};

use super::permits::{CheckedRequest, PermitRequest};
use crate::shard_call::{ShardRequest, expect_answer};
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Makes a pool or changes it; nobody loses a member.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn configure_pool(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ConfigurePool,
    ) -> ApiResult<PoolInfo> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::new_thing(&request.thing.name, tenant.limits())?;
        validate::configured_members(&request.members, tenant.limits())?;
        let members = specs(&request.members);
        validate::cooldown_ms(request.cooldown_ms, tenant.limits())?;
        let description = request.description.unwrap_or_default();
        validate::description(&description, tenant.limits())?;
        validate::metadata(&request.metadata, tenant.limits())?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let configure = ConfigureCommand {
                namespace,
                path: path.clone(),
                members: members.clone(),
                cooldown_ms: request.cooldown_ms,
                description: description.clone(),
                metadata: request.metadata.clone(),
            };
            let command = Command::Locks(LocksCommand::Permit(PermitCommand::ConfigurePool(configure)));
            ShardRequest::from(caller.audited(context, command))
        };
        let (reply, shown) = self.call_and_view(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Pool(pool) => shown.pool(pool))
    }

    /// Changes some members of a pool; nobody loses one.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `QUOTA_EXCEEDED`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn change_pool(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ChangePool,
    ) -> ApiResult<PoolInfo> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        validate::changed_members(&request, tenant.limits())?;
        let add = specs(&request.add);
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let change = ChangeCommand {
                namespace,
                path: path.clone(),
                add: add.clone(),
                remove: request.remove.clone(),
                disable: request.disable.clone(),
                enable: request.enable.clone(),
            };
            let command = Command::Locks(LocksCommand::Permit(PermitCommand::ChangePool(change)));
            ShardRequest::from(caller.audited(context, command))
        };
        let (reply, shown) = self.call_and_view(tenant, context, &request.thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::Pool(pool) => shown.pool(pool))
    }

    /// Takes members, waits for them, or extends a hold. A refused request is a response, not an error.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `QUOTA_EXCEEDED`, `SESSION_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every
    /// call.
    pub async fn take_members(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: TakeMembers,
    ) -> ApiResult<TakeMembersAnswer> {
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", &request.thing.namespace)?;
        let wanted = validate::wanted_members(request.count, request.member, request.prefer)?;
        let checked = CheckedRequest::new(
            PermitRequest {
                thing: request.thing,
                owner: request.owner,
                request_id: request.request_id,
                wanted,
                priority: request.priority,
                ttl_ms: request.ttl_ms,
                transition_ms: request.transition_ms,
                wait_ms: request.wait_ms,
                poll_ms: request.poll_ms,
                metadata: request.metadata,
                fencing_token: request.fencing_token,
            },
            tenant.limits(),
        )?;
        let (reply, shown) = self.request_permits(caller, context, &checked).await?;
        expect_answer!(reply.outcome?,
            Response::PermitsAcquired {
                outcome, members, view: PermitsView::Pool(pool), holders, release_requested
            } => shown.members_taken((outcome, members, release_requested), pool, holders))
    }

    /// Returns a hold or some of its members, or ends the wait for it; a call of an owner without it changes nothing.
    /// The rate limit never applies.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn return_members(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ReturnMembers,
    ) -> ApiResult<ReturnMembersAnswer> {
        let ReturnMembers { thing, owner, request_id, members, fencing_token } = request;
        let members = validate::members_to_return(members)?;
        let release = ReleasePermits { thing, owner, request_id, fencing_token };
        let (reply, shown) = self.release_of(caller, context, (Kind::Pool, &release), members).await?;
        expect_answer!(reply.outcome?, Response::PermitsReleased { released, view: PermitsView::Pool(pool) }
            => ReturnMembersAnswer { released, pool: shown.pool(pool) })
    }

    /// Returns a pool and a page of its members, in order of name.
    ///
    /// # Errors
    /// `PRIMITIVE_NOT_FOUND`, `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn get_pool(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: GetPool,
    ) -> ApiResult<PoolMembers> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let namespace = &request.thing.namespace;
        let limit = validate::page_size(request.page.page_size)?;
        let path = validate::existing_thing(&request.thing.name, tenant.limits())?;
        let list = format!("members of {} {namespace:?} {:?}", tenant.account.id, path.0);
        let after: Option<String> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| PermitQuery::Members { namespace, path: path.clone(), after: after.clone(), limit };
        let (reply, shown) = self.query_permits(tenant, context, namespace, make).await?;
        let (pool, members, more) = expect_answer!(reply.outcome?,
            Response::PoolMembers { pool, members, more } => (pool, members, more))?;
        let last = members.last().map(|member| &member.name);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        let members = members.into_iter().map(|member| shown.member(member)).collect();
        Ok(PoolMembers { pool: shown.pool(pool), members, next_page_token })
    }

    /// Returns the pool, and whether the hold with this token exists now and has the member, if one is named.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn check_members(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        thing: &ThingName,
        (fencing_token, member): (FencingToken, Option<String>),
    ) -> ApiResult<CheckPoolAnswer> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let path = validate::existing_thing(&thing.name, tenant.limits())?;
        if let Some(member) = &member {
            validate::name("member", member)?;
        }
        let make = |namespace| {
            let (kind, path, member) = (Kind::Pool, path.clone(), member.clone());
            PermitQuery::Check { namespace, kind, path, fencing_token, member }
        };
        let (reply, shown) = self.query_permits(tenant, context, &thing.namespace, make).await?;
        expect_answer!(reply.outcome?, Response::PermitsChecked { current, view: PermitsView::Pool(pool) }
            => CheckPoolAnswer { current, pool: shown.pool(pool) })
    }

    /// Ends all holds and waits of a pool, and deletes it.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn delete_pool(&self, caller: &AuthContext, context: &CallContext, thing: &ThingName) -> ApiResult<()> {
        self.delete_of(caller, context, Kind::Pool, thing).await
    }

    /// Lists the pools at and below a path, in order of path.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn list_pools(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ListThings,
    ) -> ApiResult<Page<PoolInfo>> {
        let tenant = caller.require(Scopes::LOCKS_READ)?;
        let limit = validate::page_size(request.page.page_size)?;
        let prefix = validate::prefix(&request.prefix, tenant.limits())?;
        let list = format!("pools of {} {:?} {:?}", tenant.account.id, request.namespace, prefix.0);
        let after: Option<Path> = page_token::decode(&list, request.page.page_token.as_deref())?;
        let make = |namespace| {
            let (kind, prefix, after) = (Kind::Pool, prefix.clone(), after.clone());
            PermitQuery::List { namespace, kind, prefix, after, limit }
        };
        let (reply, shown) = self.query_permits(tenant, context, &request.namespace, make).await?;
        let (pools, more) = expect_answer!(reply.outcome?, Response::Pools { pools, more } => (pools, more))?;
        let last = pools.last().map(|pool| &pool.path);
        let next_page_token = last.filter(|_| more).map(|last| page_token::encode(&list, last));
        Ok(Page { items: pools.into_iter().map(|pool| shown.pool(pool)).collect(), next_page_token })
    }
}

/// Returns members as they are stored.
fn specs(members: &[PoolMember]) -> Vec<MemberSpec> {
    let spec = |member: &PoolMember| {
        let PoolMember { name, disabled, metadata } = member.clone();
        MemberSpec { name, disabled, metadata }
    };
    members.iter().map(spec).collect()
}
