//! Credentials, routes, methods, queries and heads that are wrong.

use serde_json::json;

use crate::support::{TestEnv, create_tenant, frontends, operator_client, raw, server};

async fn test_env() -> TestEnv<frontends::rest::Client> {
    TestEnv::open().await
}

#[tokio::test]
async fn nobody_is_let_in_without_a_current_credential() {
    let world = test_env().await;
    let key = world.rest.key.clone();
    let (_, secret) = key.rsplit_once('_').unwrap();
    let operator = operator_client(server()).key;
    let almost = format!("{}0", &operator[..operator.len() - 1]);
    let other_almost = format!("{}1", &operator[..operator.len() - 1]);
    let wrong_operator = if almost == operator { other_almost } else { almost };
    let wrong = [
        String::new(),
        "nonsense".into(),
        "hf_".into(),
        format!("hf_unknown_{secret}"),
        format!("{key}x"),
        key[..key.len() - 1].to_owned(),
        key.to_uppercase(),
        wrong_operator,
    ];
    for credential in &wrong {
        for line in ["GET /v1/namespaces", "GET /v1/accounts", "GET /v1/namespaces/unknown/locks/l"] {
            let answer = world.rest.with_key(credential).call(line).await;
            assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"holdfast\"");
            answer.expect_error("UNAUTHENTICATED");
        }
    }
    // Who is not known learns nothing about whether its body is good.
    let body = json!({"colour": 1});
    world.rest.with_key("nonsense").json("POST /v1/namespaces", body).await.expect_error("UNAUTHENTICATED");
}

#[tokio::test]
async fn the_credential_is_one_bearer_header() {
    let world = test_env().await;
    let send = async |authorization: &str| {
        let head = format!("GET /v1/namespaces HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{authorization}\r\n");
        raw::send(world.rest.address, head.as_bytes()).await
    };
    let key = &world.rest.key;
    for refused in [
        String::new(),
        format!("Authorization: {key}\r\n"),
        format!("Authorization: Basic {key}\r\n"),
        "Authorization: Bearer\r\n".into(),
        format!("Authorization: Bearer {key}\r\nAuthorization: Bearer {key}\r\n"),
    ] {
        let answer = send(&refused).await;
        assert_eq!((answer.status, answer.body["code"].as_str()), (401, Some("UNAUTHENTICATED")), "{}", answer.text);
    }
    for accepted in [format!("authorization: bearer {key}\r\n"), format!("AUTHORIZATION: BEARER {key}\r\n")] {
        assert_eq!(send(&accepted).await.status, 200);
    }
}

#[tokio::test]
async fn unknown_routes_are_not_found() {
    let rest = create_tenant(server()).await.rest;
    for line in [
        "GET /",
        "GET /v1",
        "GET /v2/namespaces",
        "GET /v1/Namespaces",
        "POST /v1/namespaces/ns/locks/l/take",
        "GET /v1/usages",
    ] {
        rest.call(line).await.expect_error("NOT_FOUND");
    }
}

#[tokio::test]
async fn a_wrong_method_is_told_which_are_right() {
    let rest = create_tenant(server()).await.rest;
    for (line, allowed) in [
        ("PUT /v1/namespaces", vec!["GET", "HEAD", "POST"]),
        ("POST /v1/namespaces/ns", vec!["DELETE", "GET", "HEAD", "PATCH"]),
        ("GET /v1/namespaces/ns/locks/l/acquire", vec!["POST"]),
        ("PATCH /v1/namespaces/ns/locks/l", vec!["DELETE", "GET", "HEAD"]),
        ("POST /healthz", vec!["GET", "HEAD"]),
    ] {
        let answer = rest.call(line).await;
        let mut listed: Vec<&str> = answer.header("allow").split(',').map(str::trim).collect();
        listed.sort_unstable();
        assert_eq!(listed, allowed, "{line}");
        answer.expect_error("METHOD_NOT_ALLOWED");
    }
}

#[tokio::test]
async fn unknown_repeated_and_malformed_parameters_are_refused_by_name() {
    let world = test_env().await;
    for (line, field) in [
        ("GET /v1/namespaces?page_sise=1", "page_sise"),
        ("GET /v1/namespaces?page_size=1&page_size=1", "page_size"),
        ("GET /v1/namespaces?page_size=0", "page_size"),
        ("GET /v1/namespaces?page_size=1001", "page_size"),
        ("GET /v1/namespaces?page_size=one", "page_size"),
        ("GET /v1/namespaces?page_token=nonsense", "page_token"),
        ("GET /v1/namespaces?page_token=%ff", "page_token"),
        ("GET /v1/namespaces/ns?id=1", "id"),
        ("GET /v1/namespaces/ns/locks?path=a", "path"),
        ("GET /v1/namespaces/ns/locks/l?all=true", "all"),
        ("DELETE /v1/namespaces/ns/locks/l?force", "force"),
        ("POST /v1/namespaces/ns/locks/l/acquire?ttl_ms=1000", "ttl_ms"),
        ("GET /v1/api-keys?page_size=1", "page_size"),
    ] {
        world.rest.call(line).await.expect_field_error(field);
    }
    operator_client(server()).call("GET /v1/accounts?page_size=1001").await.expect_field_error("page_size");
}

#[tokio::test]
async fn a_bad_deadline_is_refused_and_a_short_one_is_kept() {
    let world = test_env().await;
    for bad in ["0", "-1", "soon", "1.5", "", "9999999999999"] {
        let answer = world.rest.send("GET /v1/namespaces", &[("holdfast-timeout-ms", bad)], Default::default()).await;
        answer.expect_error("INVALID_ARGUMENT");
    }
    let answer = world.rest.send("GET /v1/namespaces", &[("holdfast-timeout-ms", "5000")], Default::default()).await;
    answer.ok();
}

#[tokio::test]
async fn an_answer_carries_the_request_id_of_the_caller_or_one_of_its_own() {
    let rest = create_tenant(server()).await.rest;
    let id = async |given: &[(&str, &str)], line: &str| {
        rest.send(line, given, Default::default()).await.header("holdfast-request-id").to_owned()
    };
    for line in ["GET /v1/namespaces", "GET /healthz", "GET /nowhere", "PUT /v1/namespaces"] {
        assert_eq!(id(&[("holdfast-request-id", "order-7")], line).await, "order-7");
        let own = id(&[], line).await;
        assert!(own.len() == 32 && own != id(&[], line).await, "{own}");
        assert_eq!(id(&[("holdfast-request-id", "two words")], line).await.len(), 32);
        assert_eq!(id(&[("holdfast-request-id", &"x".repeat(129))], line).await.len(), 32);
    }
}

#[tokio::test]
async fn what_is_no_http_is_refused_and_does_no_harm() {
    let world = test_env().await;
    let address = world.rest.address;
    for request in
        [&b"nonsense\r\n\r\n"[..], b"GET /v1/namespaces HTTP/1.1\r\nbad header\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
    {
        assert_eq!(raw::send(address, request).await.status, 400);
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", "x".repeat(200_000));
    let status = raw::send(address, long.as_bytes()).await.status;
    assert!([414, 431].contains(&status), "{status}");
    world.rest.call("GET /v1/namespaces").await.ok();
}
