//! Latches: what is done, and when they are final.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn a_latch_is_followed_from_its_creation_to_its_completion() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/latches").await;
    page.wait_for_words("main", &["No latches"]).await;
    let latches = "/namespaces/demo/latches";
    tenant.post(&format!("{latches}/create"), json!({"path": ["deploy", "v2"], "total": 2})).await;
    page.wait_for_words("tbody tr", &["deploy › v2", "ACTIVE", "0 of 2"]).await;
    page.wait_for_words("main .lead", &["1 latch, 1 active"]).await;
    // Whoever waits has no place in a queue, and is told of the end that the page shows.
    let (waiting, wait) = (tenant.clone(), json!({"path": ["deploy", "v2"], "wait_ms": 300_000}));
    let told = tokio::spawn(async move { waiting.post(&format!("{latches}/wait"), wait).await });
    for (id, status, done) in [("web", "ACTIVE", "1 of 2"), ("api", "COMPLETED", "2 of 2")] {
        tenant.post(&format!("{latches}/count_down"), json!({"path": ["deploy", "v2"], "ids": [id]})).await;
        page.wait_for_words("tbody tr", &[status, done]).await;
    }
    page.wait_until_gone("tbody .time-left").await;
    assert_eq!(told.await.unwrap()["outcome"], "COMPLETED");
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}
