//! `/v1/usage`, `/v1/audit` and `/v1/cluster`: usage, the audit log, and the state of the cluster.

use axum::extract::State;
use holdfast_api::{ApiResult, AuditEntry, ClusterInfo, ListAudit, PageRequest, UsageInfo};
use holdfast_backend::Service;
use serde::Serialize;
use utoipa::ToSchema;

use super::call::AuthenticatedCall;
use super::json::Json;
use super::openapi::{AccountErrors, CommonErrors, Problems, RateErrors};
use super::problem::Problem;
use super::query::{FromQuery, Parameters, Query};

/// The account; absent for the caller's own.
#[derive(Debug)]
pub(super) struct UsageQuery {
    account: Option<String>,
}

impl FromQuery for UsageQuery {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { account: parameters.one("account")? })
    }
}

impl FromQuery for ListAudit {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        Ok(Self { account: parameters.one("account")?, page: PageRequest::from_query(parameters)? })
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct AuditLog {
    entries: Vec<AuditEntry>,
    next_page_token: Option<String>,
}

/// The account's usage and limits
#[utoipa::path(get, path = "/v1/usage", tag = "Usage", operation_id = "get_usage",
    security(("key" = ["locks:read"]), ("key" = ["namespaces:admin"]), ("key" = ["account:admin"]), ("operator" = [])),
    params(("account" = Option<String>, Query, description = "Whose; the operator has to say, others may only ask for \
        their own.")),
    responses((status = 200, description = "Figures and limits.", body = UsageInfo),
        Problems<(CommonErrors, RateErrors, AccountErrors)>))]
pub(super) async fn usage(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(query): Query<UsageQuery>,
) -> Result<Json<UsageInfo>, Problem> {
    Ok(Json(service.usage(&call.caller, &call.context, query.account.as_deref()).await?))
}

/// List actions on accounts, keys, namespaces and forced locks, the latest first
#[utoipa::path(get, path = "/v1/audit", tag = "Usage", operation_id = "list_audit",
    security(("key" = ["account:admin"]), ("operator" = [])),
    params(("account" = Option<String>, Query, description = "Whose; the operator sees all when it is absent, others \
        may only ask for their own."), PageRequest),
    responses((status = 200, description = "A page.", body = AuditLog), Problems<(CommonErrors, RateErrors)>))]
pub(super) async fn audit(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(query): Query<ListAudit>,
) -> Result<Json<AuditLog>, Problem> {
    let page = service.list_audit(&call.caller, &call.context, query).await?;
    Ok(Json(AuditLog { entries: page.items, next_page_token: page.next_page_token }))
}

/// Nodes, groups, shards, leaders, and the lag of replicas
#[utoipa::path(get, path = "/v1/cluster", tag = "Cluster", operation_id = "get_cluster", security(("operator" = [])),
    responses((status = 200, description = "What every node says of itself now.", body = ClusterInfo),
        Problems<(CommonErrors,)>))]
pub(super) async fn cluster(
    State(service): State<Service>,
    call: AuthenticatedCall,
    Query(()): Query<()>,
) -> Result<Json<ClusterInfo>, Problem> {
    Ok(Json(service.cluster(&call.caller, &call.context).await?))
}
