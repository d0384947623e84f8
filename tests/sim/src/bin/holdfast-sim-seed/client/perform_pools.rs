//! Calls about pools as they are made through the gateway's service.

use holdfast_api::{
    ApiResult, ChangePool, ConfigurePool, GetPool, PageRequest, PoolMember, ReturnMembers, TakeMembers,
};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::Metadata;

use super::Client;
use super::perform::{outcome_of, owner_fields};
use super::perform_things::thing;
use crate::history::CALL_KEY;
use crate::things::{MemberChange, PermitsOp, PoolOp, ThingAnswer};

fn member(name: String) -> PoolMember {
    PoolMember { name, disabled: false, metadata: Metadata::new() }
}

impl Client {
    pub(super) async fn perform_for_pool(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: PoolOp,
    ) -> ApiResult<ThingAnswer> {
        let service = &self.service;
        Ok(match op {
            PoolOp::Configure { path, members, cooldown_ms } => {
                let (thing, metadata) = (thing(namespace, path), Metadata::new());
                let members = members.into_iter().map(member).collect();
                let request = ConfigurePool { thing, members, cooldown_ms, description: None, metadata };
                ThingAnswer::Pool(service.configure_pool(caller, context, request).await?.into())
            }
            PoolOp::Change { path, member: name, change } => {
                let (thing, names) = (thing(namespace, path), vec![name.clone()]);
                let (mut remove, mut disable, mut enable) = (Vec::new(), Vec::new(), Vec::new());
                match change {
                    MemberChange::Remove => remove = names,
                    MemberChange::Disable => disable = names,
                    MemberChange::Enable => enable = names,
                }
                let add = if remove.is_empty() { vec![member(name)] } else { Vec::new() };
                let request = ChangePool { thing, add, remove, disable, enable };
                ThingAnswer::Pool(service.change_pool(caller, context, request).await?.into())
            }
            PoolOp::Return { path, owner, request_id, members } => {
                let (thing, owner, request_id) = (thing(namespace, path), owner_fields(owner), Some(request_id));
                let members = (!members.is_empty()).then_some(members);
                let request = ReturnMembers { thing, owner, request_id, members, fencing_token: None };
                let answer = service.return_members(caller, context, request).await?;
                ThingAnswer::Returned { released: answer.released, pool: answer.pool.into() }
            }
            PoolOp::Get { path } => {
                let request = GetPool { thing: thing(namespace, path), page: PageRequest::default() };
                ThingAnswer::Pool(service.get_pool(caller, context, request).await?.pool.into())
            }
        })
    }

    pub(super) async fn take_members(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        (asked, count, member, prefer): (PermitsOp, Option<u64>, Option<String>, Option<String>),
        id: usize,
    ) -> ApiResult<ThingAnswer> {
        let request = TakeMembers {
            thing: thing(namespace, asked.path),
            owner: owner_fields(asked.owner),
            request_id: asked.request_id,
            count,
            member,
            prefer,
            priority: asked.priority,
            ttl_ms: asked.ttl_ms,
            transition_ms: asked.transition_ms,
            wait_ms: asked.wait_ms,
            poll_ms: None,
            metadata: [(CALL_KEY.to_owned(), id.to_string())].into(),
            fencing_token: None,
        };
        let answer = self.service.take_members(caller, context, request).await?;
        let (outcome, members) = (outcome_of(answer.fencing_token, answer.reason), answer.members);
        Ok(ThingAnswer::Acquired { outcome, members })
    }
}
