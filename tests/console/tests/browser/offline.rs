//! A browser that loses the network.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn a_lost_connection_is_said_and_nothing_of_the_meantime_is_missed() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/events").await;
    page.wait_for_words(".top [role=status]", &["Live"]).await;
    page.set_offline(true).await;
    page.wait_for_words(".top [role=status]", &["Connection lost"]).await;
    tenant.acquire("alice", json!([{"path": ["l"]}])).await;
    tenant.release("alice").await;
    tenant.acquire("bob", json!([{"path": ["m"]}])).await;

    page.set_offline(false).await;
    page.wait_for_words(".top [role=status]", &["Live"]).await;
    page.wait_for_texts("tbody tr td:nth-child(2)", &["ACQUIRED", "RELEASED", "ACQUIRED"]).await;
    page.wait_for_words("tbody tr:nth-child(2)", &["alice", "l"]).await;
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["m"]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn a_namespace_that_is_deleted_is_said_to_be_gone() {
    let tenant = create_tenant().await;
    tenant.post("/namespaces", json!({"name": "short-lived"})).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/short-lived/locks").await;
    page.wait_for_words(".top [role=status]", &["Live"]).await;
    page.navigate("#/namespaces").await;
    page.click("[aria-label='Delete the namespace short-lived …']").await;
    page.type_into("#typed-name", "other").await;
    page.click("dialog button[type=submit]").await;
    page.wait_for_words("dialog [role=alert]", &["not its name"]).await;
    page.script("document.querySelector('#typed-name').value = ''", json!([])).await;
    page.type_into("#typed-name", "short-lived").await;
    page.click("dialog button[type=submit]").await;
    page.wait_for_texts("tbody td:first-child", &["demo"]).await;
    page.navigate("#/ns/short-lived/locks").await;
    page.wait_for_words("[role=alert]", &["no namespace of this name"]).await;
    page.close().await;
}
