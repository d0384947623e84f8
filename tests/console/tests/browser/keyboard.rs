//! Getting along without a mouse.

use holdfast_console_tests::{Page, create_tenant};
use serde_json::json;
use thirtyfour::Key;

const FOCUSED: &str = "return document.activeElement.querySelector('.cell-name .name')?.innerText ?? ''";
const OUTLINE: &str = "return parseFloat(getComputedStyle(document.activeElement).outlineWidth)";

#[tokio::test]
async fn the_tree_is_walked_with_the_arrow_keys() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["a", "x"]}, {"path": ["a", "y"]}, {"path": ["b"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["a", "x", "y", "b"]).await;
    page.script("document.querySelector('.tree [tabindex=\"0\"]').focus()", json!([])).await;
    for (key, name) in [(Key::Down, "x"), (Key::Down, "y"), (Key::Left, "a"), (Key::End, "b"), (Key::Home, "a")] {
        page.press(key).await;
        assert_eq!(page.script(FOCUSED, json!([])).await, name);
        assert!(page.script(OUTLINE, json!([])).await.as_f64().unwrap() >= 2.0, "focus can be seen");
    }
    page.press(Key::Left).await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["a", "b"]).await;
    page.wait_for_words(".tree [data-key]", &["2 locks"]).await;
    page.press(Key::Right).await;
    page.press(Key::Down).await;
    page.press(Key::Enter).await;
    page.wait_for_words(".detail", &["a › x", "alice"]).await;
    page.press(Key::Escape).await;
    page.wait_for(".split.closed").await;
    assert_eq!(page.script(FOCUSED, json!([])).await, "x");

    // Locks appear and disappear around it; if the selected one disappears, the next one is selected.
    tenant.acquire("bob", json!([{"path": ["0"]}])).await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["0", "a", "x", "y", "b"]).await;
    tenant.release("bob").await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["a", "x", "y", "b"]).await;
    assert_eq!(page.script(FOCUSED, json!([])).await, "x");
    tenant.post("/namespaces/demo/lock-sets/delete", json!({"path": ["a", "x"]})).await;
    page.wait_for_texts(".tree [data-key] .cell-name .name", &["a", "y", "b"]).await;
    assert_eq!(page.script(FOCUSED, json!([])).await, "y");
    page.close().await;
}

#[tokio::test]
async fn tab_reaches_everything_and_what_is_reached_has_a_name() {
    let tenant = create_tenant().await;
    tenant.acquire("alice", json!([{"path": ["a"]}])).await;
    let Some(page) = Page::signed_in(&tenant.key).await else { return };
    page.navigate("#/ns/demo/locks").await;
    page.wait_for(".tree [data-key]").await;
    let named = "const at = document.activeElement; \
        const name = at.getAttribute('aria-label') ?? at.labels?.[0]?.innerText ?? at.innerText; \
        return [at.className || at.tagName, name.trim(), parseFloat(getComputedStyle(at).outlineWidth)]";
    let mut reached = Vec::new();
    // Once around: the browser itself comes between the last and the first.
    for _ in 0..18 {
        page.press(Key::Tab).await;
        let at = page.script(named, json!([])).await;
        if at[0] == "BODY" {
            continue;
        }
        assert!(!at[1].as_str().unwrap().is_empty() && at[2].as_f64().unwrap() >= 2.0, "{at}");
        reached.push(at[1].as_str().unwrap().to_owned());
    }
    for wanted in ["Skip to the content", "Sign out", "Locks", "Keys", "Filter locks and owners"] {
        assert!(reached.iter().any(|name| name == wanted), "{wanted}: {reached:?}");
    }
    assert!(reached.iter().any(|name| name.contains("alice")), "the tree: {reached:?}");
    page.close().await;
}
