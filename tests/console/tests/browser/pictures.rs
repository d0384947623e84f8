//! Pictures of every view, with live data of a running scenario: in the light and in the dark, on a desk and on a phone.

use std::path::{Path, PathBuf};

use holdfast_console_tests::{Page, Screen, Tenant, operator_token, tenant};
use serde_json::json;

/// Names the folder for the pictures; `console-shots` beside the built programs when it is absent.
const FOLDER: &str = "HOLDFAST_CONSOLE_SHOTS";
/// A view, where it is, and what can be seen once it is there.
const OF_TENANTS: [(&str, &str, &str); 8] = [
    ("locks", "#/ns/demo/locks", ".tree .cell-queue .chip"),
    ("waits", "#/ns/demo/waits", ".drawing g"),
    ("sessions", "#/ns/demo/sessions", "tbody tr"),
    ("events", "#/ns/demo/events", "tbody tr"),
    ("namespaces", "#/namespaces", "tbody tr"),
    ("keys", "#/keys", "tbody tr"),
    ("usage", "#/usage", "tbody tr"),
    ("audit", "#/audit", "tbody tr"),
];
const DETAIL: &str = ".tree [data-key='[\"deploy\",\"checkout\"]']";

fn folder() -> PathBuf {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("console-shots");
    let folder = folder.unwrap_or_else(beside);
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// A shop that deploys, bills and changes its prices: holds of every kind, a session, and queues that depend on others.
async fn act(tenant: &Tenant) {
    tenant.post("/namespaces", json!({"name": "orders", "description": "Checkout and fulfilment"})).await;
    tenant.new_key(json!({"description": "invoice workers", "scopes": ["locks:read", "locks:write"]})).await;
    let session = json!({"process_id": "deployer-7", "ttl_ms": 600_000, "metadata": {"host": "build-3"}});
    let session = tenant.post("/namespaces/demo/sessions", session).await["session_id"].clone();
    let deploy = json!({"session_id": session, "resources": [{"path": ["deploy", "checkout"]}]});
    tenant.post("/namespaces/demo/lock-sets/acquire", deploy).await;
    let read = |last: &str| json!([{"path": ["config", last], "mode": "READ"}]);
    let canary = json!({"session_id": session, "holder": "canary", "resources": read("checkout")});
    tenant.post("/namespaces/demo/lock-sets/acquire", canary).await;
    tenant.take("billing-1", json!([{"path": ["invoices", "2026-03", "4711"]}])).await;
    tenant.take("billing-2", json!([{"path": ["invoices", "2026-03", "4712"]}])).await;
    tenant.take("worker-a", read("checkout")).await;
    tenant.take("worker-b", read("prices")).await;
    tenant.take("migrator", json!([{"path": ["schema"]}])).await;
    tenant.take("stuck", json!([{"path": ["reports"]}])).await;
    tenant.post("/namespaces/demo/lock-sets/delete", json!({"path": ["reports"]})).await;
    for (owner, resources) in [
        ("deployer-8", json!([{"path": ["deploy", "checkout"]}])),
        ("deployer-9", json!([{"path": ["deploy", "checkout"]}])),
        ("worker-b", json!([{"path": ["schema"], "mode": "READ"}])),
        ("price-editor", json!([{"path": ["config", "prices"]}])),
        ("auditor", json!([{"path": ["invoices"], "mode": "READ"}])),
        ("billing-3", json!([{"path": ["invoices", "2026-03", "4711"]}])),
    ] {
        drop(tenant.wait_in_line(owner, resources).await);
    }
}

async fn shoot(page: &Page, name: &str) {
    for is_dark in [false, true] {
        for (size, screen) in [("desktop", Screen::DESKTOP), ("phone", Screen::PHONE)] {
            page.look_with(Screen { is_dark, ..screen }).await;
            let colours = if is_dark { "dark" } else { "light" };
            page.picture(&folder().join(format!("{name}-{size}-{colours}.png"))).await;
        }
    }
    page.look_with(Screen::DESKTOP).await;
}

#[tokio::test]
async fn pictures_of_every_view_with_live_data() {
    let Some(page) = Page::open().await else { return };
    shoot(&page, "sign-in").await;
    let tenant = tenant().await;
    act(&tenant).await;
    page.sign_in(&tenant.key).await;
    for (name, address, sight) in OF_TENANTS {
        page.go(address).await;
        page.wait_for(sight).await;
        if address.starts_with("#/ns/") {
            page.wait_for_words(".top [role=status]", &["Live"]).await;
        }
        shoot(&page, name).await;
    }
    page.go("#/ns/demo/locks").await;
    page.wait_for_words(".top [role=status]", &["Live"]).await;
    page.click(DETAIL).await;
    page.wait_for_texts(".detail .queue .owner .name", &["deployer-8", "deployer-9"]).await;
    shoot(&page, "lock").await;
    page.click("[data-part=force]").await;
    page.wait_for("dialog").await;
    shoot(&page, "force").await;
    page.close().await;

    let Some(page) = Page::signed_in(&operator_token()).await else { return };
    page.wait_for(".nodes .chip.good").await;
    shoot(&page, "cluster").await;
    page.close().await;
    eprintln!("pictures are in {}", folder().display());
}
