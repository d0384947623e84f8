//! Tenants do not see one another.

use serde_json::{Value, json};

use crate::support::{
    AcquireRequest, LockClient, RestClient, TestEnv, create_tenant, operator_client, server, through,
};

through! {
    every_frontend:
        another_tenants_namespace_looks_exactly_like_an_unknown_one,
        tenants_with_namespaces_and_locks_of_the_same_names_do_not_meet;
    with_tokens:;
}

async fn another_tenants_namespace_looks_exactly_like_an_unknown_one<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let stranger = create_tenant(server()).await;
    let client = D::connect(&stranger.rest).await;
    // `ns` is another's. Deleting one of their own of the same name makes it unknown for everybody's eyes.
    let seen = all_failures(&client).await;
    stranger.create_namespace("ns").await;
    stranger.rest.call("DELETE /v1/namespaces/ns").await.ok();
    assert_eq!(all_failures(&client).await, seen);
    assert!(seen.iter().all(|refused| refused.code_and_detail() == ("NAMESPACE_NOT_FOUND", "namespace not found")));
    assert_eq!(world.client.get("l").await.unwrap().writer_id(), "p");
}

async fn all_failures<D: LockClient>(client: &D) -> Vec<crate::support::frontends::Failure> {
    let outcomes = [
        client.acquire(AcquireRequest::write("l", "p")).await.map(drop),
        client.release("l", "p").await.map(drop),
        client.get("l").await.map(drop),
        client.delete("l").await,
        client.get_namespace("ns").await.map(drop),
        client.update_namespace("ns", "mine").await.map(drop),
        client.delete_namespace("ns").await,
    ];
    outcomes.into_iter().map(Result::unwrap_err).collect()
}

async fn tenants_with_namespaces_and_locks_of_the_same_names_do_not_meet<D: LockClient>(world: TestEnv<D>) {
    let other = TestEnv::<D>::open().await;
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    other.client.get("l").await.unwrap().assert_free();
    other.client.expect_granted(AcquireRequest::write("l", "p")).await;
    world.client.delete("l").await.unwrap();
    assert_eq!(other.held_locks().await, ["l"]);
    other.client.delete_namespace("ns").await.unwrap();
    world.client.expect_granted(AcquireRequest::write("l", "q")).await;
}

/// Every call about one namespace over REST.
fn namespace_calls(namespace: &str) -> Vec<(String, Option<Value>)> {
    let at = format!("/v1/namespaces/{namespace}");
    let acquire = json!({"process_id": "p", "ttl_ms": 1_000});
    vec![
        (format!("GET {at}"), None),
        (format!("PATCH {at}"), Some(json!({"description": "mine"}))),
        (format!("DELETE {at}"), None),
        (format!("GET {at}/locks"), None),
        (format!("GET {at}/locks/l"), None),
        (format!("DELETE {at}/locks/l"), None),
        (format!("POST {at}/locks/l/acquire"), Some(acquire)),
        (format!("POST {at}/locks/l/release"), Some(json!({"process_id": "p"}))),
        (format!("POST {at}/locks/l/check"), Some(json!({"fencing_token": 1}))),
    ]
}

async fn send(rest: &RestClient, line: &str, body: Option<Value>) -> (u16, String, Vec<String>) {
    let answer = match body {
        Some(body) => rest.json(line, body).await,
        None => rest.call(line).await,
    };
    let mut headers: Vec<String> = answer.headers.keys().map(|name| name.as_str().to_owned()).collect();
    headers.sort();
    (answer.status, answer.text, headers)
}

#[tokio::test]
async fn answers_about_another_tenants_namespace_are_byte_for_byte_those_about_an_unknown_one() {
    let owner = create_tenant(server()).await;
    owner.create_namespace("theirs").await;
    let stranger = create_tenant(server()).await;
    for ((theirs, body), (unknown, _)) in namespace_calls("theirs").into_iter().zip(namespace_calls("unseen")) {
        let (about_theirs, about_unknown) =
            (send(&stranger.rest, &theirs, body.clone()).await, send(&stranger.rest, &unknown, body).await);
        assert_eq!(about_theirs.0, 404, "{}", about_theirs.1);
        let same = (about_unknown.0, about_unknown.1.replace("unseen", "theirs"), about_unknown.2);
        assert_eq!(about_theirs, same, "{theirs}");
    }
}

#[tokio::test]
async fn another_tenants_key_looks_exactly_like_an_unknown_one() {
    let owner = create_tenant(server()).await;
    let keys = owner.rest.call("GET /v1/api-keys").await.ok();
    let key_id = keys["api_keys"][0]["key_id"].as_str().unwrap();
    let stranger = create_tenant(server()).await;
    let theirs = stranger.rest.call(&format!("DELETE /v1/api-keys/{key_id}")).await;
    let unknown = stranger.rest.call("DELETE /v1/api-keys/unknown").await;
    assert_eq!(theirs.text, unknown.text.replace("unknown", key_id));
    theirs.expect_error("API_KEY_NOT_FOUND");
    let line = format!("DELETE /v1/accounts/{}/api-keys/{key_id}", stranger.account);
    operator_client(server()).call(&line).await.expect_error("API_KEY_NOT_FOUND");
    owner.rest.call("GET /v1/namespaces").await.ok();
}
