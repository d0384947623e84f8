//! Bodies that are not what is asked for: each refused with what is wrong named, and nothing changed.

use bytes::Bytes;
use serde_json::json;

use crate::support::{RestClient, TestEnv, create_tenant, frontends, operator_client, raw, server};

const ACQUIRE: &str = "POST /v1/namespaces/ns/locks/l/acquire";
const MAX_BODY_BYTES: usize = 64 * 1_024;

async fn test_env() -> TestEnv<frontends::rest::Client> {
    TestEnv::open().await
}

async fn post(rest: &RestClient, line: &str, body: &str) -> holdfast_testkit::Response {
    rest.send(line, &[("content-type", "application/json")], Bytes::copy_from_slice(body.as_bytes())).await
}

#[tokio::test]
async fn what_is_not_json_is_refused() {
    let world = test_env().await;
    for body in
        ["{", "nonsense", "{\"process_id\":\"p\",}", "{'process_id':'p'}", "{\"process_id\":\"\\ud800\"}", "\u{feff}{}"]
    {
        let refused = post(&world.rest, ACQUIRE, body).await.expect_error("INVALID_ARGUMENT");
        assert!(refused["detail"].as_str().unwrap().contains("not JSON"), "{body}: {refused}");
    }
    for body in ["{} {}", "{}x", "{\"process_id\":\"p\",\"ttl_ms\":1000}\0"] {
        post(&world.rest, ACQUIRE, body).await.expect_error("INVALID_ARGUMENT");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn json_that_is_no_object_is_refused() {
    let world = test_env().await;
    for body in ["[]", "null", "1", "\"text\"", "true", "[\"p\",null,null,\"WRITE\",1000]"] {
        let refused = post(&world.rest, ACQUIRE, body).await.expect_error("INVALID_ARGUMENT");
        assert!(refused["detail"].as_str().unwrap().contains("JSON object"), "{body}: {refused}");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn deep_json_does_no_harm() {
    let world = test_env().await;
    let deep = format!("{{\"metadata\":{}{}}}", "[".repeat(30_000), "]".repeat(30_000));
    post(&world.rest, ACQUIRE, &deep).await.expect_error("INVALID_ARGUMENT");
    world.rest.call("GET /v1/namespaces/ns").await.ok();
}

#[tokio::test]
async fn bad_utf_8_in_a_body_is_refused() {
    let world = test_env().await;
    let bodies = [
        &b"{\"process_id\":\"p\xff\",\"ttl_ms\":1000}"[..],
        b"{\"process_id\":\"p\xc0\xaf\",\"ttl_ms\":1000}",
        b"{\"process_id\":\"p\xe0\x80\xaf\",\"ttl_ms\":1000}",
        b"{\"process_id\xc3\":\"p\"}",
        b"\xff\xfe{}",
    ];
    for body in bodies {
        let headers = [("content-type", "application/json")];
        world.rest.send(ACQUIRE, &headers, Bytes::copy_from_slice(body)).await.expect_error("INVALID_ARGUMENT");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn unknown_fields_are_refused_by_name_at_every_call() {
    let world = test_env().await;
    let account = format!("/v1/accounts/{}", world.tenant.account);
    for (line, body) in [
        (ACQUIRE, json!({"process_id": "p", "ttl_ms": 1_000, "colour": 1})),
        ("POST /v1/namespaces/ns/locks/l/release", json!({"process_id": "p", "colour": 1})),
        ("POST /v1/namespaces/ns/locks/l/check", json!({"fencing_token": 1, "colour": 1})),
        ("POST /v1/namespaces", json!({"name": "n", "colour": 1})),
        ("PATCH /v1/namespaces/ns", json!({"colour": 1})),
        ("PATCH /v1/namespaces/ns", json!({"description": "d", "colour": null})),
        ("POST /v1/api-keys", json!({"colour": 1})),
    ] {
        world.rest.json(line, body).await.expect_field_error("colour");
    }
    let operator = operator_client(server());
    operator
        .json("POST /v1/accounts", json!({"email": "c@example.com", "full_name": "C", "colour": 1}))
        .await
        .expect_field_error("colour");
    operator.json(&format!("PATCH {account}"), json!({"email": "new@example.com"})).await.expect_field_error("email");
    let nested = json!({"limits": {"max_tll_ms": 1}});
    operator.json(&format!("PATCH {account}"), nested).await.expect_field_error("limits.max_tll_ms");
    assert_eq!(world.held_locks().await, [""; 0]);
    assert_eq!(world.rest.call("GET /v1/namespaces").await.ok()["namespaces"][0]["description"], "");
}

#[tokio::test]
async fn fields_given_twice_are_refused_by_name() {
    let world = test_env().await;
    for (body, field) in [
        (r#"{"process_id":"p","process_id":"q","ttl_ms":1000}"#, "process_id"),
        (r#"{"process_id":"p","ttl_ms":1000,"ttl_ms":1000}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":1000,"metadata":{"a":"1","a":"2"}}"#, "metadata"),
    ] {
        post(&world.rest, ACQUIRE, body).await.expect_field_error(field);
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn wrong_types_and_missing_fields_are_refused_by_name() {
    let world = test_env().await;
    for (body, field) in [
        (r#"{"ttl_ms":1000}"#, "process_id"),
        (r#"{"process_id":null,"ttl_ms":1000}"#, "process_id"),
        (r#"{"process_id":7,"ttl_ms":1000}"#, "process_id"),
        (r#"{"process_id":["p"],"ttl_ms":1000}"#, "process_id"),
        (r#"{"process_id":"p","ttl_ms":"1000"}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":1000.5}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":1e3}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":-1}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":18446744073709551616}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":true}"#, "ttl_ms"),
        (r#"{"process_id":"p","ttl_ms":1000,"mode":"write"}"#, "mode"),
        (r#"{"process_id":"p","ttl_ms":1000,"mode":1}"#, "mode"),
        (r#"{"process_id":"p","ttl_ms":1000,"mode":""}"#, "mode"),
        (r#"{"process_id":"p","ttl_ms":1000,"fencing_token":"1"}"#, "fencing_token"),
        (r#"{"process_id":"p","ttl_ms":1000,"transition_ms":"0"}"#, "transition_ms"),
        (r#"{"process_id":"p","ttl_ms":1000,"metadata":[]}"#, "metadata"),
        (r#"{"process_id":"p","ttl_ms":1000,"metadata":{"a":1}}"#, "metadata.a"),
        (r#"{"process_id":"p","ttl_ms":1000,"metadata":{"":"1"}}"#, "metadata"),
        (r#"{"process_id":"p","ttl_ms":1000,"allow_upgrade":"yes"}"#, "allow_upgrade"),
        (r#"{"process_id":"p","expires_at":1700000000}"#, "expires_at"),
        (r#"{"process_id":"p","expires_at":"tomorrow"}"#, "expires_at"),
        (r#"{"process_id":"p","expires_at":"2099-01-01"}"#, "expires_at"),
        (r#"{"process_id":"p","expires_at":"2099-01-01T00:00:00"}"#, "expires_at"),
        (r#"{"process_id":"p","expires_at":"2099-02-30T00:00:00Z"}"#, "expires_at"),
        ("", "process_id"),
    ] {
        post(&world.rest, ACQUIRE, body).await.expect_field_error(field);
    }
    post(&world.rest, "POST /v1/namespaces", "{}").await.expect_field_error("name");
    post(&world.rest, "POST /v1/namespaces/ns/locks/l/check", "{}").await.expect_field_error("fencing_token");
    post(&operator_client(server()), "POST /v1/accounts", r#"{"email":"a@b"}"#).await.expect_field_error("full_name");
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn owners_and_waits_that_make_no_sense_are_refused_by_name() {
    let world = test_env().await;
    let instant = frontends::rest::rfc3339(frontends::instant_ns(std::time::Duration::from_secs(60)));
    for (changes, field) in [
        (json!({"session_id": "se_1"}), "session_id"),
        (json!({"process_id": null, "session_id": "p"}), "session_id"),
        (json!({"process_id": null, "session_id": "se_1"}), "ttl_ms"),
        (json!({"holder": "h"}), "holder"),
        (json!({"process_id": null, "session_id": "se_1", "holder": ""}), "holder"),
        (json!({"wait_ms": 600_001}), "wait_ms"),
        (json!({"wait_ms": "5"}), "wait_ms"),
        (json!({"wait_ms": 5, "ttl_ms": null, "expires_at": instant}), "expires_at"),
        (json!({"poll_ms": 0}), "poll_ms"),
        (json!({"fencing_token": 1, "wait_ms": 5}), "fencing_token"),
        (json!({"fencing_token": 1, "allow_upgrade": true}), "fencing_token"),
    ] {
        let mut body = json!({"process_id": "p", "ttl_ms": 1_000});
        for (name, value) in changes.as_object().unwrap() {
            body[name] = value.clone();
        }
        world.rest.json(ACQUIRE, body).await.expect_field_error(field);
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    let plain = json!({"process_id": "p", "ttl_ms": 1_000, "wait_ms": 0, "poll_ms": 10, "allow_upgrade": false, "transition_ms": 0});
    assert_eq!(world.rest.json(ACQUIRE, plain).await.ok()["success"], true);
}

#[tokio::test]
async fn a_body_of_another_type_is_refused() {
    let world = test_env().await;
    let body = || Bytes::from_static(br#"{"process_id":"p","ttl_ms":1000}"#);
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json", ""] {
        let answer = world.rest.send(ACQUIRE, &[("content-type", content_type)], body()).await;
        answer.expect_error("UNSUPPORTED_MEDIA_TYPE");
    }
    world.rest.send(ACQUIRE, &[], body()).await.expect_error("UNSUPPORTED_MEDIA_TYPE");
    assert_eq!(world.held_locks().await, [""; 0]);
    for content_type in ["application/json; charset=utf-8", "Application/JSON", "application/merge-patch+json"] {
        world.rest.send(ACQUIRE, &[("content-type", content_type)], body()).await.ok();
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let world = test_env().await;
    let filled = |size: usize| {
        let frame = r#"{"name":"n","description":""}"#.len();
        format!(r#"{{"name":"n","description":"{}"}}"#, "x".repeat(size - frame))
    };
    post(&world.rest, "POST /v1/namespaces", &filled(MAX_BODY_BYTES + 1)).await.expect_error("PAYLOAD_TOO_LARGE");
    // One of the largest size is read: what is wrong with it is something else.
    post(&world.rest, "POST /v1/namespaces", &filled(MAX_BODY_BYTES)).await.expect_field_error("description");
    // A caller that does not say how much it will send is stopped as well.
    let mut request = format!(
        "POST /v1/namespaces HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        world.rest.key
    );
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    request += &chunk.repeat(5);
    request += "0\r\n\r\n";
    let answer = raw::send(world.rest.address, request.as_bytes()).await;
    assert_eq!(answer.status, 413, "{}", answer.text);
    assert_eq!(world.rest.call("GET /v1/namespaces").await.ok()["namespaces"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn descriptions_and_metadata_have_at_most_1024_bytes() {
    let world = test_env().await;
    let describe = async |bytes: usize| {
        world.rest.json("PATCH /v1/namespaces/ns", json!({"description": "x".repeat(bytes)})).await
    };
    describe(1_024).await.ok();
    describe(1_025).await.expect_field_error("description");
    let bring = async |bytes: usize| {
        let body = json!({"process_id": "p", "ttl_ms": 1_000, "metadata": {"key": "x".repeat(bytes - 3)}});
        world.rest.json(ACQUIRE, body).await
    };
    bring(1_025).await.expect_field_error("metadata");
    assert_eq!(world.held_locks().await, [""; 0]);
    bring(1_024).await.ok();
}

#[tokio::test]
async fn bad_accounts_are_refused_by_field() {
    let operator = operator_client(server());
    let long = format!("{}@example.com", "x".repeat(250));
    for (body, field) in [
        (json!({"email": "", "full_name": "A"}), "email"),
        (json!({"email": "nobody", "full_name": "A"}), "email"),
        (json!({"email": "a@b@c", "full_name": "A"}), "email"),
        (json!({"email": "a b@c", "full_name": "A"}), "email"),
        (json!({"email": "@c", "full_name": "A"}), "email"),
        (json!({"email": "a\u{0}@c", "full_name": "A"}), "email"),
        (json!({"email": long, "full_name": "A"}), "email"),
        (json!({"email": "a@b", "full_name": ""}), "full_name"),
        (json!({"email": "a@b", "full_name": "x".repeat(257)}), "full_name"),
        (json!({"email": "a@b", "full_name": "A", "max_number_of_namespaces": -1}), "max_number_of_namespaces"),
        (
            json!({"email": "a@b", "full_name": "A", "max_number_of_namespaces": 4_294_967_296_u64}),
            "max_number_of_namespaces",
        ),
    ] {
        operator.json("POST /v1/accounts", body).await.expect_field_error(field);
    }
    let line = format!("PATCH /v1/accounts/{}", create_tenant(server()).await.account);
    for (body, field) in [
        (json!({"status": "active"}), "status"),
        (json!({"full_name": ""}), "full_name"),
        (json!({"limits": []}), "limits"),
        (json!({"limits": {"min_ttl_ms": 0}}), "limits.min_ttl_ms"),
        (json!({"limits": {"min_ttl_ms": 10, "max_ttl_ms": 9}}), "limits.min_ttl_ms"),
        (json!({"limits": {"max_metadata_bytes": 1_000_000}}), "limits.max_metadata_bytes"),
    ] {
        operator.json(&line, body).await.expect_field_error(field);
    }
    for id in ["xyz", "9FFF3BF7D1F9561D", "0x9fff3bf7d1f9561d", "17376851231650125672", ".."] {
        operator.call(&format!("GET /v1/accounts/{id}")).await.expect_error("INVALID_ARGUMENT");
    }
    operator.call("GET /v1/accounts/0000000000000000").await.expect_error("ACCOUNT_NOT_FOUND");
}
