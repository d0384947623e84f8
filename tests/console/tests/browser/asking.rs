//! Asking whoever holds a lock to release it.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn a_holder_is_asked_with_a_reason_and_that_is_shown_at_its_hold() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["deploy", "checkout"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks/deploy").await;
    page.click(".tree [data-key]:nth-child(2)").await;
    page.click("[data-part=ask]").await;
    page.wait_for_words("dialog", &["Ask for", "deploy › checkout", "Force it open"]).await;
    page.type_into("#ask-reason", "a correction").await;
    page.click("dialog [data-confirm=ask]").await;
    page.wait_for_words(".toasts", &["1 holder of", "asked"]).await;
    let key_id = tenant.key.split('_').nth(1).unwrap();
    page.wait_for_words(".detail .holders", &["Asked for by", key_id, "a correction"]).await;
    page.wait_for_words(".tree [data-key]:nth-child(2)", &["alice", "asked"]).await;
    page.wait_for_texts(".detail .holders strong", &["alice"]).await;
    page.close().await;
}
