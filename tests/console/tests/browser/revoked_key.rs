//! A key that is revoked while a user is signed in with it.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

const STORED_ITEM_COUNT: &str = "return sessionStorage.length";

#[tokio::test]
async fn a_revoked_key_signs_out_and_says_why() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["l"]}])).await;
    let (key_id, key) = tenant.create_key(json!({})).await;
    let Some(page) = Page::signed_in(&key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]").await;
    page.click("[data-part=force]").await;
    page.wait_for("dialog").await;

    tenant.revoke_key(&key_id).await;
    page.wait_for("#key").await;
    page.wait_for_words("[role=alert]", &["You were signed out", &key_id, "revoked"]).await;
    page.wait_until_gone("dialog").await;
    assert!(!page.text("body").await.contains("alice"), "nothing is left to see");
    assert_eq!(page.script(STORED_ITEM_COUNT, json!([])).await, 0);
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");

    // A user with another key continues on the same page.
    page.sign_in(&tenant.key).await;
    page.wait_for_words(".tree [data-key]", &["alice"]).await;
    page.close().await;
}

#[tokio::test]
async fn a_key_that_ends_signs_out_and_says_why() {
    let tenant = create_tenant().await;
    let Some(page) = Page::open().await else { return };
    let soon = page.script("return new Date(Date.now() + 5000).toISOString()", json!([])).await;
    let (key_id, key) = tenant.create_key(json!({"expires_at": soon})).await;
    page.sign_in(&key).await;
    page.wait_for(".frame").await;
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_words("[role=alert]", &["You were signed out", &key_id, "expired"]).await;
    page.close().await;
}

#[tokio::test]
async fn after_a_reload_too_a_revoked_key_signs_out() {
    let tenant = create_tenant().await;
    let (key_id, key) = tenant.create_key(json!({})).await;
    let Some(page) = Page::signed_in(&key).await else { return };
    page.navigate("#/keys").await;
    page.reload().await;
    page.wait_for_words("tbody", &[&key_id, "yours"]).await;
    tenant.revoke_key(&key_id).await;
    page.navigate("#/usage").await;
    page.wait_for_words("[role=alert]", &["You were signed out", &key_id, "revoked"]).await;
    page.close().await;
}
