//! Small screens, and dark ones.

use holdfast_console_tests::{Page, Screen, create_tenant};
use serde_json::json;

const VIEWS: [&str; 12] = [
    "#/ns/demo/locks",
    "#/ns/demo/waits",
    "#/ns/demo/sessions",
    "#/ns/demo/semaphores",
    "#/ns/demo/pools",
    "#/ns/demo/latches",
    "#/ns/demo/barriers",
    "#/ns/demo/events",
    "#/namespaces",
    "#/keys",
    "#/usage",
    "#/audit",
];
/// How far the page is wider than the screen, in pixels.
const OVERFLOW_PX: &str = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
const BACKGROUND: &str = "return getComputedStyle(document.documentElement).backgroundColor";

#[tokio::test]
async fn everything_fits_on_the_smallest_phone() {
    let tenant = create_tenant().await;
    let long = "a-name-that-goes-on-and-on-without-any-place-where-it-could-be-broken".repeat(2);
    let resources = json!([{"path": [&long[..128], &long[..128]]}]);
    tenant.acquire(&long[..128], resources.clone()).await;
    let _waits = tenant.enqueue(&long[1..129], resources).await;
    tenant.post("/namespaces/demo/sessions", json!({"process_id": &long[..128], "ttl_ms": 60_000})).await;
    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": &long[..128], "permits": 2})).await;
    let members = json!([{"name": &long[..128]}]);
    tenant.post("/namespaces/demo/pools/configure", json!({"name": &long[..128], "members": members})).await;
    tenant.acquire_permits(&long[..128], &long[..128], 2).await;
    let _permits = tenant.enqueue_permits(&long[1..129], &long[..128], 1).await;
    tenant.take_members(&long[..128], &long[..128], json!(1)).await;
    let _members = tenant.enqueue_members(&long[1..129], &long[..128], json!(&long[..128])).await;
    tenant.post("/namespaces/demo/latches/create", json!({"path": [&long[..128], &long[..128]], "total": 9})).await;
    let arrival =
        json!({"path": [&long[..128], &long[..128]], "process_id": &long[..128], "parties": 2, "ttl_ms": 60_000});
    tenant.post("/namespaces/demo/barriers/arrive", arrival).await;
    tenant.post("/namespaces", json!({"name": &long[..128], "durability": "SESSION"})).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.set_screen(Screen { width: 320, height: 640, ..Screen::PHONE }).await;
    for view in VIEWS {
        page.navigate(view).await;
        page.wait_for_words("main h1", &[]).await;
        page.wait_until(
            "the view has what it shows",
            "return document.querySelector('tbody tr, .tree [data-key]')",
            json!([]),
        )
        .await;
        assert_eq!(page.script(OVERFLOW_PX, json!([])).await, 0, "{view}");
    }
    page.navigate("#/ns/demo/locks").await;
    page.click(".tree [data-key]:last-child").await;
    page.wait_for(".detail [data-part=force]").await;
    page.click(".detail [data-part=force]").await;
    page.wait_for("dialog").await;
    assert_eq!(page.script(OVERFLOW_PX, json!([])).await, 0, "the dialog");
    page.close().await;
}

#[tokio::test]
async fn colours_are_those_that_one_prefers_and_can_be_read() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["l"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.wait_for(".tree [data-key] .chip").await;
    let mut backgrounds = Vec::new();
    for is_dark in [false, true] {
        page.set_screen(Screen { is_dark, ..Screen::DESKTOP }).await;
        backgrounds.push(page.script(BACKGROUND, json!([])).await);
        let low = page.script(include_str!("contrast.js"), json!([])).await;
        assert_eq!(low, json!([]), "these texts are hard to read (dark: {is_dark})");
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    page.close().await;
}
