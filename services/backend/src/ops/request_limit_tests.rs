//! Limits of what one request says: whoever exceeds one is refused, and the same request of another account is served.
//! Accounts share nothing that these limits are about.

use holdfast_api::*;
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Durability, Limits, Metadata, Mode};

use super::call_limits_tests::limited_tenant;
use super::core_node::{TestGateway, context};
use super::tests::{acquire, demo_tenant};
use crate::*;

/// A request that says as much as the default limits allow.
#[derive(Debug)]
enum Request {
    /// Creates a namespace with a description of this many bytes.
    Describe(usize),
    /// Acquires a lock that nobody holds.
    Acquire(Terms),
    /// Creates a session with this time to live in milliseconds.
    Open(u64),
}

/// Sends a request about a thing of this name; a lock is granted.
async fn send(world: &TestGateway, tenant: &AuthContext, name: &str, request: &Request) -> ApiResult<()> {
    let service = &world.service;
    match request {
        Request::Describe(bytes) => {
            let (description, durability) = (Some("d".repeat(*bytes)), Durability::Full);
            let request = CreateNamespace { name: name.into(), description, durability };
            service.create_namespace(tenant, &context(), request).await.map(drop)
        }
        Request::Acquire(terms) => {
            let request = AcquireLock { terms: terms.clone(), ..acquire(name, "p", Mode::Write) };
            assert!(service.acquire_lock(tenant, &context(), request).await?.success, "{terms:?}");
            Ok(())
        }
        Request::Open(ttl_ms) => {
            let (namespace, process_id, metadata) = ("demo".to_owned(), "p".to_owned(), Metadata::default());
            let request = CreateSession { namespace, process_id, ttl_ms: *ttl_ms, metadata };
            service.create_session(tenant, &context(), request).await.map(drop)
        }
    }
}

fn requests() -> [(&'static Limit, Request); 7] {
    let terms = |ttl_ms| Terms { ttl_ms: Some(ttl_ms), ..Terms::default() };
    let usual = |limit: &Limit| limit.default_value();
    [
        (&limit::DESCRIPTION_BYTES, Request::Describe(usual(&limit::DESCRIPTION_BYTES) as usize)),
        (&limit::MAX_TTL, Request::Acquire(terms(usual(&limit::MAX_TTL)))),
        (&limit::MIN_TTL, Request::Acquire(terms(usual(&limit::MIN_TTL)))),
        (&limit::TRANSITION, Request::Acquire(Terms { transition_ms: usual(&limit::TRANSITION), ..terms(60_000) })),
        (&limit::WAIT, Request::Acquire(Terms { wait_ms: usual(&limit::WAIT), ..terms(60_000) })),
        (&limit::MAX_SESSION_TTL, Request::Open(usual(&limit::MAX_SESSION_TTL))),
        (&limit::MIN_SESSION_TTL, Request::Open(usual(&limit::MIN_SESSION_TTL))),
    ]
}

#[tokio::test]
async fn a_request_that_exceeds_a_limit_of_its_account_is_served_for_another_account() {
    let world = TestGateway::start().await;
    let usual = Limits::default();
    let narrow = LimitsPatch {
        max_description_bytes: Some(usual.max_description_bytes - 1),
        max_ttl_ms: Some(usual.max_ttl_ms - 1),
        min_ttl_ms: Some(usual.min_ttl_ms + 1),
        max_transition_ms: Some(usual.max_transition_ms - 1),
        max_wait_ms: Some(usual.max_wait_ms - 1),
        max_session_ttl_ms: Some(usual.max_session_ttl_ms - 1),
        min_session_ttl_ms: Some(usual.min_session_ttl_ms + 1),
        ..LimitsPatch::default()
    };
    let (small, other) = (limited_tenant(&world, narrow).await, demo_tenant(&world).await);
    for (limit, request) in requests() {
        let refused = send(&world, &small, limit.name, &request).await.unwrap_err();
        assert_eq!((refused.code.name(), refused.limit()), (limit.code, Some(limit)), "{request:?}: {refused}");
        send(&world, &other, limit.name, &request).await.unwrap();
    }
}

/// A request for locks: so many, at paths of so many segments, with so many pairs of metadata of so many bytes each.
fn lock_set(claims: u64, segments: u64, pairs: u64, bytes: u64) -> AcquireLocks {
    let path =
        |claim: u64| (0..segments).map(|segment| format!("{claims}-{segments}-{pairs}-{claim}-{segment}")).collect();
    let key = |pair: u64| format!("{pair:0>width$}", width = bytes as usize);
    let metadata = (0..pairs).map(|pair| (key(pair), String::new())).collect();
    AcquireLocks {
        namespace: "demo".into(),
        resources: (0..claims).map(|claim| Resource { path: path(claim), mode: Mode::Write }).collect(),
        owner: OwnerFields::process("p"),
        request_id: None,
        terms: Terms { ttl_ms: Some(60_000), metadata, ..Terms::default() },
    }
}

#[tokio::test]
async fn a_request_that_says_too_much_is_refused_and_that_of_another_account_is_served() {
    let world = TestGateway::start().await;
    let patch = LimitsPatch { max_description_bytes: Some(1), ..LimitsPatch::default() };
    let (greedy, other) = (limited_tenant(&world, patch).await, demo_tenant(&world).await);
    type Build = fn(u64) -> AcquireLocks;
    let cases: [(&Limit, Build); 4] = [
        (&limit::CLAIMS, |claims| lock_set(claims, 1, 0, 0)),
        (&limit::PATH_DEPTH, |segments| lock_set(1, segments, 0, 0)),
        (&limit::METADATA_PAIRS, |pairs| lock_set(1, 1, pairs, 2)),
        (&limit::METADATA_BYTES, |bytes| lock_set(1, 1, 1, bytes)),
    ];
    for (limit, request) in cases {
        let max = limit.default_value();
        let refused = world.service.acquire_locks(&greedy, &context(), request(max + 1)).await.unwrap_err();
        assert_eq!((refused.code.name(), refused.limit()), (limit.code, Some(limit)), "{refused}");
        assert!(refused.ids.contains(&("max", max.to_string())), "{refused:?}");
        let served = world.service.acquire_locks(&other, &context(), request(max)).await.unwrap();
        assert!(served.success, "{}: {served:?}", limit.name);
    }
}
