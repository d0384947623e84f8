//! The cost of acquires beyond the account's rate.

use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_api::*;
use holdfast_types::{Metadata, Mode, Query};

use super::core_node::{TestGateway, context};
use super::tests::{acquire, code, make_namespace};
use crate::*;

/// Claims of the largest request.
const CLAIMS: usize = 64;

/// A tenant with a namespace `demo`, whose rate admits the next two requests in a second.
async fn rate_limited_tenant(world: &TestGateway) -> AuthContext {
    let operator = world.operator().await;
    let account = world.account("slow@example.com").await;
    let tenant = world.caller(&account, CreateApiKey::default()).await;
    make_namespace(world, &tenant, "demo").await.unwrap();
    let limits = LimitsPatch { max_requests_per_second: Some(1), ..LimitsPatch::default() };
    let update = UpdateAccount { limits: Some(limits), ..UpdateAccount::default() };
    world.service.update_account(&operator, &context(), &account, update).await.unwrap();
    world.caller(&account, CreateApiKey::default()).await
}

/// A request for this many locks, numbered from `first`.
fn set_request(first: usize, claims: usize) -> AcquireLocks {
    let resource = |number| Resource { path: vec![format!("l{number}")], mode: Mode::Write };
    AcquireLocks {
        namespace: "demo".into(),
        resources: (first..first + claims).map(resource).collect(),
        owner: OwnerFields::process("p"),
        request_id: None,
        terms: Terms { ttl_ms: Some(60_000), ..Terms::default() },
    }
}

fn is_about_locks(query: &Query) -> bool {
    matches!(query, Query::Lock { .. } | Query::Holds { .. } | Query::Check { .. })
}

#[tokio::test]
async fn an_acquire_beyond_the_rate_costs_one_question_however_much_it_claims() {
    let world = TestGateway::start().await;
    let tenant = rate_limited_tenant(&world).await;
    let service = &world.service;
    let held = service.acquire_locks(&tenant, &context(), set_request(0, CLAIMS)).await.unwrap();
    let other = || acquire("other", "q", Mode::Write);
    let token = service.acquire_lock(&tenant, &context(), other()).await.unwrap().fencing_token;
    let asked = world.count_queries(is_about_locks);
    let extended = service.acquire_locks(&tenant, &context(), set_request(0, CLAIMS)).await.unwrap();
    assert_eq!(extended.fencing_token, held.fencing_token, "it only extends, and is let through");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    // The first request contains one path that is not held, the second only such paths: each is rejected after one
    // query.
    for (number, refused) in [set_request(1, CLAIMS), set_request(1_000, CLAIMS)].into_iter().enumerate() {
        assert_eq!(code(service.acquire_locks(&tenant, &context(), refused).await), Code::RateLimited);
        assert_eq!(asked.load(Ordering::SeqCst), 2 + number as u64);
    }
    let mut other_mode = set_request(0, CLAIMS);
    other_mode.resources[7].mode = Mode::Read;
    assert_eq!(code(service.acquire_locks(&tenant, &context(), other_mode).await), Code::RateLimited);
    let mut by_token = other();
    by_token.terms.fencing_token = token;
    let asked_before = asked.load(Ordering::SeqCst);
    assert!(service.acquire_lock(&tenant, &context(), by_token).await.unwrap().success);
    assert_eq!(asked.load(Ordering::SeqCst), asked_before, "the token says that it extends");
}

#[tokio::test]
async fn acquires_far_beyond_the_rate_cost_no_more_than_a_hundred_questions_a_second() {
    let world = TestGateway::start().await;
    let tenant = rate_limited_tenant(&world).await;
    for number in 0..2 {
        world.service.acquire_locks(&tenant, &context(), set_request(number, 1)).await.unwrap();
    }
    let asked = world.count_queries(is_about_locks);
    let began = Instant::now();
    let mut refused = 0;
    for number in 0..1_000 {
        // The rate occasionally admits one.
        refused +=
            u64::from(world.service.acquire_locks(&tenant, &context(), set_request(10 + number, 1)).await.is_err());
    }
    let allowed = 100 + began.elapsed().as_millis() as u64 / 10 + 1;
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= allowed.min(refused), "{asked} questions for {refused} refusals, {allowed} allowed");
    assert!(asked >= 100, "what may be an extension is looked at: {asked}");
}

fn permits_request(request_id: &str) -> AcquirePermits {
    AcquirePermits {
        thing: ThingName { namespace: "demo".into(), name: "builds".into() },
        owner: OwnerFields::process("p"),
        request_id: request_id.into(),
        weight: None,
        permits: Some(10),
        priority: 0,
        ttl_ms: Some(60_000),
        transition_ms: 0,
        wait_ms: 0,
        poll_ms: None,
        metadata: Metadata::new(),
        fencing_token: None,
    }
}

fn arrival(process_id: &str) -> ArriveAtBarrier {
    ArriveAtBarrier {
        thing: ThingName { namespace: "demo".into(), name: "start".into() },
        owner: OwnerFields::process(process_id),
        generation: None,
        parties: Some(3),
        double: None,
        ttl_ms: Some(60_000),
        wait_ms: 0,
        metadata: Metadata::new(),
    }
}

#[tokio::test]
async fn what_only_extends_permits_or_an_arrival_goes_on_beyond_the_rate() {
    let world = TestGateway::start().await;
    let tenant = rate_limited_tenant(&world).await;
    let service = &world.service;
    let held = service.acquire_permits(&tenant, &context(), permits_request("r")).await.unwrap();
    let arrived = service.arrive_at_barrier(&tenant, &context(), arrival("p")).await.unwrap();
    for _ in 0..5 {
        let extended = service.acquire_permits(&tenant, &context(), permits_request("r")).await.unwrap();
        assert!(extended.success && extended.fencing_token == held.fencing_token);
        let again = service.arrive_at_barrier(&tenant, &context(), arrival("p")).await.unwrap();
        assert_eq!((again.generation, again.barrier.arrived), (arrived.generation, 1));
    }
    assert_eq!(code(service.acquire_permits(&tenant, &context(), permits_request("s")).await), Code::RateLimited);
    assert_eq!(code(service.arrive_at_barrier(&tenant, &context(), arrival("q")).await), Code::RateLimited);
}
