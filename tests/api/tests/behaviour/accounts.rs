//! Accounts, by the operator.

use holdfast_proto::dlocks as d;
use holdfast_proto::dlocks::locks_service_api_client::LocksServiceApiClient;
use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use serde_json::json;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{
    AcquireRequest, LockClient, TestEnv, account_metadata_server, create_tenant, frontends, operator_client, server,
    wait_until,
};

#[tokio::test]
async fn an_account_is_made_read_changed_and_deleted() {
    let operator = operator_client(server());
    let body = json!({"email": "  Ann@Example.COM ", "full_name": "Ann", "max_number_of_namespaces": 3});
    let answer = operator.json("POST /v1/accounts", body).await;
    assert_eq!(answer.status, 201);
    let made = answer.ok();
    let id = made["id"].as_str().unwrap();
    assert!(id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
    assert_eq!((&made["email"], &made["full_name"]), (&json!("ann@example.com"), &json!("Ann")));
    assert_eq!((&made["max_number_of_namespaces"], &made["status"]), (&json!(3), &json!("ACTIVE")));
    assert_eq!((&made["limits"]["min_ttl_ms"], &made["limits"]["max_ttl_ms"]), (&json!(100), &json!(86_400_000)));
    assert_eq!(made["created_at"], made["updated_at"]);
    let line = format!("/v1/accounts/{id}");
    assert_eq!(operator.call(&format!("GET {line}")).await.ok(), made);

    let change = json!({"full_name": "Ann Smith", "limits": {"max_ttl_ms": 5_000}});
    let changed = operator.json(&format!("PATCH {line}"), change).await.ok();
    assert_eq!((&changed["full_name"], &changed["limits"]["max_ttl_ms"]), (&json!("Ann Smith"), &json!(5_000)));
    assert_eq!((&changed["email"], &changed["limits"]["min_ttl_ms"]), (&made["email"], &json!(100)));
    assert_eq!(operator.call(&format!("GET {line}")).await.ok(), changed);

    let answer = operator.call(&format!("DELETE {line}")).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    for call in ["GET", "DELETE"] {
        let refused = operator.call(&format!("{call} {line}")).await.expect_error("ACCOUNT_NOT_FOUND");
        assert_eq!(refused["account"], id);
    }
    operator.json(&format!("PATCH {line}"), json!({"full_name": "x"})).await.expect_error("ACCOUNT_NOT_FOUND");
}

#[tokio::test]
async fn an_account_has_25_namespaces_unless_told() {
    let tenant = create_tenant(server()).await;
    let account = operator_client(server()).call(&format!("GET /v1/accounts/{}", tenant.account)).await.ok();
    assert_eq!(account["max_number_of_namespaces"], 25);
    for number in 0..25 {
        tenant.create_namespace(&format!("n{number}")).await;
    }
    let refused = tenant.rest.json("POST /v1/namespaces", json!({"name": "n25"})).await.expect_error("QUOTA_EXCEEDED");
    assert_eq!(refused["max"], 25);
}

#[tokio::test]
async fn an_e_mail_in_use_is_refused_however_it_is_written() {
    let tenant = create_tenant(server()).await;
    let body = json!({"email": format!(" {} ", tenant.email.to_uppercase()), "full_name": "Other"});
    let refused = operator_client(server()).json("POST /v1/accounts", body).await.expect_error("ALREADY_EXISTS");
    assert_eq!(refused["email"], tenant.email.as_str());
    // Once its account is gone it may be used again.
    operator_client(server()).call(&format!("DELETE /v1/accounts/{}", tenant.account)).await.ok();
    let body = json!({"email": tenant.email, "full_name": "Other"});
    let again = operator_client(server()).json("POST /v1/accounts", body).await.ok();
    assert_ne!(again["id"], tenant.account.as_str());
}

#[tokio::test]
async fn accounts_are_listed_in_order_of_id_page_by_page() {
    let operator = operator_client(server());
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(create_tenant(server()).await.account);
    }
    let (mut ids, mut token) = (Vec::new(), String::new());
    loop {
        let page = operator.call(&format!("GET /v1/accounts?page_size=3&page_token={token}")).await.ok();
        let rows = page["accounts"].as_array().unwrap();
        assert!(rows.len() <= 3);
        ids.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_page_token"].as_str() else { break };
        token = next.to_owned();
    }
    assert!(ids.is_sorted() && made.iter().all(|id| ids.contains(id)));
}

#[tokio::test]
async fn a_repeated_creation_of_an_account_answers_as_the_first_did() {
    let operator = operator_client(server());
    let create = async |email: &str, key: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let body = json!({"email": email, "full_name": "Once"}).to_string();
        operator.send("POST /v1/accounts", &headers, body.into()).await
    };
    let first = create("once@example.com", "account-once").await.ok();
    assert_eq!(create("once@example.com", "account-once").await.ok(), first);
    create("once@example.com", "account-twice").await.expect_error("ALREADY_EXISTS");
    create("other@example.com", "account-once").await.expect_field_error("idempotency_key");
}

#[tokio::test]
async fn a_suspended_account_is_refused_everywhere_and_its_holds_run_out() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    world.client.expect_granted(AcquireRequest::write("short", "p").ttl_ms(1_000)).await;
    world.client.expect_granted(AcquireRequest::write("long", "p")).await;
    world.tenant.update(server(), json!({"status": "SUSPENDED"})).await;
    let dlocks = frontends::dlocks::Client::connect(&world.rest).await;
    let grpc = frontends::grpc::Client::connect(&world.rest).await;
    for refused in [
        world.client.get("long").await.map(drop),
        world.client.release("long", "p").await.map(drop),
        world.client.create_namespace("new", "").await.map(drop),
        grpc.acquire(AcquireRequest::write("long", "p")).await.map(drop),
        dlocks.get("long").await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code_and_detail(), ("PERMISSION_DENIED", "the account is suspended"));
    }
    world.tenant.update(server(), json!({"status": "ACTIVE"})).await;
    assert_eq!(world.client.get("long").await.unwrap().writer_id(), "p");
    let client = &world.client;
    wait_until("the hold ran out", async || client.get("short").await.unwrap().writer.is_none()).await;
}

#[tokio::test]
async fn a_deleted_account_is_gone_where_accounts_are_known_by_name() {
    let tenant = create_tenant(account_metadata_server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", json!({"process_id": "p", "ttl_ms": 60_000})).await.ok();
    operator_client(account_metadata_server()).call(&format!("DELETE /v1/accounts/{}", tenant.account)).await.ok();
    let mut api = LocksServiceApiClient::new(channel(&tenant.rest).await);
    let get = d::GetLockRequest { namespace_name: "ns".into(), lock_name: "l".into() };
    let mut request = tonic::Request::new(get);
    request.metadata_mut().insert("account-id", tenant.account.parse().unwrap());
    assert_eq!(Failure::from_status(api.get_lock(request).await.unwrap_err()).code, "ACCOUNT_NOT_FOUND");
}

#[tokio::test]
async fn a_deleted_account_takes_its_keys_namespaces_and_locks_with_it() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    operator_client(server()).call(&format!("DELETE /v1/accounts/{}", world.tenant.account)).await.ok();
    world.rest.call("GET /v1/namespaces").await.expect_error("UNAUTHENTICATED");
    let grpc = frontends::grpc::Client::connect(&world.rest).await;
    assert_eq!(grpc.get("l").await.unwrap_err().code, "UNAUTHENTICATED");
    let line = format!("/v1/accounts/{}/api-keys", world.tenant.account);
    operator_client(server()).call(&format!("GET {line}")).await.expect_error("ACCOUNT_NOT_FOUND");
    operator_client(server()).call(&format!("POST {line}")).await.expect_error("ACCOUNT_NOT_FOUND");
}

#[tokio::test]
async fn accounts_are_for_the_operator_only_and_the_operator_for_accounts_only() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let account = format!("/v1/accounts/{}", tenant.account);
    for line in ["GET /v1/accounts".to_owned(), format!("GET {account}"), format!("DELETE {account}")] {
        tenant.rest.call(&line).await.expect_error("PERMISSION_DENIED");
    }
    let body = json!({"email": "x@example.com", "full_name": "X"});
    tenant.rest.json("POST /v1/accounts", body).await.expect_error("PERMISSION_DENIED");
    tenant.rest.json(&format!("PATCH {account}"), json!({"status": "ACTIVE"})).await.expect_error("PERMISSION_DENIED");
    tenant.rest.call(&format!("POST {account}/api-keys")).await.expect_error("PERMISSION_DENIED");
    for line in ["GET /v1/namespaces", "GET /v1/namespaces/ns/locks/l", "GET /v1/api-keys"] {
        operator_client(server()).call(line).await.expect_error("PERMISSION_DENIED");
    }
}

#[tokio::test]
async fn changed_limits_hold_from_then_on() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    world.tenant.update(server(), json!({"limits": {"max_holds_per_namespace": 2, "max_readers_per_lock": 1}})).await;
    world.client.expect_granted(AcquireRequest::read("a", "p")).await;
    assert_eq!(world.client.acquire(AcquireRequest::read("a", "q")).await.unwrap_err().code, "QUOTA_EXCEEDED");
    world.client.expect_granted(AcquireRequest::read("b", "p")).await;
    assert_eq!(world.client.acquire(AcquireRequest::read("c", "p")).await.unwrap_err().code, "QUOTA_EXCEEDED");
    // Existing objects remain, and a deletion makes space.
    world.client.expect_granted(AcquireRequest::read("a", "p")).await;
    world.client.release("a", "p").await.unwrap();
    world.client.expect_granted(AcquireRequest::write("c", "q")).await;
}

#[tokio::test]
async fn a_rate_beyond_the_limit_is_refused_but_for_releases_and_extensions() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let token = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    world.tenant.update(server(), json!({"limits": {"max_requests_per_second": 1}})).await;
    let mut refused = None;
    for _ in 0..50 {
        let answer = world.rest.call("GET /v1/namespaces/ns/locks/l").await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a burst of fifty is too many for one a second");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    refused.expect_error("RATE_LIMITED");
    for _ in 0..5 {
        world.client.expect_granted(AcquireRequest::write("l", "p").fencing_token(token)).await;
    }
    world.client.release("l", "p").await.unwrap().lock.assert_free();
}

#[tokio::test]
async fn accounts_can_be_made_and_changed_over_grpc() {
    let operator = operator_client(server());
    let mut client = AccountsServiceClient::new(channel(&operator).await);
    let request = v1::CreateAccountRequest {
        email: "grpc@example.com".into(),
        full_name: "G".into(),
        max_number_of_namespaces: None,
    };
    let made = client.create_account(with_key(request.clone(), &operator.key)).await.unwrap().into_inner();
    assert_eq!((made.email.as_str(), made.max_number_of_namespaces), ("grpc@example.com", 25));
    let refused = Failure::from_status(client.create_account(with_key(request, &operator.key)).await.unwrap_err());
    assert_eq!((refused.code.as_str(), refused.ids["email"].as_str()), ("ALREADY_EXISTS", "grpc@example.com"));
    let change = v1::UpdateAccountRequest {
        id: made.id.clone(),
        status: v1::account::Status::Suspended.into(),
        limits: Some(v1::Limits { max_ttl_ms: Some(1_000), ..Default::default() }),
        ..Default::default()
    };
    let changed = client.update_account(with_key(change, &operator.key)).await.unwrap().into_inner();
    assert_eq!((changed.status(), changed.full_name.as_str()), (v1::account::Status::Suspended, "G"));
    assert_eq!(changed.limits.unwrap().max_ttl_ms, Some(1_000));
    let get = v1::GetAccountRequest { id: made.id.clone() };
    assert_eq!(client.get_account(with_key(get.clone(), &operator.key)).await.unwrap().into_inner(), changed);
    let list = v1::ListAccountsRequest { page_size: 1_000, page_token: String::new() };
    let listed = client.list_accounts(with_key(list, &operator.key)).await.unwrap().into_inner();
    assert!(listed.accounts.contains(&changed));
    let delete = v1::DeleteAccountRequest { id: made.id };
    client.delete_account(with_key(delete, &operator.key)).await.unwrap();
    let refused = Failure::from_status(client.get_account(with_key(get, &operator.key)).await.unwrap_err());
    assert_eq!(refused.code, "ACCOUNT_NOT_FOUND");
}
