//! The tree of locks, as it changes.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn the_tree_shows_what_is_held_as_it_changes() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_words("main", &["Nothing is held"]).await;

    tenant.acquire("alice", json!([{"path": ["db", "orders"]}, {"path": ["db", "prices"], "mode": "READ"}])).await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["db", "orders", "prices"]).await;
    page.wait_for_texts(".tree [data-key] .cell-state .chip", &["WRITE", "READ"]).await;
    page.wait_for_words(".tree [data-key]:nth-child(2)", &["alice", "4 min"]).await;

    tenant.acquire("bob", json!([{"path": ["db", "prices"], "mode": "READ"}])).await;
    page.wait_for_words(".tree [data-key]:nth-child(3)", &["READ × 2", "alice", "and 1 other"]).await;
    tenant.release("alice").await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["db", "prices"]).await;
    tenant.release("bob").await;
    page.wait_for_words("main", &["Nothing is held"]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn time_left_follows_extensions_and_holds_that_run_out_go() {
    let tenant = create_tenant().await;
    let body = json!({"process_id": "alice", "ttl_ms": 59_000, "resources": [{"path": ["l"]}]});
    let granted = tenant.post("/namespaces/demo/lock-sets/acquire", body).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]").await;
    let token = granted["fencing_token"].to_string();
    page.wait_for_words(".detail", &["alice", &token]).await;
    assert!(!page.text(".detail .left").await.contains("min"));
    tenant.acquire("alice", json!([{"path": ["l"]}])).await;
    page.wait_for_words(".detail .left", &["min"]).await;
    page.wait_for_words(".tree [data-key] .cell-left", &["min"]).await;

    let shorter = json!({"process_id": "alice", "ttl_ms": 300, "resources": [{"path": ["l"]}]});
    tenant.post("/namespaces/demo/lock-sets/acquire", shorter).await;
    page.wait_for_words(".detail", &["Nobody holds it"]).await;
    page.wait_until_gone(".tree [data-key]").await;
    page.close().await;
}

#[tokio::test]
async fn whatever_names_contain_they_are_only_names() {
    let tenant = create_tenant().await;
    let name = "<img src=x onerror=\"window.wasRun = true\"><script>window.wasRun = true</script>";
    tenant.post("/namespaces", json!({"name": name, "description": name})).await;
    let resources = json!([{"path": [name, "..", "a/b", "\u{202e}x"]}]);
    let body = json!({"process_id": name, "ttl_ms": 60_000, "metadata": {name: name}, "resources": resources});
    tenant.post("/namespaces/demo/lock-sets/acquire", body).await;
    let _waits = tenant.enqueue(&format!("{name}2"), resources).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    for view in ["#/namespaces", "#/usage", "#/audit", "#/ns/demo/waits", "#/ns/demo/events", "#/ns/demo/locks"] {
        page.navigate(view).await;
        page.wait_for_words("main", &[name]).await;
    }
    page.wait_for_texts(".tree [data-key] .cell-name .name", &[name, "..", "a/b", "\u{202e}x"]).await;
    page.click(".tree [data-key]:last-child").await;
    page.wait_for_words(".detail", &[name, "a/b"]).await;
    let made =
        "return document.querySelectorAll('.frame script, .frame [onerror]').length + Number(window.wasRun ?? 0)";
    assert_eq!(page.script(made, json!([])).await, 0);
    page.close().await;
}
