//! The operations against the real state machines behind a node on a real socket.

use std::time::Duration;

use holdfast_api::*;
use holdfast_types::{AccountStatus, Durability, LockState, Mode, Phase, Reason};
use time::OffsetDateTime;

use super::core_node::{TestGateway, WALL_MS, context};
use crate::*;

pub(super) fn code<T>(result: ApiResult<T>) -> Code {
    result.map(|_| ()).expect_err("a refusal").code
}

pub(super) fn acquire(name: &str, process_id: &str, mode: Mode) -> AcquireLock {
    AcquireLock {
        namespace: "demo".into(),
        lock: name.into(),
        owner: OwnerFields::process(process_id),
        mode,
        terms: Terms { ttl_ms: Some(60_000), ..Terms::default() },
    }
}

pub(super) fn release(name: &str, process_id: &str, fencing_token: Option<u64>) -> ReleaseLock {
    ReleaseLock { namespace: "demo".into(), lock: name.into(), owner: OwnerFields::process(process_id), fencing_token }
}

fn acquire_set(process_id: &str) -> AcquireLocks {
    AcquireLocks {
        namespace: "demo".into(),
        resources: vec![Resource { path: vec!["l".into()], mode: Mode::Write }],
        owner: OwnerFields::process(process_id),
        request_id: None,
        terms: Terms { ttl_ms: Some(1_000), ..Terms::default() },
    }
}

fn release_all(process_id: &str) -> ReleaseLocks {
    ReleaseLocks { namespace: "demo".into(), owner: OwnerFields::process(process_id), paths: None, all: true }
}

fn reset() -> ResetNamespace {
    ResetNamespace { namespace: "demo".into(), live_owners: Vec::new(), before_revision: None }
}

/// Returns the same request with other terms.
fn with_terms(request: AcquireLock, change: impl FnOnce(&mut Terms)) -> AcquireLock {
    let mut changed = request;
    change(&mut changed.terms);
    changed
}

fn scoped(scopes: &[&str]) -> CreateApiKey {
    CreateApiKey { scopes: Some(scopes.iter().map(|scope| (*scope).to_owned()).collect()), ..CreateApiKey::default() }
}

/// Starts a gateway, and makes an account with the namespace `demo` there.
pub(super) async fn demo_world() -> (TestGateway, AuthContext) {
    let world = TestGateway::start().await;
    let tenant = demo_tenant(&world).await;
    (world, tenant)
}

pub(super) async fn demo_tenant(world: &TestGateway) -> AuthContext {
    let tenant = world.tenant("demo@example.com").await;
    make_namespace(world, &tenant, "demo").await.unwrap();
    tenant
}

pub(super) async fn make_namespace(world: &TestGateway, caller: &AuthContext, name: &str) -> ApiResult<NamespaceView> {
    let request = CreateNamespace { name: name.into(), description: None, durability: Durability::Full };
    world.service.create_namespace(caller, &context(), request).await
}

#[tokio::test]
async fn a_lock_is_taken_shown_extended_and_released() {
    let (world, tenant) = demo_world().await;
    let service = &world.service;
    let taken = service.acquire_lock(&tenant, &context(), acquire("a/b", "p1", Mode::Write)).await.unwrap();
    assert!(taken.success);
    let holder = taken.lock.write_lock_holder.clone().unwrap();
    assert_eq!(taken.fencing_token, Some(holder.fencing_token));
    assert_eq!((holder.process_id.as_str(), holder.mode, holder.phase), ("p1", Mode::Write, Phase::Held));
    assert_eq!((holder.remaining_ms, holder.locked_at), (Some(60_000), Timestamp(WALL_MS)));
    assert_eq!((taken.lock.name.as_deref(), taken.lock.path.len()), (Some("a/b"), 1));

    world.advance_clock(1_000);
    let seen = service.get_lock(&tenant, &context(), "demo", &"a/b".into()).await.unwrap();
    assert_eq!(seen.write_lock_holder.unwrap().remaining_ms, Some(59_000));

    let refused = service.acquire_lock(&tenant, &context(), acquire("a/b", "p2", Mode::Read)).await.unwrap();
    assert!(!refused.success);
    let reason = refused.reason.unwrap();
    assert_eq!((reason.code, reason.blockers[0].holder.process_id.as_str()), (Reason::Held, "p1"));

    let again = with_terms(acquire("a/b", "p1", Mode::Write), |terms| terms.fencing_token = taken.fencing_token);
    let extended = service.acquire_lock(&tenant, &context(), again).await.unwrap();
    assert_eq!(extended.fencing_token, taken.fencing_token);
    let token = taken.fencing_token.unwrap();
    assert!(service.check_lock(&tenant, &context(), "demo", &"a/b".into(), token).await.unwrap().current);

    let strange = service.release_lock(&tenant, &context(), release("a/b", "p2", None)).await.unwrap();
    assert!(!strange.released);
    let released = service.release_lock(&tenant, &context(), release("a/b", "p1", Some(token))).await.unwrap();
    assert!(released.released);
    assert_eq!(released.lock.state, LockState::Unlocked);
    assert!(!service.check_lock(&tenant, &context(), "demo", &"a/b".into(), token).await.unwrap().current);
}

#[tokio::test]
async fn a_lock_ends_with_its_instant_and_shows_what_a_dlocks_client_asked() {
    let (world, tenant) = demo_world().await;
    let asked = i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos()).unwrap() + 30_000_000_123;
    let terms = Terms { dlocks_expires_at_ns: Some(asked), ..Terms::default() };
    let request = AcquireLock { terms, ..acquire("l", "p1", Mode::Read) };
    let taken = world.service.acquire_lock(&tenant, &context(), request).await.unwrap();
    assert_eq!(taken.lock.read_lock_holders[0].requested_expires_at_ns, Some(asked));
    world.advance_clock(30_001);
    let seen = world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
    assert_eq!((seen.state, seen.holders_total), (LockState::Unlocked, 0));
}

#[tokio::test]
async fn held_locks_are_listed_page_by_page() {
    let (world, tenant) = demo_world().await;
    for name in ["c", "a", "b"] {
        world.service.acquire_lock(&tenant, &context(), acquire(name, "p", Mode::Read)).await.unwrap();
    }
    let page = |page_token| ListLocks {
        namespace: "demo".into(),
        prefix: Vec::new(),
        page: PageRequest { page_size: Some(2), page_token },
    };
    let names = |page: &Page<Lock>| page.items.iter().filter_map(|lock| lock.name.clone()).collect::<Vec<_>>();
    let first = world.service.list_locks(&tenant, &context(), page(None)).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    let second = world.service.list_locks(&tenant, &context(), page(first.next_page_token.clone())).await.unwrap();
    assert_eq!((names(&second), second.next_page_token), (vec!["c".to_owned()], None));

    let narrowed = ListLocks { prefix: vec!["a".into()], ..page(first.next_page_token) };
    assert_eq!(code(world.service.list_locks(&tenant, &context(), narrowed).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_deleted_lock_is_free_for_others() {
    let (world, tenant) = demo_world().await;
    world.service.acquire_lock(&tenant, &context(), acquire("l", "p1", Mode::Write)).await.unwrap();
    world.service.delete_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
    world.service.delete_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
    let taken = world.service.acquire_lock(&tenant, &context(), acquire("l", "p2", Mode::Write)).await.unwrap();
    assert!(taken.success);
}

#[tokio::test]
async fn another_tenants_namespace_looks_exactly_like_an_unknown_one() {
    let world = TestGateway::start().await;
    demo_tenant(&world).await;
    let other = world.tenant("other@example.com").await;
    let theirs = world.service.get_lock(&other, &context(), "demo", &"l".into()).await.unwrap_err();
    let unknown = world.service.get_lock(&other, &context(), "nowhere", &"l".into()).await.unwrap_err();
    assert_eq!((theirs.code, theirs.detail.as_str()), (Code::NamespaceNotFound, "namespace not found"));
    assert_eq!((unknown.code, &unknown.detail), (theirs.code, &theirs.detail));
    assert_eq!(unknown.ids.len(), theirs.ids.len());
    let theirs = world.service.get_namespace(&other, &context(), "demo").await.unwrap_err();
    assert_eq!((theirs.code, theirs.detail.as_str()), (Code::NamespaceNotFound, "namespace not found"));
}

#[tokio::test]
async fn each_call_needs_its_scope() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let all = world.caller(&account, CreateApiKey::default()).await;
    make_namespace(&world, &all, "demo").await.unwrap();
    let service = &world.service;
    let reader = world.caller(&account, scoped(&["locks:read"])).await;
    let writer = world.caller(&account, scoped(&["locks:write"])).await;
    service.get_lock(&reader, &context(), "demo", &"l".into()).await.unwrap();
    service.list_namespaces(&reader, &context(), PageRequest::default()).await.unwrap();
    service.acquire_lock(&writer, &context(), acquire("l", "p", Mode::Write)).await.unwrap();
    let denied = [
        code(service.acquire_lock(&reader, &context(), acquire("l", "p", Mode::Write)).await),
        code(service.release_lock(&reader, &context(), release("l", "p", None)).await),
        code(service.get_lock(&writer, &context(), "demo", &"l".into()).await),
        code(service.delete_lock(&writer, &context(), "demo", &"l".into()).await),
        code(service.reset_namespace(&writer, &context(), reset()).await),
        code(service.acquire_locks(&reader, &context(), acquire_set("p")).await),
        code(service.release_locks(&reader, &context(), release_all("p")).await),
        code(make_namespace(&world, &writer, "other").await),
        code(service.list_namespaces(&writer, &context(), PageRequest::default()).await),
        code(service.list_api_keys(&writer, &context(), None).await),
        code(service.get_account(&all, &context(), &account).await),
        code(service.list_api_keys(&all, &context(), Some(&account)).await),
        code(service.get_lock(&world.operator().await, &context(), "demo", &"l".into()).await),
        code(service.list_api_keys(&world.operator().await, &context(), None).await),
    ];
    assert!(denied.iter().all(|code| *code == Code::PermissionDenied), "{denied:?}");
}

#[tokio::test]
async fn a_key_gives_no_more_than_it_has() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let narrow = CreateApiKey {
        namespaces: Some(vec!["demo".into(), "more".into()]),
        expires_at: Some(OffsetDateTime::now_utc() + Duration::from_secs(3_600)),
        ..scoped(&["account:admin", "locks:read"])
    };
    let maker = world.caller(&account, narrow).await;
    let service = &world.service;
    let same = service.create_api_key(&maker, &context(), None, CreateApiKey::default()).await.unwrap();
    assert_eq!(same.key.scopes, ["locks:read", "account:admin"]);
    assert_eq!(same.key.namespaces, Some(vec!["demo".to_owned(), "more".to_owned()]));
    assert!(same.key.expires_at.is_some());
    let later = Some(OffsetDateTime::now_utc() + Duration::from_secs(7_200));
    let wider = [
        scoped(&["locks:write"]),
        CreateApiKey { namespaces: Some(vec!["other".into()]), ..CreateApiKey::default() },
        CreateApiKey { expires_at: later, ..CreateApiKey::default() },
    ];
    for request in wider {
        assert_eq!(code(service.create_api_key(&maker, &context(), None, request).await), Code::PermissionDenied);
    }
    for request in [scoped(&["locks:everything"]), scoped(&[])] {
        assert_eq!(code(service.create_api_key(&maker, &context(), None, request).await), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_key_with_a_list_of_namespaces_is_for_those_only() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let all = world.caller(&account, CreateApiKey::default()).await;
    for name in ["a", "b", "c", "d"] {
        make_namespace(&world, &all, name).await.unwrap();
    }
    let listed = CreateApiKey {
        namespaces: Some(["d", "b", "gone", "a"].map(str::to_owned).to_vec()),
        ..CreateApiKey::default()
    };
    let caller = world.caller(&account, listed).await;
    let service = &world.service;
    service.get_lock(&caller, &context(), "b", &"l".into()).await.unwrap();
    assert_eq!(code(service.get_lock(&caller, &context(), "c", &"l".into()).await), Code::PermissionDenied);
    assert_eq!(code(service.get_namespace(&caller, &context(), "c").await), Code::PermissionDenied);
    assert_eq!(code(make_namespace(&world, &caller, "e").await), Code::PermissionDenied);
    let mut names = Vec::new();
    let mut page = PageRequest { page_size: Some(2), page_token: None };
    loop {
        let found = service.list_namespaces(&caller, &context(), page.clone()).await.unwrap();
        names.extend(found.items.into_iter().map(|namespace| namespace.name));
        page.page_token = found.next_page_token;
        if page.page_token.is_none() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "d"]);
}

#[tokio::test]
async fn credentials_that_are_not_current_are_refused() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let service = &world.service;
    let operator = world.operator().await;
    let made = service.create_api_key(&operator, &context(), Some(&account), CreateApiKey::default()).await.unwrap();
    service.authenticate(Some(&made.api_key), &context()).await.unwrap();
    let wrong = format!("{}x", &made.api_key[..made.api_key.len() - 1]);
    let unknown = made.api_key.replacen(&made.key.key_id, "aaaaaaaaaaaaaaaa", 1);
    let other_operator = holdfast_auth::OperatorToken::generate().unwrap();
    let refused = [None, Some(""), Some("x"), Some(wrong.as_str()), Some(&unknown)];
    for bearer in refused.into_iter().chain([Some(other_operator.reveal().expose())]) {
        assert_eq!(code(service.authenticate(bearer, &context()).await), Code::Unauthenticated, "{bearer:?}");
    }
    assert!(service.is_operator_token(Some(world.operator_token.reveal().expose())));
    assert!(!service.is_operator_token(Some(other_operator.reveal().expose())));

    service.delete_api_key(&operator, &context(), Some(&account), &made.key.key_id).await.unwrap();
    assert_eq!(code(service.authenticate(Some(&made.api_key), &context()).await), Code::Unauthenticated);
    let again = service.delete_api_key(&operator, &context(), Some(&account), &made.key.key_id).await;
    assert_eq!(code(again), Code::ApiKeyNotFound);
}

/// Polls the condition for longer than a gateway may take to learn of a change.
pub(super) async fn wait_until(holds: impl AsyncFn() -> bool) {
    let looking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looking).await.expect("it comes true in good time");
}

#[tokio::test]
async fn another_gateway_learns_of_a_revoked_key_and_a_suspended_account() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let other = world.another_gateway();
    let operator = world.operator().await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let made = world.service.create_api_key(&operator, &context(), Some(&account), CreateApiKey::default()).await;
        keys.push(made.unwrap());
        other.authenticate(Some(&keys.last().unwrap().api_key), &context()).await.unwrap();
    }
    world.service.delete_api_key(&operator, &context(), Some(&account), &keys[0].key.key_id).await.unwrap();
    wait_until(async || other.authenticate(Some(&keys[0].api_key), &context()).await.is_err()).await;
    let suspend = UpdateAccount { status: Some(AccountStatus::Suspended), ..UpdateAccount::default() };
    let shown = world.service.update_account(&operator, &context(), &account, suspend).await.unwrap();
    assert_eq!(shown.status, AccountStatus::Suspended);
    assert_eq!(code(world.service.authenticate(Some(&keys[1].api_key), &context()).await), Code::PermissionDenied);
    wait_until(async || other.authenticate(Some(&keys[1].api_key), &context()).await.is_err()).await;
    assert_eq!(code(world.service.authenticate_trusted(&account, &context()).await), Code::PermissionDenied);
}

#[tokio::test]
async fn creations_with_the_same_idempotency_key_answer_as_the_first_did() {
    let world = TestGateway::start().await;
    let operator = world.operator().await;
    let service = &world.service;
    let keyed = |key: &str| context().with_idempotency_key(Some(key.to_owned()));
    let request =
        CreateAccount { email: "A@example.com ".into(), full_name: "A".into(), max_number_of_namespaces: Some(3) };
    let first = service.create_account(&operator, &keyed("k"), request.clone()).await.unwrap();
    assert_eq!((first.email.as_str(), first.max_number_of_namespaces), ("a@example.com", 3));
    assert_eq!(service.create_account(&operator, &keyed("k"), request.clone()).await.unwrap(), first);
    assert_eq!(code(service.create_account(&operator, &keyed("other"), request.clone()).await), Code::AlreadyExists);
    assert_eq!(code(service.create_account(&operator, &context(), request).await), Code::AlreadyExists);

    let key = |name: &'static str| {
        let (operator, first, context) = (&operator, &first, keyed(name));
        async move { service.create_api_key(operator, &context, Some(&first.id), scoped(&["locks:read"])).await }
    };
    let (one, two, other) = (key("k").await.unwrap(), key("k").await.unwrap(), key("l").await.unwrap());
    assert_eq!((&one.api_key, &one.key), (&two.api_key, &two.key));
    assert_ne!(one.api_key, other.api_key);

    let tenant = world.caller(&first.id, CreateApiKey::default()).await;
    let (description, durability) = (Some("d".into()), Durability::Full);
    let request = CreateNamespace { name: "demo".into(), description, durability };
    let made = service.create_namespace(&tenant, &keyed("k"), request.clone()).await.unwrap();
    assert_eq!(service.create_namespace(&tenant, &keyed("k"), request.clone()).await.unwrap(), made);
    assert_eq!(code(service.create_namespace(&tenant, &context(), request).await), Code::AlreadyExists);
}

async fn first_id(world: &TestGateway) -> String {
    let page = world.service.list_accounts(&world.operator().await, &context(), PageRequest::default()).await.unwrap();
    page.items[0].id.clone()
}

#[tokio::test]
async fn limits_are_changed_one_by_one_and_count_at_once() {
    let (world, tenant) = demo_world().await;
    let operator = world.operator().await;
    let account = first_id(&world).await;
    let service = &world.service;
    let patch = LimitsPatch { max_ttl_ms: Some(1_000), max_requests_per_second: Some(1), ..LimitsPatch::default() };
    let update = UpdateAccount { limits: Some(patch), ..UpdateAccount::default() };
    let shown = service.update_account(&operator, &context(), &account, update).await.unwrap();
    assert_eq!((shown.limits.max_ttl_ms, shown.limits.min_ttl_ms), (1_000, 100));
    let key = service.create_api_key(&operator, &context(), Some(&account), CreateApiKey::default()).await.unwrap();
    let fresh = service.authenticate(Some(&key.api_key), &context()).await.unwrap();
    let long = service.acquire_lock(&fresh, &context(), acquire("l", "p", Mode::Write)).await.unwrap_err();
    assert_eq!((long.code, long.ids[0].1.as_str()), (Code::InvalidArgument, "ttl_ms"));

    let short = || with_terms(acquire("l", "p", Mode::Write), |terms| terms.ttl_ms = Some(1_000));
    let first = service.acquire_lock(&fresh, &context(), short()).await.unwrap();
    service.acquire_lock(&fresh, &context(), short()).await.unwrap();
    let other = || AcquireLock { lock: "m".into(), ..short() };
    let limited = service.acquire_lock(&fresh, &context(), other()).await.unwrap_err();
    assert_eq!((limited.code, limited.retry_after_seconds()), (Code::RateLimited, Some(1)));
    assert_eq!(code(service.acquire_locks(&fresh, &context(), acquire_set("q")).await), Code::RateLimited);
    assert_eq!(code(service.reset_namespace(&fresh, &context(), reset()).await), Code::RateLimited);
    // Extensions and releases still pass, with or without the token.
    let again = service.acquire_lock(&fresh, &context(), short()).await.unwrap();
    assert_eq!(again.fencing_token, first.fencing_token);
    let extend = with_terms(short(), |terms| terms.fencing_token = first.fencing_token);
    assert!(service.acquire_lock(&fresh, &context(), extend).await.unwrap().success);
    let mut extend = acquire_set("p");
    extend.terms.fencing_token = first.fencing_token;
    assert!(service.acquire_locks(&fresh, &context(), extend).await.unwrap().success);
    assert!(service.release_lock(&fresh, &context(), release("l", "p", None)).await.unwrap().released);
    assert!(!service.release_locks(&fresh, &context(), release_all("p")).await.unwrap().released);
    drop(tenant);

    let bad = LimitsPatch { min_ttl_ms: Some(5_000), ..LimitsPatch::default() };
    let update = UpdateAccount { limits: Some(bad), ..UpdateAccount::default() };
    assert_eq!(code(service.update_account(&operator, &context(), &account, update).await), Code::InvalidArgument);
}

#[tokio::test]
async fn the_quota_of_namespaces_is_told_with_its_limit() {
    let world = TestGateway::start().await;
    let operator = world.operator().await;
    let request =
        CreateAccount { email: "a@example.com".into(), full_name: "A".into(), max_number_of_namespaces: Some(1) };
    let account = world.service.create_account(&operator, &context(), request).await.unwrap();
    let tenant = world.caller(&account.id, CreateApiKey::default()).await;
    make_namespace(&world, &tenant, "one").await.unwrap();
    let error = make_namespace(&world, &tenant, "two").await.unwrap_err();
    assert_eq!(error.code, Code::QuotaExceeded);
    assert!(error.ids.contains(&("max", "1".to_owned())), "{error:?}");
}

#[tokio::test]
async fn deleting_an_account_ends_its_keys_and_namespaces() {
    let world = TestGateway::start().await;
    let account = world.account("a@example.com").await;
    let operator = world.operator().await;
    let key = world.service.create_api_key(&operator, &context(), Some(&account), CreateApiKey::default()).await;
    let key = key.unwrap();
    let tenant = world.service.authenticate(Some(&key.api_key), &context()).await.unwrap();
    make_namespace(&world, &tenant, "demo").await.unwrap();
    world.service.delete_account(&operator, &context(), &account).await.unwrap();
    assert_eq!(code(world.service.authenticate(Some(&key.api_key), &context()).await), Code::Unauthenticated);
    assert_eq!(code(world.service.get_account(&operator, &context(), &account).await), Code::AccountNotFound);
    assert_eq!(code(world.service.delete_account(&operator, &context(), &account).await), Code::AccountNotFound);
    assert_eq!(code(world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await), Code::NamespaceNotFound);
}

#[tokio::test]
async fn a_gateway_is_ready_once_it_follows_the_accounts_shard() {
    let world = TestGateway::start().await;
    wait_until(async || world.service.ready().is_ok()).await;
    assert!(!world.node.connections.lock().is_empty());
    world.service.shutdown().await;
    let error = world.service.list_accounts(&world.operator().await, &context(), PageRequest::default()).await;
    assert_eq!(code(error), Code::Unavailable);
}

#[test]
fn instants_are_shown_with_milliseconds_and_read_with_any_fraction() {
    assert_eq!(Timestamp(1_700_000_000_007).to_string(), "2023-11-14T22:13:20.007Z");
    assert_eq!(Timestamp(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    let read = parse_instant("2023-11-15T00:13:20.0071234+02:00").unwrap();
    assert_eq!(read.unix_timestamp_nanos(), 1_700_000_000_007_123_400);
    assert!(parse_instant("2023-11-14 22:13").is_none());
}

#[test]
fn views_serialize_as_in_the_contract() {
    let lock = Lock {
        namespace: "demo".into(),
        name: Some("l".into()),
        path: vec!["l".into()],
        state: LockState::Unlocked,
        locked_at: None,
        write_lock_holder: None,
        read_lock_holders: Vec::new(),
        holders_total: 0,
        waiting: 0,
        revision: 9,
    };
    let granted = AcquireAnswer { success: true, fencing_token: Some(57), reason: None, signed_grant: None, lock };
    let expected = serde_json::json!({
        "success": true,
        "fencing_token": 57,
        "lock": {
            "namespace": "demo", "name": "l", "path": ["l"], "state": "UNLOCKED", "locked_at": null,
            "write_lock_holder": null, "read_lock_holders": [], "holders_total": 0, "waiting": 0, "revision": 9,
        },
    });
    assert_eq!(serde_json::to_value(&granted).unwrap(), expected);
}
