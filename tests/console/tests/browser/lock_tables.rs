//! Namespaces whose locks are in the memory of a leader: their badge, and what is shown while a new leader waits.

use holdfast_console_tests::{Page, Screen, create_tenant};
use holdfast_testkit::{RestClient, SessionSocket, Standalone, scratch};
use serde_json::json;

/// Longer than the test takes: nothing ends by itself.
const TTL_MS: u64 = 60_000;
const NOTICE: &str = "main .notice[aria-label='Lock table']";
const STATUS: &str = ".top [role=status]";
/// How far the page is wider than the screen, in pixels.
const OVERFLOW_PX: &str = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// Opens a session in the namespace `ns` that nobody keeps alive. Returns its id.
async fn open_session(rest: &RestClient) -> String {
    let mut socket = SessionSocket::connect(rest).await;
    socket.send(json!({"type": "open", "process_id": "p", "ttl_ms": TTL_MS, "keeps_table": true})).await;
    let opened = socket.receive().await;
    opened["session_id"].as_str().unwrap_or_else(|| panic!("not opened: {opened}")).to_owned()
}

#[tokio::test]
async fn a_namespace_that_is_kept_in_memory_has_a_badge() {
    let tenant = create_tenant().await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/namespaces").await;
    page.click(".head button.primary").await;
    page.type_into("#new-name", "carts").await;
    page.script("document.querySelector('#new-durability').value = 'SESSION'", json!([])).await;
    page.click("dialog button[type=submit]").await;
    page.wait_for_words("tbody tr:first-child td:first-child", &["carts", "SESSION"]).await;
    page.wait_for_texts("tbody tr:last-child td:first-child", &["demo"]).await;
    assert_eq!(tenant.get("/namespaces/carts").await["durability"], "SESSION");
    page.navigate("#/ns/carts/locks").await;
    page.wait_for_words("main h1", &["Locks", "carts", "SESSION"]).await;
    page.wait_for_words(STATUS, &["Live"]).await;
    assert_eq!(page.text(NOTICE).await, "", "its table is ready");
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_words(STATUS, &["Live"]).await;
    assert!(!page.text("main h1").await.contains("SESSION"));
    page.close().await;
}

#[tokio::test]
async fn a_rebuild_is_followed_until_the_last_session_of_before_has_ended() {
    let data_dir = scratch();
    let server = Standalone::start(&data_dir, &[]);
    let key = server.secret("demo.key");
    let rest = RestClient::new(server.address(), &key);
    rest.json("POST /v1/namespaces", json!({"name": "ns", "durability": "SESSION"})).await.ok();
    let opened = [open_session(&rest).await, open_session(&rest).await];
    let sessions = opened.each_ref().map(String::as_str);
    drop(server);

    let server = Standalone::start(&data_dir, &[]);
    let rest = RestClient::new(server.address(), &key);
    let Some(page) = Page::open_at(server.address()).await else { return };
    page.sign_in(&key).await;
    page.wait_for(".frame").await;
    page.navigate("#/namespaces").await;
    page.wait_for_words("tbody tr:last-child", &["ns", "SESSION", "REBUILDING: waits for 2 sessions"]).await;
    page.navigate("#/ns/ns/sessions").await;
    page.wait_for_words(STATUS, &["Rebuilding"]).await;
    page.wait_for_words(NOTICE, &["nothing is granted", "2 earlier sessions", "0 of 2 sessions settled"]).await;
    page.wait_for_words(NOTICE, &sessions).await;
    page.wait_for_words("tbody", &sessions).await;
    for is_dark in [false, true] {
        page.set_screen(Screen { width: 320, height: 640, is_dark, ..Screen::PHONE }).await;
        let low = page.script(include_str!("contrast.js"), json!([])).await;
        assert_eq!(low, json!([]), "these texts are hard to read (dark: {is_dark})");
        assert_eq!(page.script(OVERFLOW_PX, json!([])).await, 0);
    }

    rest.delete(&format!("/v1/namespaces/ns/sessions/{}", sessions[0])).await.expect("it can be ended");
    page.wait_for_words(NOTICE, &["1 earlier session ", "1 of 2 sessions settled", sessions[1]]).await;
    rest.delete(&format!("/v1/namespaces/ns/sessions/{}", sessions[1])).await.expect("it can be ended");
    page.wait_for_words(STATUS, &["Live"]).await;
    page.wait_until("the notice is gone", "return document.querySelector(arguments[0]).hidden", json!([NOTICE])).await;
    page.close().await;
}
