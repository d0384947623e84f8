//! Signing in and out, and where the key is meanwhile.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

/// Everything that the browser keeps, and the address.
const STORED_STATE: &str =
    "return JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])";

#[tokio::test]
async fn a_good_key_signs_in_and_is_written_down_nowhere() {
    let tenant = create_tenant().await;
    let Some(page) = Page::open().await else { return };
    page.sign_in("hf_0000000000000000_nothing").await;
    page.wait_for_words("[role=alert]", &["Not signed in", "API key"]).await;
    page.sign_in("something else").await;
    page.wait_for_words("[role=alert]", &["neither an API key"]).await;
    page.sign_in(&tenant.key).await;
    page.wait_for_words("tbody tr", &["demo"]).await;
    let kept = page.script(STORED_STATE, json!([])).await.to_string();
    assert!(kept.contains("holdfast-console-token") && !kept.contains(&tenant.key), "{kept}");
    let secret = tenant.key.splitn(3, '_').nth(2).unwrap();
    assert!(!kept.contains(secret), "{kept}");

    page.reload().await;
    page.wait_for_words("tbody tr", &["demo"]).await;
    page.click(".top button").await;
    page.wait_for_words("[role=alert]", &["You signed out"]).await;
    let kept = page.script(STORED_STATE, json!([])).await.to_string();
    assert!(!kept.contains("holdfast-console-token"), "{kept}");
    page.reload().await;
    page.wait_for("#key").await;
    page.close().await;
}

#[tokio::test]
async fn a_key_is_shown_what_it_may_do_and_nothing_else() {
    let tenant = create_tenant().await;
    let (_, reader) = tenant.create_key(json!({"scopes": ["locks:read"], "namespaces": ["demo"]})).await;
    tenant.acquire("alice", json!([{"path": ["l"]}])).await;
    let Some(page) = Page::signed_in(&reader).await else { return };
    page.wait_for_texts(".side a", &["Namespaces", "Usage"]).await;
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]").await;
    page.wait_for_words(".detail", &["alice"]).await;
    page.wait_until_gone("[data-part=force]").await;
    page.navigate("#/ns/other/locks").await;
    page.wait_for_words("[role=alert]", &["Not allowed"]).await;
    page.close().await;
}
