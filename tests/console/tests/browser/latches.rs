//! Latches: what is done, who waits, and when they are final.

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
    page.wait_for_texts("tbody .waiters", &["1"]).await;
    for (id, status, done) in [("web", "ACTIVE", "1 of 2"), ("api", "COMPLETED", "2 of 2")] {
        tenant.post(&format!("{latches}/count_down"), json!({"path": ["deploy", "v2"], "ids": [id]})).await;
        page.wait_for_words("tbody tr", &[status, done, id]).await;
        page.wait_for_texts("tbody .latest", &[id]).await;
    }
    page.wait_until_gone("tbody .time-left").await;
    page.wait_for_texts("tbody .waiters", &["0"]).await;
    assert_eq!(told.await.unwrap()["outcome"], "COMPLETED");
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn what_is_done_of_a_latch_is_shown_in_order_with_the_latest_and_how_much_more_there_is() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    let latches = "/namespaces/demo/latches";
    tenant.post(&format!("{latches}/create"), json!({"name": "named", "total": 20})).await;
    let ids: Vec<String> = (10..25).rev().map(|number| format!("job-{number}")).collect();
    tenant.post(&format!("{latches}/count_down"), json!({"name": "named", "ids": ids})).await;
    tenant.post(&format!("{latches}/create"), json!({"name": "rows", "total": 9_000, "ids": "INDEXED"})).await;
    let ranges = json!({"name": "rows", "ranges": [[0, 1_999], [5_000, 5_000]]});
    tenant.post(&format!("{latches}/count_down"), ranges).await;
    page.navigate("#/ns/demo/latches").await;
    page.wait_for_words("tbody tr:first-child", &["15 of 20", "job-10, job-11, job-12", "job-21", "and 3 more"]).await;
    page.wait_for_words("tbody tr:last-child", &["2,001 of 9,000", "0 to 1,999; 5,000"]).await;
    let rest = "return document.querySelector('tbody tr:last-child').innerText.includes('more')";
    assert_eq!(page.script(rest, json!([])).await, json!(false), "all of it is shown");

    page.wait_for_words("tbody tr:first-child", &["nothing was done since"]).await;
    tenant.post(&format!("{latches}/count_down"), json!({"name": "named", "ids": ["job-25", "a-1"]})).await;
    page.wait_for_texts("tbody tr:first-child .latest", &["a-1, job-25"]).await;
    let ranges = json!({"name": "rows", "ranges": [[1_000, 2_999], [4_999, 5_001]]});
    tenant.post(&format!("{latches}/count_down"), ranges).await;
    page.wait_for_texts("tbody tr:last-child .latest", &["2,000 to 2,999; 4,999; 5,001"]).await;
    page.close().await;
}
