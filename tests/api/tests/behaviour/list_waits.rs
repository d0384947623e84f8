//! The list of requests that wait.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{Tenant, create_tenant, server};

const WAITS: &str = "/v1/namespaces/n/waits";

/// Acquires `resources`; with a poll, so that a request that has to wait keeps its place and is answered at once.
async fn acquire_set(tenant: &Tenant, owner: &str, resources: Value, more: Value) -> Value {
    let mut body = json!({"process_id": owner, "ttl_ms": 60_000, "resources": resources});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tenant.rest.json("POST /v1/namespaces/n/lock-sets/acquire", body).await.ok()
}

fn wait_options() -> Value {
    json!({"wait_ms": 30_000, "poll_ms": 1})
}

#[tokio::test]
async fn who_waits_is_listed_with_whom_it_waits_for() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("n").await;
    assert_eq!(tenant.rest.call(&format!("GET {WAITS}")).await.ok(), json!({"waits": [], "next_page_token": null}));
    acquire_set(&tenant, "h", json!([{"path": ["a", "x"]}]), json!({})).await;
    acquire_set(&tenant, "p", json!([{"path": ["b"], "mode": "READ"}, {"path": ["a"]}]), wait_options()).await;
    acquire_set(&tenant, "q", json!([{"path": ["a"]}]), wait_options()).await;
    let listed = tenant.rest.call(&format!("GET {WAITS}")).await.ok();
    let [first, second] = listed["waits"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&first["process_id"], &first["session_id"], &first["upgrade"]),
        (&json!("p"), &Value::Null, &json!(false))
    );
    assert_eq!(first["resources"], json!([{"path": ["b"], "mode": "READ"}, {"path": ["a"], "mode": "WRITE"}]));
    let left = first["remaining_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&left) && first["expires_at"].is_string() && first["waiting_since"].is_string());
    assert_eq!((&first["reason"]["code"], &first["reason"]["queue_position"]), (&json!("DESCENDANT"), &json!(0)));
    let blocker = &first["reason"]["blockers"][0];
    assert_eq!((&blocker["process_id"], &blocker["path"]), (&json!("h"), &json!(["a", "x"])));
    assert_eq!((&second["process_id"], &second["reason"]["queue_position"]), (&json!("q"), &json!(1)));

    tenant.rest.json("POST /v1/namespaces/n/lock-sets/release", json!({"process_id": "h", "all": true})).await.ok();
    let listed = tenant.rest.call(&format!("GET {WAITS}")).await.ok();
    let [only] = listed["waits"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&only["process_id"], &only["reason"]["code"]), (&json!("q"), &json!("HELD")));
}

#[tokio::test]
async fn waits_come_in_pages() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("n").await;
    acquire_set(&tenant, "h", json!([{"path": ["l"]}]), json!({})).await;
    for owner in ["p", "q", "r"] {
        acquire_set(&tenant, owner, json!([{"path": ["l"]}]), wait_options()).await;
    }
    let mut seen = Vec::new();
    let mut address = format!("GET {WAITS}?page_size=2");
    loop {
        let page = tenant.rest.call(&address).await.ok();
        let owners =
            page["waits"].as_array().unwrap().iter().map(|wait| wait["process_id"].as_str().unwrap().to_owned());
        seen.push(owners.collect::<Vec<_>>());
        let Some(token) = page["next_page_token"].as_str() else { break };
        address = format!("GET {WAITS}?page_size=2&page_token={token}");
    }
    assert_eq!(seen, [vec!["p", "q"], vec!["r"]]);
    let other = tenant.rest.call("GET /v1/namespaces/other/waits").await;
    assert_eq!(other.body["code"], "NAMESPACE_NOT_FOUND");
}

/// Lists through gRPC, a page.
async fn list_by_grpc(
    tenant: &Tenant,
    namespace: &str,
    kinds: &[&str],
    (page_size, page_token): (u32, String),
) -> Result<v1::ListWaitsResponse, tonic::Status> {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let list = v1::ListWaitsRequest { namespace: namespace.to_owned(), kinds, page_size, page_token };
    let mut locks = LocksServiceClient::new(channel(&tenant.rest).await);
    locks.list_waits(with_key(list, &tenant.rest.key)).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn grpc_lists_what_rest_does_in_the_same_pages() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("n").await;
    let post = async |call: &str, body: Value| {
        tenant.rest.json(&format!("POST /v1/namespaces/n/{call}"), body).await.ok();
    };
    let owned = |owner: &str, more: Value| {
        let mut body = json!({"process_id": owner, "request_id": "r", "ttl_ms": 60_000, "name": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.as_object_mut().unwrap().extend(wait_options().as_object().unwrap().clone());
        body
    };
    acquire_set(&tenant, "h", json!([{"path": ["l"]}]), json!({})).await;
    acquire_set(&tenant, "p", json!([{"path": ["l"], "mode": "READ"}]), wait_options()).await;
    post("semaphores/acquire", owned("h", json!({"permits": 2, "weight": 2}))).await;
    post("semaphores/acquire", owned("q", json!({"weight": 2, "priority": 3}))).await;
    post("pools/configure", json!({"name": "x", "members": [{"name": "m"}]})).await;
    post("pools/take", owned("h", json!({}))).await;
    post("pools/take", owned("r", json!({"member": "m"}))).await;

    let all = list_by_grpc(&tenant, "n", &["locks", "semaphores", "pools"], (0, String::new())).await.unwrap();
    assert_eq!(all.next_page_token, "");
    let [lock, permits, member] = all.waits.as_slice() else { panic!("{all:?}") };
    assert_eq!((lock.process_id.as_str(), lock.kind.as_deref(), lock.resources.len()), ("p", None, 1));
    assert_eq!((lock.resources[0].mode(), &lock.resources[0].path), (v1::Mode::Read, &vec!["l".to_owned()]));
    let blocker = lock.reason.as_ref().unwrap().blockers[0].holder.as_ref().unwrap();
    assert_eq!(blocker.process_id, "h");
    assert!(lock.remaining_ms.is_some_and(|left| (1..=30_000).contains(&left)) && lock.waiting_since.is_some());
    assert_eq!((permits.kind.as_deref(), permits.weight, permits.priority), (Some("semaphore"), Some(2), Some(3)));
    assert_eq!((member.kind.as_deref(), member.member.as_deref()), (Some("pool"), Some("m")));
    assert_eq!((&member.path, member.request_id.as_deref()), (&vec!["x".to_owned()], Some("r")));
    let listed = tenant.rest.call(&format!("GET {WAITS}?kinds=locks,semaphores,pools")).await.ok();
    let by_rest: Vec<&str> =
        listed["waits"].as_array().unwrap().iter().map(|wait| wait["process_id"].as_str().unwrap()).collect();
    assert_eq!(by_rest, ["p", "q", "r"]);

    let first = list_by_grpc(&tenant, "n", &["locks", "semaphores", "pools"], (2, String::new())).await.unwrap();
    let owners = |page: &v1::ListWaitsResponse| -> Vec<String> {
        page.waits.iter().map(|wait| wait.process_id.clone()).collect()
    };
    assert_eq!(owners(&first), ["p", "q"]);
    let token = first.next_page_token;
    let second = list_by_grpc(&tenant, "n", &["locks", "semaphores", "pools"], (2, token.clone())).await.unwrap();
    assert_eq!((owners(&second), second.next_page_token.as_str()), (vec!["r".to_owned()], ""));
    assert_eq!(owners(&list_by_grpc(&tenant, "n", &[], (0, String::new())).await.unwrap()), ["p"]);

    let refused = async |namespace: &str, kinds: &[&str], page: (u32, String)| {
        let status = list_by_grpc(&tenant, namespace, kinds, page).await.unwrap_err();
        (status.code(), Failure::from_status(status).code)
    };
    let invalid = (Code::InvalidArgument, "INVALID_ARGUMENT".to_owned());
    assert_eq!(refused("n", &["latch"], (0, String::new())).await, invalid, "no such kind");
    assert_eq!(refused("n", &[], (1_001, String::new())).await, invalid, "too long a page");
    assert_eq!(refused("n", &[], (2, token)).await, invalid, "the token of another list");
    let unknown = (Code::NotFound, "NAMESPACE_NOT_FOUND".to_owned());
    assert_eq!(refused("other", &[], (0, String::new())).await, unknown);
}
