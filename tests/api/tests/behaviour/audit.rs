//! Who did what.

use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use serde_json::{Value, json};

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, create_tenant, operator_client, server};

async fn audit_entries(rest: &RestClient, query: &str) -> Vec<Value> {
    let page = rest.call(&format!("GET /v1/audit{query}")).await.ok();
    page["entries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn changes_and_forced_locks_are_told_with_who_did_them_and_in_which_call() {
    let tenant = create_tenant(server()).await;
    let own_key = tenant.rest.key.split('_').nth(1).unwrap();
    let call = async |line: &str, id: &str, body: Option<Value>| {
        let headers = [("holdfast-request-id", id), ("content-type", "application/json")];
        let bytes = body.map(|body| body.to_string()).unwrap_or_default();
        tenant.rest.send(line, &headers, bytes.into()).await.ok()
    };
    call("POST /v1/namespaces", "call-1", Some(json!({"name": "ns"}))).await;
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000});
    let take = async || call("POST /v1/namespaces/ns/locks/a%2Fb/acquire", "call-2", Some(acquire.clone())).await;
    take().await;
    call("DELETE /v1/namespaces/ns/locks/a%2Fb", "call-3", None).await;
    take().await;
    call("POST /v1/namespaces/ns/reset", "call-4", Some(json!({"live_owners": []}))).await;
    let made = call("POST /v1/api-keys", "call-5", Some(json!({"scopes": ["locks:read"]}))).await;
    let key_id = made["key_id"].as_str().unwrap();
    call(&format!("DELETE /v1/api-keys/{key_id}"), "call-6", None).await;
    tenant.update(server(), json!({"full_name": "New", "max_number_of_namespaces": 3})).await;
    call("DELETE /v1/namespaces/ns", "call-7", None).await;

    let entries = audit_entries(&tenant.rest, "").await;
    let times: Vec<&str> = entries.iter().map(|entry| entry["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|later, earlier| later >= earlier), "the latest first: {times:?}");
    // What shards note within one millisecond is in no particular order.
    let told = entries.iter().map(|entry| (entry["action"].as_str().unwrap(), entry["actor"].as_str().unwrap()));
    let mut told: Vec<(&str, &str)> = told.collect();
    told.sort_unstable();
    let expected = [
        ("ACCOUNT_CREATED", "OPERATOR"),
        ("ACCOUNT_UPDATED", "OPERATOR"),
        ("API_KEY_CREATED", "API_KEY"),
        ("API_KEY_CREATED", "OPERATOR"),
        ("API_KEY_DELETED", "API_KEY"),
        ("LOCK_DELETED", "API_KEY"),
        ("NAMESPACE_CREATED", "API_KEY"),
        ("NAMESPACE_DELETED", "API_KEY"),
        ("NAMESPACE_RESET", "API_KEY"),
    ];
    assert_eq!(told, expected);
    let by = |name: &str, value: &str| entries.iter().find(|entry| entry[name] == value).unwrap();
    let lock = by("action", "LOCK_DELETED");
    assert_eq!((&lock["request_id"], &lock["path"]), (&json!("call-3"), &json!(["a/b"])));
    assert_eq!((&lock["actor_key_id"], &lock["namespace"]), (&json!(own_key), &json!("ns")));
    assert_eq!(lock["account_id"], tenant.account);
    assert_eq!(by("request_id", "call-6")["key_id"], key_id);
    assert_eq!(by("request_id", "call-7")["action"], "NAMESPACE_DELETED");
    assert_eq!(by("action", "ACCOUNT_UPDATED")["detail"], "full_name, max_number_of_namespaces 3");
}

#[tokio::test]
async fn pages_go_back_in_time_over_all_shards() {
    let tenant = create_tenant(server()).await;
    for number in 0..7 {
        tenant.create_namespace(&format!("ns-{number}")).await;
        let lock = format!("/v1/namespaces/ns-{number}/locks/l");
        tenant.rest.json(&format!("POST {lock}/acquire"), json!({"process_id": "p", "ttl_ms": 60_000})).await.ok();
        tenant.rest.call(&format!("DELETE {lock}")).await.ok();
    }
    let whole = audit_entries(&tenant.rest, "").await;
    assert_eq!(whole.len(), 16);
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = tenant.rest.call(&format!("GET /v1/audit?page_size=3&page_token={token}")).await.ok();
        paged.extend(page["entries"].as_array().unwrap().clone());
        match page["next_page_token"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert_eq!(paged, whole);
}

#[tokio::test]
async fn an_account_sees_its_own_and_the_operator_all() {
    let (own, other) = (create_tenant(server()).await, create_tenant(server()).await);
    let line = format!("?account={}", own.account);
    other.rest.call(&format!("GET /v1/audit{line}")).await.expect_error("PERMISSION_DENIED");
    let reader = own.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read"]})).await.ok();
    let reader = own.rest.with_key(reader["api_key"].as_str().unwrap());
    reader.call("GET /v1/audit").await.expect_error("PERMISSION_DENIED");
    assert!(audit_entries(&other.rest, "").await.iter().all(|entry| entry["account_id"] == other.account));
    let operator = operator_client(server());
    assert_eq!(audit_entries(&operator, &line).await.len(), 3, "two keys and the account");
    let everybody = audit_entries(&operator, "?page_size=1000").await;
    for account in [&own.account, &other.account] {
        assert!(everybody.iter().any(|entry| entry["account_id"] == *account));
    }
    operator.call(&format!("DELETE /v1/accounts/{}", other.account)).await.ok();
    let last = &audit_entries(&operator, &format!("?account={}", other.account)).await[0];
    assert_eq!(last["action"], "ACCOUNT_DELETED", "also of accounts that are gone");
}

#[tokio::test]
async fn a_key_for_some_namespaces_sees_nothing_of_others() {
    let tenant = create_tenant(server()).await;
    let key = json!({"namespaces": ["own"], "scopes": ["account:admin"]});
    let made = tenant.rest.json("POST /v1/api-keys", key).await.ok();
    let narrow = tenant.rest.with_key(made["api_key"].as_str().unwrap());
    for name in ["own", "secret"] {
        tenant.create_namespace(name).await;
    }
    let told = |entries: Vec<Value>| {
        let mut told: Vec<_> = entries.iter().map(|entry| entry["namespace"].as_str().map(str::to_owned)).collect();
        told.sort_unstable();
        told
    };
    // The account itself and its two keys come first.
    let [own, secret] = ["own", "secret"].map(|name| Some(name.to_owned()));
    let whole = [None, None, None, own, secret];
    assert_eq!(told(audit_entries(&narrow, "").await), whole[..4]);
    assert_eq!(told(audit_entries(&tenant.rest, "").await), whole);
}

/// Lists through gRPC.
async fn list_by_grpc(rest: &RestClient, list: v1::ListAuditRequest) -> Result<v1::ListAuditResponse, Failure> {
    let mut client = AccountsServiceClient::new(channel(rest).await);
    let answer = client.list_audit(with_key(list, &rest.key)).await;
    answer.map(tonic::Response::into_inner).map_err(Failure::from_status)
}

/// The entry as the JSON of REST, without its time.
fn entry_without_time(entry: &v1::AuditEntry) -> Value {
    assert!(entry.at.is_some(), "{entry:?}");
    let path = (!entry.path.is_empty()).then_some(&entry.path);
    json!({
        "account_id": entry.account_id, "action": entry.action, "actor": entry.actor, "path": path,
        "actor_key_id": entry.actor_key_id, "request_id": entry.request_id, "key_id": entry.key_id,
        "namespace": entry.namespace, "detail": entry.detail,
    })
}

#[tokio::test]
async fn grpc_lists_what_rest_does_in_the_same_pages() {
    let (tenant, other) = (create_tenant(server()).await, create_tenant(server()).await);
    tenant.create_namespace("ns").await;
    let lock = "/v1/namespaces/ns/locks/a%2Fb";
    tenant.rest.json(&format!("POST {lock}/acquire"), json!({"process_id": "p", "ttl_ms": 60_000})).await.ok();
    tenant.rest.call(&format!("DELETE {lock}")).await.ok();
    let mut by_rest = audit_entries(&tenant.rest, "").await;
    for entry in &mut by_rest {
        entry.as_object_mut().unwrap().remove("at");
    }
    assert_eq!(by_rest.len(), 4, "the account, its key, the namespace and the lock");

    let page_of = |account_id: &str, page_size: u32, page_token: &str| v1::ListAuditRequest {
        account_id: account_id.to_owned(),
        page_size,
        page_token: page_token.to_owned(),
    };
    let first = list_by_grpc(&tenant.rest, page_of("", 3, "")).await.unwrap();
    let second = list_by_grpc(&tenant.rest, page_of("", 3, &first.next_page_token)).await.unwrap();
    assert_eq!((first.entries.len(), second.next_page_token.as_str()), (3, ""));
    let paged: Vec<Value> = first.entries.iter().chain(&second.entries).map(entry_without_time).collect();
    assert_eq!(paged, by_rest);
    let operator = operator_client(server());
    let shown = list_by_grpc(&operator, page_of(&tenant.account, 0, "")).await.unwrap();
    assert_eq!(shown.entries.iter().map(entry_without_time).collect::<Vec<_>>(), by_rest);
    let everybody = list_by_grpc(&operator, page_of("", 1_000, "")).await.unwrap();
    assert!(everybody.entries.iter().any(|entry| entry.account_id == other.account));

    let refused = async |rest: &RestClient, list| list_by_grpc(rest, list).await.unwrap_err().code;
    assert_eq!(refused(&other.rest, page_of(&tenant.account, 0, "")).await, "PERMISSION_DENIED");
    assert_eq!(refused(&other.rest.with_key("nonsense"), page_of("", 0, "")).await, "UNAUTHENTICATED");
    assert_eq!(refused(&tenant.rest, page_of("", 1_001, "")).await, "INVALID_ARGUMENT", "too long a page");
    let token = page_of("", 3, &first.next_page_token);
    assert_eq!(refused(&other.rest, token).await, "INVALID_ARGUMENT", "the token of another list");
}
