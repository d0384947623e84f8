//! Making, rotating and revoking API keys.

use holdfast_console_tests::{Page, Tenant, create_tenant};
use serde_json::json;

/// The key that a dialog shows, once.
async fn displayed_key(page: &Page) -> String {
    page.wait_for("[data-secret]").await;
    let key = page.text("[data-secret]").await;
    page.click("dialog .primary").await;
    page.wait_until_gone("dialog").await;
    key
}

async fn list_keys(tenant: &Tenant) -> Vec<serde_json::Value> {
    tenant.get("/api-keys").await["api_keys"].as_array().unwrap().clone()
}

#[tokio::test]
async fn keys_are_made_rotated_and_revoked() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/keys").await;
    page.wait_for_words("tbody tr", &["yours", "account:admin"]).await;
    page.click(".head .primary").await;
    page.type_into("#key-description", "for the reports").await;
    page.click("dialog input[value='locks:write']").await;
    page.click("dialog button[type=submit]").await;
    let made = displayed_key(&page).await;
    page.wait_for_words("tbody tr:nth-child(2)", &["for the reports", "locks:read", "never"]).await;
    let listed = list_keys(&tenant).await;
    assert_eq!(listed[1]["scopes"], json!(["locks:read"]));
    tenant.with_key(&made).get("/namespaces/demo/locks").await;

    page.click("tbody tr:nth-child(2) button:first-child").await;
    page.click("dialog button[type=submit]").await;
    tenant.with_key(&displayed_key(&page).await).get("/namespaces/demo/locks").await;
    page.wait_for_words("tbody tr:nth-child(3)", &["for the reports"]).await;
    assert_eq!(list_keys(&tenant).await[2]["scopes"], json!(["locks:read"]));

    page.click("tbody tr:nth-child(2) button:last-child").await;
    page.wait_for_words("dialog", &["Revoke", "within a second"]).await;
    page.click("dialog [data-confirm=revoke]").await;
    page.wait_until_gone("tbody tr:nth-child(3)").await;
    assert_eq!(list_keys(&tenant).await.len(), 2);
    page.close().await;
}
