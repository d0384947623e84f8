//! `/v1/namespaces/{namespace}/pools`.

use axum::extract::State;
use axum::http::StatusCode;
use holdfast_api::{
    ChangePool, CheckPoolAnswer, ConfigurePool, GetPool, ListThings, OwnerFields, PageRequest, PoolInfo, PoolMember,
    PoolMembers, ReturnMembers, ReturnMembersAnswer, TakeMembers, TakeMembersAnswer,
};
use holdfast_backend::Service;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::{Body, StringMap};
use super::call::AuthenticatedCall;
use super::json::Json;
use super::locks::ListQuery;
use super::openapi::{
    BodyErrors, CommonErrors, NamespaceErrors, PrimitiveErrors, Problems, QuotaErrors, RateErrors, SessionErrors,
    ThingErrors,
};
use super::path_params::PathParams;
use super::problem::Problem;
use super::query::Query;
use super::things::thing;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PoolMember)]
pub(super) struct MemberBody {
    name: String,
    disabled: Option<bool>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConfigurePool)]
pub(super) struct ConfigureBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    members: Vec<MemberBody>,
    cooldown_ms: Option<u64>,
    description: Option<String>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AddedMember)]
pub(super) struct AddedBody {
    name: String,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangePool)]
pub(super) struct ChangeBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    add: Option<Vec<AddedBody>>,
    remove: Option<Vec<String>>,
    disable: Option<Vec<String>>,
    enable: Option<Vec<String>>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TakeMembers)]
pub(super) struct TakeBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    request_id: String,
    count: Option<u64>,
    member: Option<String>,
    prefer: Option<String>,
    priority: Option<u32>,
    ttl_ms: Option<u64>,
    transition_ms: Option<u64>,
    wait_ms: Option<u64>,
    poll_ms: Option<u64>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<StringMap>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReturnMembers)]
pub(super) struct ReleaseBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    process_id: Option<String>,
    session_id: Option<String>,
    holder: Option<String>,
    request_id: Option<String>,
    members: Option<Vec<String>>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GetPool)]
pub(super) struct GetBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    page_size: Option<u32>,
    page_token: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckMembers)]
pub(super) struct CheckBody {
    name: Option<String>,
    path: Option<Vec<String>>,
    fencing_token: u64,
    member: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeletePool)]
pub(super) struct DeleteBody {
    name: Option<String>,
    path: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OnePool {
    pool: PoolInfo,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Pools {
    pools: Vec<PoolInfo>,
    next_page_token: Option<String>,
}

/// Make a pool, or change it; a repeat is harmless
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/configure", tag = "Pools", operation_id = "configure_pool",
    security(("key" = ["locks:force"])),
    request_body(content = ConfigureBody, example = json!({"name": "databases", "members": [{"name": "db-1"}, {"name": "db-2"}]})),
    responses((status = 200, description = "The pool as it now is.", body = OnePool),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, QuotaErrors)>))]
pub(super) async fn configure(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ConfigureBody>,
) -> Result<Json<OnePool>, Problem> {
    let member = |member: MemberBody| PoolMember {
        name: member.name,
        disabled: member.disabled.unwrap_or(false),
        metadata: member.metadata.unwrap_or_default().0,
    };
    let request = ConfigurePool {
        thing: thing(namespace, (body.name, body.path))?,
        members: body.members.into_iter().map(member).collect(),
        cooldown_ms: body.cooldown_ms.unwrap_or(0),
        description: body.description,
        metadata: body.metadata.unwrap_or_default().0,
    };
    let pool = service.configure_pool(&call.caller, &call.context, request).await?;
    Ok(Json(OnePool { pool }))
}

/// Add, remove, disable or enable members of a pool; a repeat is harmless
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/change", tag = "Pools", operation_id = "change_pool",
    security(("key" = ["locks:force"])),
    request_body(content = ChangeBody, example = json!({"name": "databases", "disable": ["db-1"]})),
    responses((status = 200, description = "The pool as it now is.", body = OnePool),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors, QuotaErrors)>))]
pub(super) async fn change(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ChangeBody>,
) -> Result<Json<OnePool>, Problem> {
    let member = |member: AddedBody| PoolMember {
        name: member.name,
        disabled: false,
        metadata: member.metadata.unwrap_or_default().0,
    };
    let request = ChangePool {
        thing: thing(namespace, (body.name, body.path))?,
        add: body.add.unwrap_or_default().into_iter().map(member).collect(),
        remove: body.remove.unwrap_or_default(),
        disable: body.disable.unwrap_or_default(),
        enable: body.enable.unwrap_or_default(),
    };
    let pool = service.change_pool(&call.caller, &call.context, request).await?;
    Ok(Json(OnePool { pool }))
}

/// Take members, wait for them, or extend a hold. A refused request is a response, not an error
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/take", tag = "Pools", operation_id = "take_members",
    security(("key" = ["locks:write"])),
    request_body(content = TakeBody, example = json!({"name": "databases", "process_id": "alice", "request_id": "a", "count": 1, "ttl_ms": 60000})),
    responses((status = 200, description = "Whether they were granted, and the pool as it now is.", body = TakeMembersAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, ThingErrors, QuotaErrors)>))]
pub(super) async fn take(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<TakeBody>,
) -> Result<Json<TakeMembersAnswer>, Problem> {
    let request = TakeMembers {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        request_id: body.request_id,
        count: body.count,
        member: body.member,
        prefer: body.prefer,
        priority: body.priority.unwrap_or(0),
        ttl_ms: body.ttl_ms,
        transition_ms: body.transition_ms.unwrap_or(0),
        wait_ms: body.wait_ms.unwrap_or(0),
        poll_ms: body.poll_ms,
        metadata: body.metadata.unwrap_or_default().0,
        fencing_token: body.fencing_token,
    };
    Ok(Json(service.take_members(&call.caller, &call.context, request).await?))
}

/// Return a hold or some of its members, or end the wait for it
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/release", tag = "Pools", operation_id = "return_members",
    security(("key" = ["locks:write"])),
    request_body(content = ReleaseBody, example = json!({"name": "databases", "process_id": "alice", "request_id": "a"})),
    responses((status = 200, description = "Whether a hold or a wait ended or members were returned, and the pool as it now is.", body = ReturnMembersAnswer),
        Problems<(CommonErrors, BodyErrors, NamespaceErrors, SessionErrors)>))]
pub(super) async fn release(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<ReleaseBody>,
) -> Result<Json<ReturnMembersAnswer>, Problem> {
    let request = ReturnMembers {
        thing: thing(namespace, (body.name, body.path))?,
        owner: OwnerFields { process_id: body.process_id, session_id: body.session_id, holder: body.holder },
        request_id: body.request_id,
        members: body.members,
        fencing_token: body.fencing_token,
    };
    Ok(Json(service.return_members(&call.caller, &call.context, request).await?))
}

/// Get a pool, with a page of its members, in order of name
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/get", tag = "Pools", operation_id = "get_pool",
    security(("key" = ["locks:read"])),
    request_body(content = GetBody, example = json!({"name": "databases"})),
    responses((status = 200, description = "The pool, and a page of its members.", body = PoolMembers),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors, PrimitiveErrors)>))]
pub(super) async fn get(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<GetBody>,
) -> Result<Json<PoolMembers>, Problem> {
    let page = PageRequest { page_size: body.page_size, page_token: body.page_token };
    let request = GetPool { thing: thing(namespace, (body.name, body.path))?, page };
    Ok(Json(service.get_pool(&call.caller, &call.context, request).await?))
}

/// Check whether a fencing token of members is current
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/check", tag = "Pools", operation_id = "check_members",
    security(("key" = ["locks:read"])),
    request_body(content = CheckBody, example = json!({"name": "databases", "fencing_token": 57, "member": "db-1"})),
    responses((status = 200, description = "Whether the hold of that token is held, and has that member.", body = CheckPoolAnswer),
        Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn check(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<CheckBody>,
) -> Result<Json<CheckPoolAnswer>, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    let checked = (body.fencing_token, body.member);
    Ok(Json(service.check_members(&call.caller, &call.context, &thing, checked).await?))
}

/// Delete a pool: end all its holds and waits
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pools/delete", tag = "Pools", operation_id = "delete_pool",
    security(("key" = ["locks:force"])),
    request_body(content = DeleteBody, example = json!({"name": "databases"})),
    responses((status = 204, description = "Done."), Problems<(CommonErrors, BodyErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn delete(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(()): Query<()>,
    Body(body): Body<DeleteBody>,
) -> Result<StatusCode, Problem> {
    let thing = thing(namespace, (body.name, body.path))?;
    service.delete_pool(&call.caller, &call.context, &thing).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List pools, in order of path
#[utoipa::path(get, path = "/v1/namespaces/{namespace}/pools", tag = "Pools", operation_id = "list_pools",
    security(("key" = ["locks:read"])), params(("prefix" = Option<Vec<String>>, Query, description = "A path, its segments in order, one in each."), PageRequest),
    responses((status = 200, description = "A page.", body = Pools), Problems<(CommonErrors, RateErrors, NamespaceErrors)>))]
pub(super) async fn list(
    State(service): State<Service>,
    call: AuthenticatedCall,
    PathParams(namespace): PathParams<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Pools>, Problem> {
    let request = ListThings { namespace, prefix: query.prefix, page: query.page };
    let page = service.list_pools(&call.caller, &call.context, request).await?;
    Ok(Json(Pools { pools: page.items, next_page_token: page.next_page_token }))
}
