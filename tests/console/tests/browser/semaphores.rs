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
