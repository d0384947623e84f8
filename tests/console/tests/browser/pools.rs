//! Pools: their members, and who waits.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn the_members_of_a_pool_and_its_queue_follow_what_happens() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/pools").await;
    page.wait_for_words("main", &["No pools"]).await;
    let pools = "/namespaces/demo/pools";
    let members = json!([{"name": "db-1"}, {"name": "db-2", "disabled": true}]);
    tenant.post(&format!("{pools}/configure"), json!({"name": "databases", "members": members})).await;
    page.wait_for_words("tbody tr", &["databases", "db-1", "free", "db-2", "disabled"]).await;
    tenant.take_members("alice", "databases", json!(1)).await;
    page.wait_for_words("tbody tr", &["1 of 2", "db-1", "held by alice"]).await;

    // One waits for two, another for one by its name.
    let bob = tenant.enqueue_members("bob", "databases", json!(2)).await;
    let carol = tenant.enqueue_members("carol", "databases", json!("db-2")).await;
    page.wait_for_words("tbody tr", &["2 waiting", "1. bob", "2 members", "2. carol", "db-2"]).await;
    let returned = json!({"name": "databases", "process_id": "alice", "request_id": "1"});
    tenant.post(&format!("{pools}/release"), returned).await;
    tenant.post(&format!("{pools}/change"), json!({"name": "databases", "enable": ["db-2"]})).await;
    assert_eq!(bob.await.unwrap()["members"], json!(["db-1", "db-2"]));
    page.wait_for_words("tbody tr", &["2 of 2", "held by bob", "1 waiting", "1. carol"]).await;
    let returned = json!({"name": "databases", "process_id": "bob", "request_id": "1"});
    tenant.post(&format!("{pools}/release"), returned).await;
    assert_eq!(carol.await.unwrap()["members"], json!(["db-2"]));
    page.wait_until_gone("tbody .chip.wait").await;
    page.wait_for_words("tbody tr", &["1 of 2", "held by carol"]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn members_are_switched_and_their_rests_and_the_others_are_shown() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    let pools = "/namespaces/demo/pools";
    let members: Vec<_> = (10..30).map(|number| json!({"name": format!("db-{number}")})).collect();
    let configure = json!({"name": "databases", "members": members, "cooldown_ms": 600_000});
    tenant.post(&format!("{pools}/configure"), configure).await;
    let take = json!({"name": "databases", "process_id": "alice", "request_id": "a", "ttl_ms": 60_000});
    tenant.post(&format!("{pools}/take"), take).await;
    let release = json!({"name": "databases", "process_id": "alice", "request_id": "a"});
    tenant.post(&format!("{pools}/release"), release).await;
    page.navigate("#/ns/demo/pools").await;
    page.wait_for_words("tbody tr", &["db-10", "rests for", "min", "db-21", "first 12 by name"]).await;
    let switch = |label: &str| format!("[aria-label=\"{label} of databases\"]");
    page.click(&switch("Disable: db-11")).await;
    page.wait_for_words("tbody tr", &["db-11", "disabled"]).await;
    page.click(&switch("Enable: db-11")).await;
    page.wait_for(&switch("Disable: db-11")).await;
    page.click(&switch("End rest: db-10")).await;
    page.wait_until_gone(".rest-left").await;
    page.click("[data-more]").await;
    page.wait_for_words("tbody tr", &["db-29"]).await;
    page.close().await;
}
