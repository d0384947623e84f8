//! Pools, through REST, gRPC and the connection of a session.

use holdfast_proto::v1;
use holdfast_proto::v1::pools_service_client::PoolsServiceClient;
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, SessionSocket, connect_new_tenant, create_tenant, server, wait_until};

/// Longer than any test takes.
const WAIT_MS: u64 = 300_000;

async fn call(rest: &RestClient, verb: &str, body: Value) -> Value {
    rest.json(&format!("POST /v1/namespaces/ns/pools/{verb}"), body).await.ok()
}

async fn configure(rest: &RestClient, names: &[&str], cooldown_ms: u64) -> Value {
    let members: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    call(rest, "configure", json!({"name": "p", "members": members, "cooldown_ms": cooldown_ms})).await["pool"].clone()
}

/// A tenant with a pool of these members.
async fn pool_of(names: &[&str]) -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    configure(&tenant.rest, names, 0).await;
    tenant.rest
}

/// A request of a process for members of `p`, with more fields.
async fn take(rest: &RestClient, owner: &str, more: Value) -> Value {
    let mut body = json!({"name": "p", "process_id": owner, "request_id": "r", "ttl_ms": 60_000});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    call(rest, "take", body).await
}

/// Returns some members, or the whole hold if none are named.
async fn release(rest: &RestClient, owner: &str, members: &[&str]) -> Value {
    let mut body = json!({"name": "p", "process_id": owner, "request_id": "r"});
    if !members.is_empty() {
        body["members"] = json!(members);
    }
    call(rest, "release", body).await
}

async fn shown(rest: &RestClient) -> Value {
    call(rest, "get", json!({"name": "p"})).await
}

#[tokio::test]
async fn a_member_has_one_holder_and_a_repeat_takes_no_other() {
    let rest = pool_of(&["a", "b", "c"]).await;
    let first = take(&rest, "p", json!({"count": 2, "prefer": "b"})).await;
    assert_eq!(
        (&first["success"], &first["members"], &first["pool"]["free"]),
        (&json!(true), &json!(["a", "b"]), &json!(1))
    );
    let again = take(&rest, "p", json!({"count": 2})).await;
    assert_eq!((&again["fencing_token"], &again["members"]), (&first["fencing_token"], &first["members"]));
    let full = take(&rest, "q", json!({"count": 2})).await;
    assert_eq!(
        (&full["success"], &full["reason"]["code"], full.get("members")),
        (&json!(false), &json!("EXHAUSTED"), None),
        "{full}"
    );
    assert_eq!(full["reason"]["holders"][0]["members"], json!(["a", "b"]));
    assert_eq!(take(&rest, "q", json!({"count": 4})).await["reason"]["code"], "TOO_LARGE");
    assert_eq!(take(&rest, "q", json!({"member": "z"})).await["reason"]["code"], "NO_MEMBER");
    let token = &first["fencing_token"];
    let check = async |member: &str| {
        call(&rest, "check", json!({"name": "p", "fencing_token": token, "member": member})).await["current"].clone()
    };
    assert_eq!((check("a").await, check("c").await), (json!(true), json!(false)));
    let returned = release(&rest, "p", &["a"]).await;
    assert_eq!((&returned["released"], &returned["pool"]["in_use"]), (&json!(true), &json!(1)));
    let none = json!({"name": "p", "process_id": "p", "request_id": "r", "members": []});
    let refused = rest.json("POST /v1/namespaces/ns/pools/release", none).await;
    assert_eq!((refused.status, &refused.body["field"]), (400, &json!("members")), "an empty list is not all");
    assert_eq!(take(&rest, "q", json!({"count": 2})).await["members"], json!(["a", "c"]));
    assert_eq!(release(&rest, "p", &[]).await["released"], true);
    assert_eq!(release(&rest, "p", &[]).await["released"], false);
}

#[tokio::test]
async fn a_request_waits_for_its_members_and_shows_among_the_waits() {
    let rest = pool_of(&["a"]).await;
    take(&rest, "p", json!({})).await;
    let waiting = tokio::spawn({
        let rest = rest.clone();
        async move { take(&rest, "q", json!({"member": "a", "wait_ms": WAIT_MS})).await }
    });
    wait_until("one waits", async || shown(&rest).await["pool"]["waiting"] == 1).await;
    let waits = rest.call("GET /v1/namespaces/ns/waits?kinds=pools").await.ok();
    let wait = &waits["waits"][0];
    assert_eq!(
        (&wait["kind"], &wait["path"], &wait["member"]),
        (&json!("pool"), &json!(["p"]), &json!("a")),
        "{waits}"
    );
    assert_eq!((wait.get("weight"), wait.get("count")), (None, None), "it does not want just any");
    release(&rest, "p", &[]).await;
    assert_eq!(waiting.await.unwrap()["members"], json!(["a"]));
}

#[tokio::test]
async fn members_are_disabled_leave_and_rest() {
    let rest = pool_of(&["a", "b"]).await;
    take(&rest, "p", json!({"member": "a"})).await;
    let changed =
        call(&rest, "change", json!({"name": "p", "remove": ["a"], "disable": ["b"], "add": [{"name": "c"}]})).await;
    assert_eq!((&changed["pool"]["leaving"], &changed["pool"]["free"]), (&json!(1), &json!(1)), "{changed}");
    release(&rest, "p", &[]).await;
    let members = shown(&rest).await["members"].clone();
    let names: Vec<&Value> = members.as_array().unwrap().iter().map(|member| &member["name"]).collect();
    assert_eq!(names, [&json!("b"), &json!("c")]);
    assert_eq!((&members[0]["disabled"], &members[0]["holder"]), (&json!(true), &json!(null)));
    configure(&rest, &["c"], 60_000).await;
    take(&rest, "p", json!({})).await;
    release(&rest, "p", &[]).await;
    let member = shown(&rest).await["members"][0].clone();
    assert!(member["rests_ms"].as_u64().is_some_and(|rests_ms| rests_ms > 0), "{member}");
    assert_eq!(take(&rest, "p", json!({})).await["reason"]["code"], "EXHAUSTED");
    call(&rest, "change", json!({"name": "p", "enable": ["c"]})).await;
    assert_eq!(take(&rest, "p", json!({})).await["members"], json!(["c"]));
}

#[tokio::test]
async fn a_session_takes_members_and_they_come_back_when_it_ends() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    configure(&rest, &["a", "b"], 0).await;
    first.send(json!({"type": "take", "request_id": "x", "path": ["p"], "count": 2})).await;
    let acquired = first.receive().await;
    assert_eq!((&acquired["state"], &acquired["members"]), (&json!("ACQUIRED"), &json!(["a", "b"])), "{acquired}");
    first.send(json!({"type": "take", "request_id": "x", "path": ["p"], "count": 1})).await;
    let rejected = first.receive().await;
    assert_eq!(
        (&rejected["type"], &rejected["code"], &rejected["request_id"]),
        (&json!("error"), &json!("INVALID_ARGUMENT"), &json!("x")),
        "it keeps what it has: {rejected}"
    );
    first.send(json!({"type": "take", "request_id": "x", "path": ["p"], "count": 2})).await;
    assert_eq!(first.receive().await["fencing_token"], acquired["fencing_token"], "a repeat finds its hold");
    second.send(json!({"type": "take", "request_id": "y", "path": ["p"], "member": "b"})).await;
    second.expect_enqueued("y").await;
    second.send(json!({"type": "take", "request_id": "z", "path": ["p"], "count": 0})).await;
    assert_eq!(second.receive().await["reason"]["code"], "INVALID_ARGUMENT");
    second.send(json!({"type": "take", "request_id": "z", "path": ["p"], "count": 1, "member": "a"})).await;
    let refused = second.receive().await;
    assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("z")), "it goes on: {refused}");
    first.send(json!({"type": "close"})).await;
    let acquired = second.receive().await;
    assert_eq!((&acquired["request_id"], &acquired["members"]), (&json!("y"), &json!(["b"])), "{acquired}");
    second.send(json!({"type": "release", "request_id": "y"})).await;
    second.expect_ready("y").await;
    wait_until("all are free", async || shown(&rest).await["pool"]["free"] == 2).await;
}

#[tokio::test]
async fn grpc_answers_as_rest_does() {
    let rest = pool_of(&["a", "b"]).await;
    let mut pools = PoolsServiceClient::new(channel(&rest).await);
    let (namespace, name) = ("ns".to_owned(), Some("p".to_owned()));
    let take = |owner: &str, count| v1::TakeMembersRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some(owner.to_owned()),
        request_id: "r".to_owned(),
        count: Some(count),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let first = pools.take_members(with_key(take("p", 1), &rest.key)).await.unwrap().into_inner();
    assert_eq!((first.success, first.members), (true, vec!["a".to_owned()]));
    let full = pools.take_members(with_key(take("q", 2), &rest.key)).await.unwrap().into_inner();
    let reason = full.reason.unwrap();
    assert_eq!(
        (reason.code().as_str_name(), reason.holders[0].members.as_slice()),
        ("EXHAUSTED", &["a".to_owned()][..])
    );
    let release = |members: &[&str]| v1::ReturnMembersRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some("p".to_owned()),
        request_id: Some("r".to_owned()),
        members: members.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    };
    let other = pools.return_members(with_key(release(&["b"]), &rest.key)).await.unwrap().into_inner();
    assert!(!other.released, "it has none of them");
    let get = v1::GetPoolRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    let shown = pools.get_pool(with_key(get, &rest.key)).await.unwrap().into_inner();
    assert_eq!(shown.members[0].holder.as_ref().map(|holder| holder.process_id.as_str()), Some("p"));
    assert_eq!(shown.pool.unwrap().free, 1);
    let all = pools.return_members(with_key(release(&[]), &rest.key)).await.unwrap().into_inner();
    assert!(all.released && all.pool.unwrap().free == 2);
}
