//! Shown and signed instants are never later than the actual end.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use holdfast_api::*;
use holdfast_types::Mode;
use serde_json::Value;

use super::core_node::{TestGateway, context};
use super::tests::{acquire, demo_tenant};
use crate::*;

/// How late replies arrive; twice that exceeds the second that a grant's end is rounded down to.
const LATE: Duration = Duration::from_millis(600);
const LATE_MS: u64 = 600;
const TTL_MS: u64 = 60_000;

/// The end of a signed grant, in milliseconds.
fn exp_ms(grant: Option<&String>) -> u64 {
    let claims = grant.unwrap().split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    claims["exp"].as_u64().unwrap() * 1_000
}

/// A tenant with late replies, at a gateway that knows the leader.
async fn slow_gateway() -> (TestGateway, AuthContext) {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    world.service.acquire_lock(&tenant, &context(), acquire("first", "p", Mode::Write)).await.unwrap();
    world.delay_lock_answers(LATE);
    (world, tenant)
}

fn signed(fencing_token: Option<u64>) -> AcquireLock {
    let terms = Terms { ttl_ms: Some(TTL_MS), signed: true, fencing_token, ..Terms::default() };
    AcquireLock { terms, ..acquire("l", "p", Mode::Write) }
}

#[tokio::test]
async fn an_answer_that_comes_late_makes_nothing_end_later() {
    let (world, tenant) = slow_gateway().await;
    let mut token = None;
    // The first acquire takes the lock, the second extends it.
    for _ in 0..2 {
        let answer = world.service.acquire_lock(&tenant, &context(), signed(token)).await.unwrap();
        let asked_by = Timestamp::now().0 - LATE_MS;
        token = answer.fencing_token;
        let expires_at = answer.lock.write_lock_holder.unwrap().expires_at.unwrap();
        assert!(expires_at.0 <= asked_by + TTL_MS, "{} ms too late", expires_at.0 - asked_by - TTL_MS);
        assert!(exp_ms(answer.signed_grant.as_ref()) <= expires_at.0);
    }
    let seen = world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
    let asked_by = Timestamp::now().0 - LATE_MS;
    let holder = seen.write_lock_holder.unwrap();
    assert!(holder.expires_at.unwrap().0 <= asked_by + holder.remaining_ms.unwrap());
}

#[tokio::test]
async fn the_grant_of_a_session_ends_with_what_is_left_of_it_and_after_a_minute_at_most() {
    let (world, tenant) = slow_gateway().await;
    for (number, ttl_ms) in [5_000, 600_000].into_iter().enumerate() {
        let request = CreateSession { namespace: "demo".into(), process_id: "p".into(), ttl_ms, metadata: [].into() };
        let session = world.service.create_session(&tenant, &context(), request).await.unwrap();
        let owner = OwnerFields { session_id: Some(session.session_id), ..OwnerFields::default() };
        let terms = Terms { signed: true, ..Terms::default() };
        let request = AcquireLock { owner, terms, ..acquire(&format!("l{number}"), "", Mode::Write) };
        let answer = world.service.acquire_lock(&tenant, &context(), request).await.unwrap();
        let asked_by = Timestamp::now().0 - LATE_MS;
        let exp_ms = exp_ms(answer.signed_grant.as_ref());
        assert!(exp_ms <= asked_by + ttl_ms.min(60_000), "{} ms too late", exp_ms - asked_by - ttl_ms.min(60_000));
        assert!(exp_ms > asked_by + ttl_ms.min(60_000) - 5_000);
    }
}

#[tokio::test]
async fn what_was_waited_for_is_looked_at_before_it_is_signed() {
    let (world, tenant) = slow_gateway().await;
    let mut request = signed(None);
    request.terms.wait_ms = 10_000;
    let answer = world.service.acquire_lock(&tenant, &context(), request).await.unwrap();
    // The reply to the acquire was late, and so was the reply to the query.
    let granted_by = Timestamp::now().0 - 2 * LATE_MS;
    assert!(exp_ms(answer.signed_grant.as_ref()) <= granted_by + TTL_MS);
}

#[tokio::test]
async fn a_grant_that_cannot_be_signed_is_not_said_to_be_none() {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    world.service.acquire_lock(&tenant, &context(), acquire("first", "p", Mode::Write)).await.unwrap();
    world.drop_queries(|_| true);
    let mut request = signed(None);
    request.terms.wait_ms = 100;
    let short = context().with_timeout(Duration::from_secs(2));
    let error = world.service.acquire_lock(&tenant, &short, request).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error:?}");
    // The lock is held, so another owner does not get it.
    let other = world.service.acquire_lock(&tenant, &context(), acquire("l", "other", Mode::Write)).await.unwrap();
    assert!(!other.success);
}
