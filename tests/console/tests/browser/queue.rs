//! Requests that wait, and the graph of who waits for whom.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

const QUEUE_SELECTOR: &str = ".detail .queue:not(.awaits) .owner .name";

#[tokio::test]
async fn a_queue_moves_while_one_looks() {
    let tenant = create_tenant().await;
    let lock = || json!([{"path": ["deploy"]}]);
    tenant.acquire("alice", lock()).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]").await;
    page.wait_for_words(".detail", &["alice", "Nobody waits"]).await;

    let bob = tenant.enqueue("bob", lock()).await;
    let carol = tenant.enqueue("carol", lock()).await;
    page.wait_for_texts(QUEUE_SELECTOR, &["bob", "carol"]).await;
    page.wait_for_words(".tree [data-key] .cell-queue", &["2 waiting", "next: bob"]).await;
    page.wait_for_words(".side [data-view=waits]", &["2"]).await;

    tenant.release("alice").await;
    assert_eq!(bob.await.unwrap()["success"], true);
    page.wait_for_texts(".detail .holders strong", &["bob"]).await;
    page.wait_for_texts(QUEUE_SELECTOR, &["carol"]).await;
    tenant.release("bob").await;
    assert_eq!(carol.await.unwrap()["success"], true);
    page.wait_for_texts(".detail .holders strong", &["carol"]).await;
    page.wait_for_texts(QUEUE_SELECTOR, &[]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}

#[tokio::test]
async fn the_graph_shows_who_waits_for_whom() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["a"]}])).await;
    tenant.acquire("bob", json!([{"path": ["b"]}])).await;
    let bob = tenant.enqueue("bob", json!([{"path": ["a"]}])).await;
    let carol = tenant.enqueue("carol", json!([{"path": ["b"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/waits").await;
    page.wait_for_texts("tbody tr td:first-child", &["bob", "carol"]).await;
    page.wait_for_words("tbody tr:nth-child(2)", &["b", "WRITE", "1.", "bob", "holds b"]).await;
    let drawn = "return [...document.querySelectorAll('.drawing g')].sort((one, other) => \
                 one.querySelector('rect').x.baseVal.value - other.querySelector('rect').x.baseVal.value) \
                 .map((one) => one.querySelector('title').textContent)";
    let boxes = page.script(drawn, json!([])).await;
    assert_eq!(boxes, json!(["alice: holds a", "bob: holds b; waits for a", "carol: waits for b"]));
    assert_eq!(page.script("return document.querySelectorAll('.drawing path.edge').length", json!([])).await, 2);

    tenant.release("alice").await;
    bob.await.unwrap();
    page.wait_for_texts("tbody tr td:first-child", &["carol"]).await;
    tenant.release("bob").await;
    carol.await.unwrap();
    page.wait_for_words("main", &["Nobody waits"]).await;
    page.close().await;
}

#[tokio::test]
async fn waits_for_permits_members_and_signals_are_shown_with_their_kind() {
    let tenant = create_tenant().await;
    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": "gpus", "permits": 2})).await;
    tenant.post("/namespaces/demo/pools/configure", json!({"name": "databases", "members": [{"name": "db-1"}]})).await;
    tenant.acquire_permits("alice", "gpus", 2).await;
    tenant.take_members("alice", "databases", json!(1)).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/waits").await;
    page.wait_for_words("main", &["Nobody waits"]).await;
    let bob = tenant.enqueue_permits("bob", "gpus", 1).await;
    page.wait_for_words("tbody tr", &["bob", "gpus", "semaphore", "1 permit", "1.", "too little is free"]).await;
    // There is nothing to draw: nobody in particular is in the way.
    page.wait_until("no drawing", "return !document.querySelector('figure').checkVisibility()", json!([])).await;
    let carol = tenant.enqueue_members("carol", "databases", json!("db-1")).await;
    page.wait_for_words("tbody tr:nth-child(2)", &["carol", "databases", "pool", "db-1"]).await;
    let dave = tenant.await_condition("dave", "jobs", "not empty").await;
    page.wait_for_words("tbody tr:nth-child(3)", &["dave", "jobs", "condition not empty", "no signal"]).await;
    tenant.acquire("erin", json!([{"path": ["jobs"]}])).await;
    let frank = tenant.enqueue("frank", json!([{"path": ["jobs"]}])).await;
    page.wait_for_words("tbody tr:nth-child(4)", &["frank", "jobs", "WRITE", "erin", "holds jobs"]).await;
    page.wait_for("figure").await;
    page.wait_for_words(".side [data-view=waits]", &["4"]).await;

    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": "gpus", "permits": 3})).await;
    assert_eq!(bob.await.unwrap()["success"], true);
    page.wait_for_texts("tbody tr td:first-child", &["carol", "dave", "frank"]).await;
    for call in [carol, dave, frank] {
        call.abort();
    }
    page.close().await;
}

#[tokio::test]
async fn a_lock_shows_who_awaits_a_condition_of_it() {
    let tenant = create_tenant().await;
    let locked = tenant.acquire("alice", json!([{"path": ["jobs"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]").await;
    let conditions = "/namespaces/demo/conditions";
    let awaits = json!({
        "path": ["jobs"], "process_id": "alice", "fencing_token": locked["fencing_token"], "ttl_ms": 60_000,
        "condition": "not empty", "wait_ms": 60_000,
    });
    let awaiting = tokio::spawn({
        let tenant = tenant.clone();
        async move { tenant.post(&format!("{conditions}/await"), awaits).await }
    });
    page.wait_for_words(".detail .awaits", &["alice", "not empty", "since"]).await;
    page.wait_for_words(".tree [data-key] .cell-queue", &["1 awaiting"]).await;
    tenant.acquire("bob", json!([{"path": ["jobs"]}])).await;
    let signal = json!({"path": ["jobs"], "process_id": "bob", "condition": "not empty"});
    tenant.post(&format!("{conditions}/signal"), signal).await;
    page.wait_until_gone(".detail .awaits li").await;
    page.wait_for_texts(QUEUE_SELECTOR, &["alice"]).await;
    tenant.release("bob").await;
    assert_eq!(awaiting.await.unwrap()["woken"], "SIGNALLED");
    page.close().await;
}
