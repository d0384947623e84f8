//! Pools: their members, and who waits.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;

#[tokio::test]
async fn the_members_of_a_pool_follow_what_happens() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/pools").await;
    page.wait_for_words("main", &["No pools"]).await;
    let pools = "/namespaces/demo/pools";
    let members = json!([{"name": "db-1"}, {"name": "db-2", "disabled": true}]);
    tenant.post(&format!("{pools}/configure"), json!({"name": "databases", "members": members})).await;
    page.wait_for_words("tbody tr", &["databases", "db-1", "free", "db-2", "disabled"]).await;
    let take = json!({"name": "databases", "process_id": "alice", "request_id": "a", "ttl_ms": 60_000});
    tenant.post(&format!("{pools}/take"), take).await;
    page.wait_for_words("tbody tr", &["1 of 2", "db-1", "held by alice"]).await;
    assert!(page.was_not_reloaded().await, "nothing was loaded anew");
    page.close().await;
}
