//! Pictures of every view, with live data of a running scenario: in the light and in the dark, on a desk and on a phone.

use std::path::{Path, PathBuf};

use holdfast_console_tests::{Page, Screen, Tenant, create_tenant, operator_token};
use serde_json::json;

/// Names the folder for the pictures; `console-shots` beside the built programs when it is absent.
const OUT_DIR_VAR: &str = "HOLDFAST_CONSOLE_SHOTS";
/// A view, where it is, and what can be seen once it is there.
const TENANT_VIEWS: [(&str, &str, &str); 12] = [
    ("locks", "#/ns/demo/locks", ".tree .cell-queue .chip"),
    ("waits", "#/ns/demo/waits", ".drawing g"),
    ("sessions", "#/ns/demo/sessions", "tbody tr"),
    ("semaphores", "#/ns/demo/semaphores", "tbody .chip.wait"),
    ("pools", "#/ns/demo/pools", "tbody .chip.wait"),
    ("latches", "#/ns/demo/latches", "tbody .chip.wait"),
    ("barriers", "#/ns/demo/barriers", "tbody tr"),
    ("events", "#/ns/demo/events", "tbody tr"),
    ("namespaces", "#/namespaces", "tbody tr"),
    ("keys", "#/keys", "tbody tr"),
    ("usage", "#/usage", "tbody tr"),
    ("audit", "#/audit", "tbody tr"),
];
const DETAIL_SELECTOR: &str = ".tree [data-key='[\"deploy\",\"checkout\"]']";
/// How many wait for a latch.
const LATCH_WAITERS: usize = 3;
/// A lock whose conditions some await.
const AWAITED_SELECTOR: &str = ".tree [data-key='[\"parcels\"]']";

fn out_dir() -> PathBuf {
    let folder = std::env::var_os(OUT_DIR_VAR).map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("console-shots");
    let folder = folder.unwrap_or_else(beside);
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// A shop that deploys, bills and changes its prices: holds of every kind, a session, and queues that depend on others.
async fn create_demo_data(tenant: &Tenant) {
    tenant.post("/namespaces", json!({"name": "orders", "description": "Checkout and fulfilment"})).await;
    tenant.post("/namespaces", json!({"name": "carts", "durability": "SESSION"})).await;
    tenant.create_key(json!({"description": "invoice workers", "scopes": ["locks:read", "locks:write"]})).await;
    let session = json!({"process_id": "deployer-7", "ttl_ms": 600_000, "metadata": {"host": "build-3"}});
    let session = tenant.post("/namespaces/demo/sessions", session).await["session_id"].clone();
    let deploy = json!({"session_id": session, "resources": [{"path": ["deploy", "checkout"]}]});
    tenant.post("/namespaces/demo/lock-sets/acquire", deploy).await;
    let read = |last: &str| json!([{"path": ["config", last], "mode": "READ"}]);
    let canary = json!({"session_id": session, "holder": "canary", "resources": read("checkout")});
    tenant.post("/namespaces/demo/lock-sets/acquire", canary).await;
    tenant.acquire("billing-1", json!([{"path": ["invoices", "2026-03", "4711"]}])).await;
    tenant.acquire("billing-2", json!([{"path": ["invoices", "2026-03", "4712"]}])).await;
    tenant.acquire("worker-a", read("checkout")).await;
    tenant.acquire("worker-b", read("prices")).await;
    tenant.acquire("migrator", json!([{"path": ["schema"]}])).await;
    tenant.acquire("stuck", json!([{"path": ["reports"]}])).await;
    tenant.post("/namespaces/demo/lock-sets/delete", json!({"path": ["reports"]})).await;
    for (owner, resources) in [
        ("deployer-8", json!([{"path": ["deploy", "checkout"]}])),
        ("deployer-9", json!([{"path": ["deploy", "checkout"]}])),
        ("worker-b", json!([{"path": ["schema"], "mode": "READ"}])),
        ("price-editor", json!([{"path": ["config", "prices"]}])),
        ("auditor", json!([{"path": ["invoices"], "mode": "READ"}])),
        ("billing-3", json!([{"path": ["invoices", "2026-03", "4711"]}])),
    ] {
        drop(tenant.enqueue(owner, resources).await);
    }
    for (owner, condition) in [("packer-1", "not empty"), ("packer-2", "not empty"), ("supplier", "not full")] {
        drop(tenant.await_condition(owner, "parcels", condition).await);
    }
    tenant.acquire("shop-1", json!([{"path": ["parcels"]}])).await;
    drop(tenant.enqueue("shop-2", json!([{"path": ["parcels"]}])).await);
    tenant.post("/namespaces/demo/semaphores/configure", json!({"name": "gpus", "permits": 8})).await;
    tenant.acquire_permits("trainer-1", "gpus", 6).await;
    drop(tenant.enqueue_permits("trainer-2", "gpus", 4).await);
    let members = json!([{"name": "db-1"}, {"name": "db-2"}, {"name": "db-3"}, {"name": "db-4", "disabled": true}]);
    tenant.post("/namespaces/demo/pools/configure", json!({"name": "databases", "members": members})).await;
    tenant.take_members("suite-1", "databases", json!(2)).await;
    drop(tenant.enqueue_members("suite-2", "databases", json!(2)).await);
    drop(tenant.enqueue_members("nightly", "databases", json!("db-1")).await);
    tenant.post("/namespaces/demo/latches/create", json!({"name": "release-42", "total": 3})).await;
    tenant.post("/namespaces/demo/latches/count_down", json!({"name": "release-42", "ids": ["web", "api"]})).await;
    for _ in 0..LATCH_WAITERS {
        let (waiter, wait) = (tenant.clone(), json!({"name": "release-42", "wait_ms": 300_000}));
        tokio::spawn(async move { waiter.post("/namespaces/demo/latches/wait", wait).await });
    }
    for process_id in ["solver-1", "solver-2", "solver-3"] {
        let arrival = json!({"name": "rounds", "process_id": process_id, "parties": 4, "ttl_ms": 600_000});
        tenant.post("/namespaces/demo/barriers/arrive", arrival).await;
    }
}

async fn take_screenshot(page: &Page, name: &str) {
    for is_dark in [false, true] {
        for (size, screen) in [("desktop", Screen::DESKTOP), ("phone", Screen::PHONE)] {
            page.set_screen(Screen { is_dark, ..screen }).await;
            let colours = if is_dark { "dark" } else { "light" };
            page.screenshot(&out_dir().join(format!("{name}-{size}-{colours}.png"))).await;
        }
    }
    page.set_screen(Screen::DESKTOP).await;
}

#[tokio::test]
async fn pictures_of_every_view_with_live_data() {
    let Some(page) = Page::open().await else { return };
    take_screenshot(&page, "sign-in").await;
    let tenant = create_tenant().await;
    create_demo_data(&tenant).await;
    page.sign_in(&tenant.key).await;
    for (name, address, sight) in TENANT_VIEWS {
        page.navigate(address).await;
        page.wait_for(sight).await;
        if address.starts_with("#/ns/") {
            page.wait_for_words(".top [role=status]", &["Live"]).await;
        }
        if name == "latches" {
            page.wait_for_texts("tbody .waiters", &[&LATCH_WAITERS.to_string()]).await;
        }
        take_screenshot(&page, name).await;
    }
    page.navigate("#/ns/demo/locks").await;
    page.wait_for_words(".top [role=status]", &["Live"]).await;
    page.click(AWAITED_SELECTOR).await;
    page.wait_for_words(".detail .awaits", &["packer-1", "packer-2", "supplier", "not empty", "not full"]).await;
    page.wait_for_texts(".detail .queue:not(.awaits) .owner .name", &["shop-2"]).await;
    take_screenshot(&page, "conditions").await;
    page.click(DETAIL_SELECTOR).await;
    page.wait_for_texts(".detail .queue:not(.awaits) .owner .name", &["deployer-8", "deployer-9"]).await;
    take_screenshot(&page, "lock").await;
    page.click("[data-part=force]").await;
    page.wait_for("dialog").await;
    take_screenshot(&page, "force").await;
    page.close().await;

    let Some(page) = Page::signed_in(&operator_token()).await else { return };
    page.wait_for(".nodes .chip.good").await;
    take_screenshot(&page, "cluster").await;
    page.close().await;
    eprintln!("pictures are in {}", out_dir().display());
}
