//! Converts messages of `PoolsService`.

use holdfast_proto::v1;

use super::{convert, things};
use crate::{
    ApiResult, ChangePool, CheckPoolAnswer, ConfigurePool, GetPool, MemberInfo, OwnerFields, PoolInfo, PoolMember,
    PoolMembers, ReturnMembers, ReturnMembersAnswer, TakeMembers, TakeMembersAnswer, ThingName,
};

/// Converts a configuration.
pub fn configure(message: v1::ConfigurePoolRequest) -> ApiResult<ConfigurePool> {
    Ok(ConfigurePool {
        thing: things::name(message.namespace, message.name, message.path)?,
        members: message.members.into_iter().map(member).collect(),
        cooldown_ms: message.cooldown_ms,
        description: Some(message.description),
        metadata: message.metadata.into_iter().collect(),
    })
}

/// Converts a change of some members.
pub fn change(message: v1::ChangePoolRequest) -> ApiResult<ChangePool> {
    Ok(ChangePool {
        thing: things::name(message.namespace, message.name, message.path)?,
        add: message.add.into_iter().map(added).collect(),
        remove: message.remove,
        disable: message.disable,
        enable: message.enable,
    })
}

fn member(member: v1::PoolMember) -> PoolMember {
    PoolMember { name: member.name, disabled: member.disabled, metadata: member.metadata.into_iter().collect() }
}

fn added(member: v1::AddedMember) -> PoolMember {
    PoolMember { name: member.name, disabled: false, metadata: member.metadata.into_iter().collect() }
}

/// Converts a request for members.
pub fn take(message: v1::TakeMembersRequest) -> ApiResult<TakeMembers> {
    Ok(TakeMembers {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        request_id: message.request_id,
        count: message.count,
        member: message.member,
        prefer: message.prefer,
        priority: message.priority,
        ttl_ms: message.ttl_ms,
        transition_ms: message.transition_ms,
        wait_ms: message.wait_ms,
        poll_ms: message.poll_ms,
        metadata: message.metadata.into_iter().collect(),
        fencing_token: message.fencing_token,
    })
}

/// Converts a return.
pub fn release(message: v1::ReturnMembersRequest) -> ApiResult<ReturnMembers> {
    Ok(ReturnMembers {
        thing: things::name(message.namespace, message.name, message.path)?,
        owner: OwnerFields { process_id: message.process_id, session_id: message.session_id, holder: message.holder },
        request_id: message.request_id,
        // A repeated field can't be absent: an empty one stands for the whole hold.
        members: Some(message.members).filter(|members| !members.is_empty()),
        fencing_token: message.fencing_token,
    })
}

/// Converts a look at a pool.
pub fn get(message: v1::GetPoolRequest) -> ApiResult<GetPool> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok(GetPool { thing, page: convert::page_request(message.page_size, message.page_token) })
}

/// Converts a check; returns the token and the member as well.
pub fn check(message: v1::CheckMembersRequest) -> ApiResult<(ThingName, (u64, Option<String>))> {
    let thing = things::name(message.namespace, message.name, message.path)?;
    Ok((thing, (message.fencing_token, message.member)))
}

/// Converts a deletion.
pub fn delete(message: v1::DeletePoolRequest) -> ApiResult<ThingName> {
    things::name(message.namespace, message.name, message.path)
}

/// Converts a pool.
pub fn info(pool: PoolInfo) -> v1::Pool {
    v1::Pool {
        namespace: pool.namespace,
        name: pool.name,
        path: pool.path,
        members_total: pool.members_total,
        free: pool.free,
        in_use: pool.in_use,
        leaving: pool.leaving,
        cooldown_ms: pool.cooldown_ms,
        holders_total: pool.holders_total,
        waiting: pool.waiting,
        description: pool.description,
        metadata: pool.metadata.into_iter().collect(),
        revision: pool.revision,
    }
}

fn state(member: MemberInfo) -> v1::PoolMemberState {
    v1::PoolMemberState {
        name: member.name,
        disabled: member.disabled,
        leaving: member.leaving,
        metadata: member.metadata.into_iter().collect(),
        free_since: member.free_since,
        rests_ms: member.rests_ms,
        rests_until: member.rests_until.map(convert::instant),
        holder: member.holder.map(convert::permit_holder),
    }
}

/// Converts the response of a take.
pub fn taken(answer: TakeMembersAnswer) -> v1::TakeMembersResponse {
    v1::TakeMembersResponse {
        success: answer.success,
        fencing_token: answer.fencing_token,
        members: answer.members,
        reason: answer.reason.map(convert::refusal),
        pool: Some(info(answer.pool)),
        release_requested: answer.release_requested.map(convert::release_request),
    }
}

/// Converts the response of a return.
pub fn returned(answer: ReturnMembersAnswer) -> v1::ReturnMembersResponse {
    v1::ReturnMembersResponse { released: answer.released, pool: Some(info(answer.pool)) }
}

/// Converts the response of a check.
pub fn checked(answer: CheckPoolAnswer) -> v1::CheckMembersResponse {
    v1::CheckMembersResponse { current: answer.current, pool: Some(info(answer.pool)) }
}

/// Converts a pool with a page of its members.
pub fn members(answer: PoolMembers) -> v1::GetPoolResponse {
    v1::GetPoolResponse {
        pool: Some(info(answer.pool)),
        members: answer.members.into_iter().map(state).collect(),
        next_page_token: answer.next_page_token.unwrap_or_default(),
    }
}
