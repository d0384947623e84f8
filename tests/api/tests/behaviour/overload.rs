//! Many calls at once, and more than an account may make. What it costs others is measured by `make bench-tenants`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};

use crate::support::{Tenant, create_tenant, server};

/// Callers that never rest.
const NOISY_CALLERS: usize = 100;
const QUIET_PAIRS: usize = 40;
/// How long the answer to a caller is held back who asks for too much.
const THROTTLE_DELAY: Duration = Duration::from_millis(100);

async fn acquire(tenant: &Tenant, lock: &str, body: Value) -> holdfast_testkit::Response {
    tenant.rest.json(&format!("POST /v1/namespaces/ns/locks/{lock}/acquire"), body).await
}

async fn release(tenant: &Tenant, lock: &str) -> holdfast_testkit::Response {
    tenant.rest.json(&format!("POST /v1/namespaces/ns/locks/{lock}/release"), json!({"process_id": "p"})).await
}

fn acquire_body() -> Value {
    json!({"process_id": "p", "ttl_ms": 60_000})
}

#[tokio::test]
async fn a_quiet_tenant_is_served_beside_one_that_never_rests() {
    let server = Standalone::start(&scratch(), &[]);
    let (loud, quiet) = (create_tenant(&server).await, create_tenant(&server).await);
    loud.update(&server, json!({"limits": {"max_requests_per_second": 0}})).await;
    loud.create_namespace("ns").await;
    quiet.create_namespace("ns").await;
    let stop = Arc::<AtomicBool>::default();
    let callers = (0..NOISY_CALLERS).map(|number| {
        let (loud, stop) = (loud.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let (mut statuses, lock) = (BTreeSet::new(), format!("l{number}"));
            while !stop.load(Ordering::Relaxed) {
                statuses.insert(acquire(&loud, &lock, acquire_body()).await.status);
                // A release is never refused, however much is asked for.
                release(&loud, &lock).await.ok();
            }
            statuses
        })
    });
    let callers: Vec<_> = callers.collect();
    for _ in 0..QUIET_PAIRS {
        // Neither refused nor too late, however busy the machine is.
        assert_eq!(acquire(&quiet, "l", acquire_body()).await.ok()["success"], true);
        assert_eq!(release(&quiet, "l").await.ok()["released"], true);
    }
    stop.store(true, Ordering::Relaxed);
    let statuses: BTreeSet<u16> = join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    assert!(statuses.contains(&200) && statuses.is_subset(&BTreeSet::from([200, 503])), "{statuses:?}");
}

#[tokio::test]
async fn more_than_the_rate_is_refused_what_is_held_is_kept_and_another_tenant_is_served() {
    let (tenant, other) = (create_tenant(server()).await, create_tenant(server()).await);
    tenant.create_namespace("ns").await;
    other.create_namespace("ns").await;
    let token = acquire(&tenant, "held", acquire_body()).await.ok()["fencing_token"].clone();
    tenant.update(server(), json!({"limits": {"max_requests_per_second": 1}})).await;
    let mut refused = Vec::new();
    for number in 0..100 {
        let asked = Instant::now();
        let answer = acquire(&tenant, &format!("l{number}"), acquire_body()).await;
        if answer.status == 429 {
            assert!(asked.elapsed() >= THROTTLE_DELAY, "who asks again at once is slowed down: {:?}", asked.elapsed());
            refused.push(answer);
        }
        if refused.len() == 3 {
            break;
        }
    }
    assert_eq!(refused.len(), 3, "a burst of two passes, and what each second brings");
    for number in 0..10 {
        let lock = format!("l{number}");
        assert_eq!(acquire(&other, &lock, acquire_body()).await.ok()["success"], true, "it asks for as much");
    }
    for answer in refused {
        assert_eq!(answer.header("retry-after"), "1");
        assert_eq!(answer.expect_error("RATE_LIMITED")["limit"], "max_requests_per_second");
    }
    for _ in 0..5 {
        let extend = json!({"process_id": "p", "ttl_ms": 60_000, "fencing_token": token});
        assert_eq!(acquire(&tenant, "held", extend).await.ok()["success"], true);
    }
    assert_eq!(release(&tenant, "held").await.ok()["released"], true);
}
