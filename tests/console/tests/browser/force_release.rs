//! Forcing a lock open.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;
use thirtyfour::Key;

#[tokio::test]
async fn a_lock_is_forced_open_after_a_question_and_that_is_written_down() {
    let tenant = create_tenant().await;
    let lock = || json!([{"path": ["deploy", "checkout"]}]);
    tenant.acquire("alice", lock()).await;
    let bob = tenant.enqueue("bob", lock()).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks/deploy").await;
    page.click(".tree [data-key]:nth-child(2)").await;
    page.click("[data-part=force]").await;
    page.wait_for_words("dialog", &["Force", "deploy › checkout", "alice", "1 request waiting", "audit log"]).await;
    // The way out is what Enter does first.
    page.press(Key::Enter).await;
    page.wait_until_gone("dialog").await;
    page.click("[data-part=force]").await;
    page.wait_for("dialog").await;
    page.press(Key::Escape).await;
    page.wait_until_gone("dialog").await;
    page.wait_for_texts(".detail .holders strong", &["alice"]).await;

    page.click("[data-part=force]").await;
    page.click("dialog [data-confirm=force]").await;
    page.wait_for_words(".toasts", &["was forced open"]).await;
    page.wait_for_texts(".detail .holders strong", &["bob"]).await;
    assert_eq!(bob.await.unwrap()["success"], true);

    let key_id = tenant.key.split('_').nth(1).unwrap();
    page.navigate("#/audit").await;
    page.wait_for_words("tbody tr", &["LOCK_DELETED", "demo", "deploy › checkout", key_id]).await;
    page.navigate("#/ns/demo/events").await;
    page.wait_for_words("tbody", &["DELETED", "deploy › checkout", "alice"]).await;
    page.close().await;
}

#[tokio::test]
async fn a_session_is_ended_after_a_question() {
    let tenant = create_tenant().await;
    tenant.post("/namespaces/demo/sessions", json!({"process_id": "worker", "ttl_ms": 60_000})).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/sessions").await;
    page.wait_for_words("tbody tr", &["worker", "of 1 min"]).await;
    page.click("tbody tr button").await;
    page.click("dialog button[type=submit]").await;
    page.wait_for_words("main", &["No sessions"]).await;
    page.close().await;
}
