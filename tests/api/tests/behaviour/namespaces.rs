//! Namespaces: made, listed, changed, deleted and made again.

use serde_json::json;

use crate::support::{AcquireRequest, LockClient, TestEnv, create_tenant, server, through};

through! {
    every_frontend:
        a_namespace_is_made_read_changed_and_deleted,
        namespaces_are_listed_in_order_of_name,
        a_namespace_of_a_name_in_use_is_refused,
        an_unknown_namespace_has_the_text_of_the_contract,
        a_namespace_beyond_the_limit_is_refused_and_harms_nothing,
        a_namespace_made_again_has_no_old_lock,
        deleting_a_namespace_twice_is_not_found;
    with_tokens:;
}

async fn a_namespace_is_made_read_changed_and_deleted<D: LockClient>(world: TestEnv<D>) {
    let made = world.client.create_namespace("mine", "first").await.unwrap();
    assert_eq!((made.name.as_str(), made.description.as_str()), ("mine", "first"));
    assert_eq!(made.created_at_ms, made.updated_at_ms);
    assert_eq!(world.client.get_namespace("mine").await.unwrap(), made);
    let changed = world.client.update_namespace("mine", "second").await.unwrap();
    assert_eq!((changed.description.as_str(), &changed.id), ("second", &made.id));
    assert_eq!(changed.created_at_ms, made.created_at_ms);
    assert!(changed.updated_at_ms >= made.updated_at_ms);
    assert_eq!(world.client.get_namespace("mine").await.unwrap(), changed);
    world.client.delete_namespace("mine").await.unwrap();
    assert_eq!(world.client.get_namespace("mine").await.unwrap_err().code, "NAMESPACE_NOT_FOUND");
}

async fn namespaces_are_listed_in_order_of_name<D: LockClient>(world: TestEnv<D>) {
    for name in ["zebra", "a", "ü", "Z"] {
        world.client.create_namespace(name, "").await.unwrap();
    }
    let listed = world.client.list_namespaces().await.unwrap();
    let names: Vec<&str> = listed.iter().map(|namespace| namespace.name.as_str()).collect();
    assert_eq!(names, ["Z", "a", "ns", "zebra", "ü"]);
}

async fn a_namespace_of_a_name_in_use_is_refused<D: LockClient>(world: TestEnv<D>) {
    let first = world.client.create_namespace("twice", "first").await.unwrap();
    let refused = world.client.create_namespace("twice", "second").await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.ids["namespace"].as_str()), ("ALREADY_EXISTS", "twice"));
    assert_eq!(world.client.get_namespace("twice").await.unwrap(), first);
    // Another account may use it.
    let other = create_tenant(server()).await;
    D::connect(&other.rest).await.create_namespace("twice", "third").await.unwrap();
    assert_eq!(world.client.get_namespace("twice").await.unwrap(), first);
}

async fn an_unknown_namespace_has_the_text_of_the_contract<D: LockClient>(world: TestEnv<D>) {
    world.client.delete_namespace("ns").await.unwrap();
    let client = &world.client;
    for refused in [
        client.acquire(AcquireRequest::write("l", "p")).await.map(drop),
        client.release("l", "p").await.map(drop),
        client.get("l").await.map(drop),
        client.delete("l").await,
        client.get_namespace("ns").await.map(drop),
        client.update_namespace("ns", "new").await.map(drop),
        client.delete_namespace("ns").await,
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code_and_detail(), ("NAMESPACE_NOT_FOUND", "namespace not found"));
        assert_eq!(refused.ids["namespace"], "ns");
    }
}

async fn a_namespace_beyond_the_limit_is_refused_and_harms_nothing<D: LockClient>(world: TestEnv<D>) {
    world.tenant.update(server(), json!({"max_number_of_namespaces": 2})).await;
    world.client.create_namespace("second", "").await.unwrap();
    let refused = world.client.create_namespace("third", "").await.unwrap_err();
    assert_eq!((refused.code.as_str(), refused.ids["max"].as_str()), ("QUOTA_EXCEEDED", "2"));
    assert_eq!(world.client.list_namespaces().await.unwrap().len(), 2);
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    world.client.delete_namespace("second").await.unwrap();
    world.client.create_namespace("third", "").await.unwrap();
}

async fn a_namespace_made_again_has_no_old_lock<D: LockClient>(world: TestEnv<D>) {
    let first = world.client.get_namespace("ns").await.unwrap();
    for lock in ["a", "b"] {
        world.client.expect_granted(AcquireRequest::write(lock, "p")).await;
    }
    for round in 0..3 {
        world.client.delete_namespace("ns").await.unwrap();
        assert_eq!(world.client.get("a").await.unwrap_err().code, "NAMESPACE_NOT_FOUND");
        let again = world.client.create_namespace("ns", "").await.unwrap();
        assert!(again.id.is_none() || again.id != first.id);
        assert_eq!(world.held_locks().await, [""; 0]);
        assert_eq!(
            world.client.expect_granted(AcquireRequest::write("a", &format!("q{round}"))).await.lock.writer_id(),
            format!("q{round}")
        );
    }
}

async fn deleting_a_namespace_twice_is_not_found<D: LockClient>(world: TestEnv<D>) {
    world.client.delete_namespace("ns").await.unwrap();
    let refused = world.client.delete_namespace("ns").await.unwrap_err();
    assert_eq!(refused.code_and_detail(), ("NAMESPACE_NOT_FOUND", "namespace not found"));
}

#[tokio::test]
async fn a_delete_with_an_id_is_about_that_life_of_the_namespace_only() {
    let tenant = create_tenant(server()).await;
    let rest = &tenant.rest;
    let first = tenant.create_namespace("ns").await["id"].as_str().unwrap().to_owned();
    assert!(first.len() == 16 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
    rest.call("DELETE /v1/namespaces/ns").await.ok();
    let second = tenant.create_namespace("ns").await["id"].as_str().unwrap().to_owned();
    let refused = rest.call(&format!("DELETE /v1/namespaces/ns?id={first}")).await.expect_error("NAMESPACE_NOT_FOUND");
    assert_eq!(refused["detail"], "namespace not found");
    assert_eq!(rest.call("GET /v1/namespaces/ns").await.ok()["id"], second.as_str());
    for (query, field) in [("id=", "id"), ("id=xyz", "id"), ("ids=1", "ids"), ("id=1&id=1", "id")] {
        rest.call(&format!("DELETE /v1/namespaces/ns?{query}")).await.expect_field_error(field);
    }
    let answer = rest.call(&format!("DELETE /v1/namespaces/ns?id={second}")).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    rest.call("GET /v1/namespaces/ns").await.expect_error("NAMESPACE_NOT_FOUND");
}

#[tokio::test]
async fn a_repeated_creation_with_the_same_idempotency_key_answers_as_the_first_did() {
    let tenant = create_tenant(server()).await;
    let create = async |key: &str, name: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        tenant.rest.send("POST /v1/namespaces", &headers, json!({"name": name}).to_string().into()).await
    };
    let first = create("once", "ns").await;
    assert_eq!(first.status, 201);
    let second = create("once", "ns").await;
    assert_eq!((second.status, &second.body), (201, &first.body));
    create("another", "ns").await.expect_error("ALREADY_EXISTS");
    create("once", "another").await.expect_field_error("idempotency_key");
    let listed = tenant.rest.call("GET /v1/namespaces").await.ok();
    assert_eq!(listed["namespaces"].as_array().unwrap().len(), 1);
    for bad in ["", &"k".repeat(256)] {
        create(bad, "other").await.expect_error("INVALID_ARGUMENT");
    }
    let headers = [("content-type", "application/json"), ("idempotency-key", "a"), ("idempotency-key", "b")];
    tenant
        .rest
        .send("POST /v1/namespaces", &headers, json!({"name": "x"}).to_string().into())
        .await
        .expect_error("INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_page_of_namespaces_leads_to_the_next() {
    let tenant = create_tenant(server()).await;
    for name in ["a", "b", "c", "d", "e"] {
        tenant.create_namespace(name).await;
    }
    let mut names = Vec::new();
    let mut token = String::new();
    loop {
        let page = tenant.rest.call(&format!("GET /v1/namespaces?page_size=2&page_token={token}")).await.ok();
        let rows = page["namespaces"].as_array().unwrap();
        assert!(rows.len() <= 2);
        names.extend(rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_page_token"].as_str() else { break };
        token = next.to_owned();
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}
