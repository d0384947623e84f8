//! What happens in a namespace, as it happens.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn events_of_every_kind_of_thing_appear_and_can_be_chosen() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/events").await;
    page.wait_for_words("main", &["No events"]).await;
    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": "gpus", "permits": 2})).await;
    tenant.acquire_permits("alice", "gpus", 2).await;
    page.wait_for_words("tbody", &["SEMAPHORE_CONFIGURED", "PERMITS_ACQUIRED", "gpus semaphore", "2 permits"]).await;
    tenant.post("/namespaces/demo/pools/configure", json!({"name": "databases", "members": [{"name": "db-1"}]})).await;
    tenant.take_members("bob", "databases", json!(1)).await;
    tenant.post("/namespaces/demo/latches/create", json!({"name": "release", "total": 1})).await;
    tenant.post("/namespaces/demo/latches/count_down", json!({"name": "release", "ids": ["web"]})).await;
    for process_id in ["solver-1", "solver-2"] {
        let arrival = json!({"name": "rounds", "process_id": process_id, "parties": 2, "ttl_ms": 60_000});
        tenant.post("/namespaces/demo/barriers/arrive", arrival).await;
    }
    tenant.acquire("carol", json!([{"path": ["deploy"]}])).await;
    tenant.post("/namespaces/demo/lock-sets/ask-release", json!({"name": "deploy"})).await;
    page.wait_for_words("tbody", &["MEMBERS_TAKEN", "databases pool", "db-1", "LATCH_COMPLETED", "2 parties"]).await;
    page.wait_for_words("tbody tr", &["RELEASE_REQUESTED", "deploy lock"]).await;
    page.wait_for_words("tbody", &["BARRIER_TRIPPED", "ACQUIRED", "deploy WRITE"]).await;

    page.type_into(".head input", "db-1").await;
    page.wait_for_texts("tbody tr .chip", &["MEMBERS_TAKEN"]).await;
    let choose = "const [words, kind] = ['input', 'select'].map((tag) => document.querySelector(`.head ${tag}`)); \
                  words.value = ''; kind.value = arguments[0]; kind.dispatchEvent(new Event('input'))";
    page.script(choose, json!(["LATCH_COMPLETED"])).await;
    page.wait_for_texts("tbody tr .chip", &["LATCH_COMPLETED"]).await;
    page.close().await;
}
