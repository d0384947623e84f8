//! Semaphores: the use of their permits, and their queues.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

const USE_SELECTOR: &str = "tbody tr td:nth-child(2) .meter";

#[tokio::test]
async fn the_use_of_permits_and_the_queue_follow_what_happens() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/semaphores").await;
    page.wait_for_words("main", &["No semaphores"]).await;
    let semaphores = "/namespaces/demo/semaphores";
    tenant.post(&format!("{semaphores}/configure"), json!({"name": "gpus", "permits": 3, "description": "All"})).await;
    page.wait_for_words("tbody tr", &["gpus", "All"]).await;
    page.wait_for_texts(USE_SELECTOR, &["0 of 3"]).await;

    tenant.acquire_permits("alice", "gpus", 2).await;
    page.wait_for_texts(USE_SELECTOR, &["2 of 3"]).await;
    page.wait_for_words("tbody tr", &["alice", "2 permits"]).await;
    let bob = tenant.enqueue_permits("bob", "gpus", 2).await;
    page.wait_for_words("tbody tr", &["1 waiting", "1. bob", "2 permits"]).await;
    tenant.post(&format!("{semaphores}/configure"), json!({"name": "gpus", "permits": 4})).await;
    assert_eq!(bob.await.unwrap()["success"], true);
    page.wait_for_texts(USE_SELECTOR, &["4 of 4"]).await;
    page.wait_for("tbody .bar[data-high]").await;
    page.wait_until_gone("tbody .chip.wait").await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn permits_are_asked_back_and_set() {
    let tenant = create_tenant().await;
    let configure = json!({"name": "gpus", "permits": 3, "description": "All", "metadata": {"team": "vision"}});
    tenant.post("/namespaces/demo/semaphores/configure", configure).await;
    tenant.acquire_permits("alice", "gpus", 2).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/semaphores").await;
    page.click("[data-part=ask]").await;
    page.wait_for_words("dialog", &["Ask for", "gpus", "End all holds"]).await;
    page.type_into("#ask-reason", "a training").await;
    page.click("dialog [data-confirm=ask]").await;
    page.wait_for_words(".toasts", &["1 holder of", "gpus", "asked"]).await;
    let key_id = tenant.key.split('_').nth(1).unwrap();
    page.wait_for_words("tbody .asked", &["Asked for by", key_id, "a training"]).await;
    page.wait_for_texts(USE_SELECTOR, &["2 of 3"]).await;

    page.click("[data-part=permits]").await;
    page.wait_for_words("dialog", &["Set the permits of", "gpus", "audit log", key_id]).await;
    // The number that it has now is replaced.
    page.script("document.querySelector('#permits').select()", json!([])).await;
    page.type_into("#permits", "1").await;
    page.click("dialog [data-confirm=permits]").await;
    page.wait_for_words(".toasts", &["gpus", "has 1 permit"]).await;
    page.wait_for_texts(USE_SELECTOR, &["2 of 1"]).await;
    let page_of_all = tenant.get("/namespaces/demo/semaphores").await;
    let [shown] = &page_of_all["semaphores"].as_array().unwrap()[..] else { panic!("{page_of_all}") };
    assert_eq!((&shown["description"], &shown["metadata"]), (&json!("All"), &json!({"team": "vision"})));
    page.close().await;
}

#[tokio::test]
async fn who_may_only_read_can_neither_ask_for_permits_nor_set_them() {
    let tenant = create_tenant().await;
    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": "gpus", "permits": 3})).await;
    tenant.acquire_permits("alice", "gpus", 2).await;
    let (_, reader) = tenant.create_key(json!({"scopes": ["locks:read"]})).await;
    let (_, writer) = tenant.create_key(json!({"scopes": ["locks:read", "locks:write"]})).await;
    for (key, is_writer) in [(reader, false), (writer, true)] {
        let Some(page) = Page::signed_in(&key).await else { return };
        page.navigate("#/ns/demo/semaphores").await;
        page.wait_for_words("tbody tr", &["gpus", "alice"]).await;
        let shown = "return ['ask', 'permits'].map((part) => document.querySelector(`[data-part=${part}]`) !== null)";
        assert_eq!(page.script(shown, json!([])).await, json!([is_writer, false]));
        page.close().await;
    }
}
