//! Barriers: who has come, and how generations ended.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn a_barrier_shows_who_has_come_and_how_its_generations_ended() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/barriers").await;
    page.wait_for_words("main", &["No barriers"]).await;
    let arrive = "/namespaces/demo/barriers/arrive";
    let arrival =
        |process_id: &str| json!({"name": "rounds", "process_id": process_id, "parties": 2, "ttl_ms": 60_000});
    tenant.post(arrive, arrival("alice")).await;
    page.wait_for_words("tbody tr", &["rounds", "1 of 2", "alice", "arrived"]).await;
    page.wait_for_words("main .lead", &["1 barrier"]).await;
    tenant.post(arrive, arrival("bob")).await;
    page.wait_for_words("tbody tr", &["0 of 2", "TRIPPED", "2 in it"]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}
