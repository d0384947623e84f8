//! What a process that was killed finds again.

use std::time::Duration;

use holdfast_testkit::{Standalone, scratch};
use serde_json::json;

use crate::support::{
    AcquireRequest, FencingLockClient, LockClient, RestClient, State, TestEnv, create_tenant, frontends, wait_until,
};

type Client = frontends::rest::Client;

/// A client of the same account, for the restarted process.
async fn reconnect(server: &Standalone, key: &str) -> Client {
    Client::connect(&RestClient::new(server.address(), key)).await
}

#[tokio::test]
async fn a_killed_process_keeps_every_lock_that_it_answered_and_tokens_go_on_rising() {
    let data_dir = scratch();
    let mut last = 0;
    let server = Standalone::start(&data_dir, &[]);
    let world = TestEnv::<Client>::open_in(&server).await;
    let key = world.rest.key.clone();
    world.client.expect_granted(AcquireRequest::read("shared", "p").ttl_ms(600_000)).await;
    world.client.expect_granted(AcquireRequest::read("shared", "q").ttl_ms(600_000)).await;
    let before = world.client.get("shared").await.unwrap();
    let gone = world.client.expect_granted(AcquireRequest::write("released", "p")).await.fencing_token.unwrap();
    world.client.release("released", "p").await.unwrap();
    drop((world, server));
    for round in 0..3 {
        let server = Standalone::start(&data_dir, &[]);
        let client = reconnect(&server, &key).await;
        let after = client.get("shared").await.unwrap();
        assert_eq!(
            (after.state, after.reader_ids(), after.revision),
            (State::ReadLocked, vec!["p", "q"], before.revision)
        );
        for (was, is) in before.readers.iter().zip(&after.readers) {
            assert_eq!((was.fencing_token, was.locked_at_ms), (is.fencing_token, is.locked_at_ms));
        }
        client.get("released").await.unwrap().assert_free();
        assert!(!client.check("released", gone).await.unwrap());
        let token =
            client.expect_granted(AcquireRequest::write("released", &format!("p{round}"))).await.fencing_token.unwrap();
        assert!(token > last.max(gone), "{token} after {last}");
        last = token;
        assert_eq!(client.list_locks(&[], 10, "").await.unwrap().0, ["released", "shared"]);
        client.release("released", &format!("p{round}")).await.unwrap();
    }
}

#[tokio::test]
async fn a_hold_whose_time_ran_while_the_process_was_down_ends_after_it() {
    let data_dir = scratch();
    let server = Standalone::start(&data_dir, &[]);
    let world = TestEnv::<Client>::open_in(&server).await;
    let key = world.rest.key.clone();
    world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(2_000)).await;
    drop((world, server));
    let server = Standalone::start(&data_dir, &[]);
    let client = reconnect(&server, &key).await;
    // The shard's clock stood still meanwhile: a lease is stretched and never cut short.
    wait_until("the hold ended", async || client.get("l").await.unwrap().writer.is_none()).await;
    client.expect_granted(AcquireRequest::write("l", "q")).await;
}

#[tokio::test]
async fn accounts_keys_and_namespaces_survive_and_what_was_deleted_stays_deleted() {
    let data_dir = scratch();
    let server = Standalone::start(&data_dir, &[]);
    let tenant = create_tenant(&server).await;
    let kept = tenant.create_namespace("kept").await;
    tenant.create_namespace("gone").await;
    let body = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/gone/locks/l/acquire", body).await.ok();
    tenant.rest.call("DELETE /v1/namespaces/gone").await.ok();
    let revoked = tenant.rest.call("POST /v1/api-keys").await.ok();
    tenant.rest.call(&format!("DELETE /v1/api-keys/{}", revoked["key_id"].as_str().unwrap())).await.ok();
    drop(server);

    let server = Standalone::start(&data_dir, &[]);
    let rest = RestClient::new(server.address(), &tenant.rest.key);
    assert_eq!(rest.call("GET /v1/namespaces/kept").await.ok(), kept);
    rest.call("GET /v1/namespaces/gone").await.expect_error("NAMESPACE_NOT_FOUND");
    rest.with_key(revoked["api_key"].as_str().unwrap())
        .call("GET /v1/namespaces")
        .await
        .expect_error("UNAUTHENTICATED");
    let again = rest.json("POST /v1/namespaces", json!({"name": "gone"})).await.ok();
    assert_ne!(again["id"], kept["id"]);
    assert_eq!(rest.call("GET /v1/namespaces/gone/locks").await.ok()["locks"], json!([]));
}

#[tokio::test]
async fn a_process_that_stops_in_good_order_answers_what_is_under_way_and_keeps_everything() {
    let data_dir = scratch();
    let mut server = Standalone::start(&data_dir, &[]);
    let world = TestEnv::<Client>::open_in(&server).await;
    let token =
        world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(600_000)).await.fencing_token.unwrap();
    drop(server.take_stdin());
    assert!(server.wait_for_exit());
    let server = Standalone::start(&data_dir, &[]);
    let client = reconnect(&server, &world.rest.key).await;
    assert!(client.check("l", token).await.unwrap());
    let left = Duration::from_millis(client.get("l").await.unwrap().writer.unwrap().remaining_ms.unwrap());
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(600), "{left:?}");
}

#[tokio::test]
async fn a_repeated_creation_is_known_after_a_restart() {
    let data_dir = scratch();
    let server = Standalone::start(&data_dir, &[]);
    let tenant = create_tenant(&server).await;
    let create = async |rest: &RestClient| {
        let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
        rest.send("POST /v1/namespaces", &headers, json!({"name": "ns"}).to_string().into()).await.ok()
    };
    let first = create(&tenant.rest).await;
    drop(server);
    let server = Standalone::start(&data_dir, &[]);
    assert_eq!(create(&RestClient::new(server.address(), &tenant.rest.key)).await, first);
}
