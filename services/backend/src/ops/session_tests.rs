//! Connections of sessions, without a frontend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_api::session_message::{
    AcquirePermits, Arrive, ClientMessage, ClientPayload, HeldPermits, InvalidRequest, Lock, LockInfo, Open, Pending,
    RefusalCause, Release, ServerMessage,
};
use holdfast_api::*;
use holdfast_types::{Kind, LocksCommand, Metadata, Mode, Path, ReportedHold, ReportedPermits, Wanted};
use tokio::time::timeout;

use super::call_limits_tests::limited_tenant;
use super::core_node::{TestGateway, context};
use super::tests::demo_world;
use crate::session::{CloseReason, ConnectionOptions, Outbound, SessionReceiver, SessionSender, test_lock};
use crate::*;

pub(super) fn lock_named(request_id: &str) -> Lock {
    test_lock::lock(request_id, &[request_id], Mode::Write)
}

/// A client and its connection.
pub(super) struct SessionClient {
    sender: SessionSender,
    receiver: SessionReceiver,
    seq: u64,
}

impl SessionClient {
    pub(super) fn connect(world: &TestGateway, tenant: &AuthContext) -> Self {
        Self::connect_to(&world.service, tenant)
    }

    pub(super) fn connect_to(service: &Service, tenant: &AuthContext) -> Self {
        let (sender, receiver) = service.connect(tenant.clone(), ConnectionOptions::default());
        Self { sender, receiver, seq: 0 }
    }

    /// Connects, and opens a session. Returns its id too.
    pub(super) async fn opened(world: &TestGateway, tenant: &AuthContext) -> (Self, String) {
        let mut client = Self::connect(world, tenant);
        let (session_id, _) = client.open(None).await;
        (client, session_id)
    }

    pub(super) async fn send(&mut self, payload: ClientPayload) {
        self.seq += 1;
        self.sender.send(ClientMessage { seq: self.seq, payload }).await.unwrap();
    }

    pub(super) async fn receive(&mut self) -> ServerMessage {
        match self.receiver.next().await {
            Outbound::Message(message) => message,
            Outbound::End(reason) => panic!("the connection ended: {reason:?}"),
        }
    }

    /// Returns why the connection ended, after no other message than an error.
    pub(super) async fn ended(&mut self) -> CloseReason {
        match self.receive().await {
            ServerMessage::Error { .. } => {}
            other => panic!("no end: {other:?}"),
        }
        match self.receiver.next().await {
            Outbound::End(reason) => reason,
            Outbound::Message(other) => panic!("no end: {other:?}"),
        }
    }

    /// Opens or resumes a session. Returns its id, and whether it was resumed.
    pub(super) async fn open(&mut self, session_id: Option<String>) -> (String, bool) {
        let (namespace, process_id, metadata) = ("demo".to_owned(), "p".to_owned(), Metadata::default());
        let (ttl_ms, keeps_table, transition_ms) = (30_000, true, 0);
        let open = Open { namespace, session_id, process_id, ttl_ms, metadata, keeps_table, transition_ms };
        self.send(ClientPayload::Open(open)).await;
        match self.receive().await {
            ServerMessage::Opened { session_id, resumed, .. } => (session_id, resumed),
            other => panic!("not opened: {other:?}"),
        }
    }

    pub(super) async fn lock(&mut self, request_id: &str) {
        self.send(ClientPayload::Lock(lock_named(request_id))).await;
    }

    /// Acquires a permit. Returns the token, if no other message comes first.
    async fn acquire_permit(&mut self, request_id: &str) -> u64 {
        let acquire = AcquirePermits {
            request_id: request_id.to_owned(),
            path: vec!["s".to_owned()],
            wanted: Wanted::Permits { weight: 1, permits: Some(3) },
            holder: None,
            priority: 0,
            transition_ms: 0,
            only_try: false,
        };
        self.send(ClientPayload::AcquirePermits(acquire)).await;
        match self.receive().await {
            ServerMessage::Acquired { fencing_token, .. } => fencing_token,
            other => panic!("not acquired: {other:?}"),
        }
    }

    /// Lists holds of permits after a resume.
    async fn report_permits(&mut self, permits: &[HeldPermits]) {
        self.send(ClientPayload::LockInfo(LockInfo { permits: permits.to_vec(), ..LockInfo::default() })).await;
    }

    /// Checks that the next message refuses the request because of its content.
    async fn expect_refused(&mut self, request: &str) {
        match self.receive().await {
            ServerMessage::Refused { request_id, why: RefusalCause::Fault(error) } => {
                assert_eq!((error.code, request_id.as_str()), (Code::InvalidArgument, request));
            }
            other => panic!("{request} is not refused: {other:?}"),
        }
    }

    /// Checks that the next message is an error that leaves the outcome of the request unknown.
    pub(super) async fn expect_unknown(&mut self, request: &str) {
        match self.receive().await {
            ServerMessage::Error { error, request_id } => {
                assert_eq!((error.code, request_id.as_deref()), (Code::DeadlineExceeded, Some(request)));
            }
            other => panic!("{request} may be granted: {other:?}"),
        }
    }
}

#[tokio::test]
async fn sessions_of_an_account_that_may_hold_no_calls_open_and_resume() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_held_calls: Some(0), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let (opened, _) = SessionClient::connect(&world, &tenant).open(None).await;
    let resumed = SessionClient::connect(&world, &tenant).open(Some(opened.clone())).await;
    assert_eq!(resumed, (opened, true));
}

#[tokio::test]
async fn a_client_that_knows_its_session_is_told_how_it_ends() {
    let (world, tenant) = demo_world().await;
    let followed = world.count_session_subscriptions();
    let mut session_id = None;
    for opened in 1..=2 {
        let mut client = SessionClient::connect(&world, &tenant);
        session_id = Some(client.open(session_id).await.0);
        // What ends the session takes the same connection to the leader, behind the subscription.
        world.service.get_lock(&tenant, &context(), "demo", &"l".into()).await.unwrap();
        assert_eq!(followed.load(Ordering::SeqCst), opened);
    }
}

#[tokio::test]
async fn only_a_request_that_is_new_is_refused_when_its_command_is_not_executed() {
    let (world, tenant) = demo_world().await;
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.lock("known").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
    world.ignore_next_lock_command();
    client.lock("copied").await;
    client.expect_unknown("copied").await;
    client.lock("known").await;
    client.lock("new").await;
    client.expect_unknown("known").await;
    let refused = client.receive().await;
    assert!(matches!(&refused, ServerMessage::Refused { request_id, .. } if request_id == "new"), "{refused:?}");
}

fn invalid(request_id: &str) -> InvalidRequest {
    InvalidRequest { request_id: request_id.to_owned(), error: ApiError::invalid("member", "member: does not go with") }
}

#[tokio::test]
async fn a_request_that_contradicts_itself_is_refused_and_the_connection_goes_on() {
    let (world, tenant) = demo_world().await;
    let (mut client, session_id) = SessionClient::opened(&world, &tenant).await;
    client.lock("known").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
    client.send(ClientPayload::Invalid(invalid("new"))).await;
    client.expect_refused("new").await;
    client.send(ClientPayload::Invalid(invalid("known"))).await;
    let kept = client.receive().await;
    assert!(matches!(&kept, ServerMessage::Error { request_id: Some(id), .. } if id == "known"), "{kept:?}");
    let mut client = SessionClient::connect(&world, &tenant);
    client.open(Some(session_id)).await;
    let pending = vec![Pending::Invalid(invalid("listed"))];
    client.send(ClientPayload::LockInfo(LockInfo { pending, ..LockInfo::default() })).await;
    client.expect_refused("listed").await;
}

#[tokio::test]
async fn an_arrival_whose_place_another_request_of_its_owner_takes_is_refused() {
    let (world, tenant) = demo_world().await;
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    let arrive = |request_id: &str, holder: Option<&str>| {
        let (request_id, path, holder) = (request_id.to_owned(), vec!["b".to_owned()], holder.map(str::to_owned));
        ClientPayload::Arrive(Arrive { request_id, path, generation: None, parties: Some(2), double: None, holder })
    };
    client.send(arrive("first", None)).await;
    let arrived = client.receive().await;
    assert!(matches!(&arrived, ServerMessage::Arrived { request_id, .. } if request_id == "first"), "{arrived:?}");
    client.send(arrive("second", None)).await;
    client.expect_refused("first").await;
    let arrived = client.receive().await;
    assert!(matches!(&arrived, ServerMessage::Arrived { request_id, .. } if request_id == "second"), "{arrived:?}");
    client.send(arrive("other", Some("h"))).await;
    let tripped = client.receive().await;
    assert!(matches!(&tripped, ServerMessage::Tripped { request_id, .. } if request_id == "other"), "{tripped:?}");
}

#[tokio::test]
async fn requests_wait_in_order_until_the_table_of_their_namespace_is_complete() {
    let (world, tenant) = demo_world().await;
    let is_complete = Arc::new(AtomicBool::new(false));
    world.serve_as_table(&is_complete);
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    for name in ["z", "gone", "a"] {
        client.lock(name).await;
        let told = client.receive().await;
        let waits =
            matches!(&told, ServerMessage::Enqueued { request_id, queue_position: None, .. } if request_id == name);
        assert!(waits, "{told:?}");
    }
    client.send(ClientPayload::Release(Release { request_id: "gone".to_owned(), unheard: false })).await;
    let told = client.receive().await;
    assert!(matches!(&told, ServerMessage::Ready { request_id: Some(name) } if name == "gone"), "{told:?}");
    is_complete.store(true, Ordering::SeqCst);
    for name in ["z", "a"] {
        let told = client.receive().await;
        assert!(matches!(&told, ServerMessage::Acquired { request_id, .. } if request_id == name), "{told:?}");
    }
}

#[tokio::test]
async fn so_many_requests_of_a_session_wait_for_a_table_and_no_more() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_requests_per_session: Some(2), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    world.serve_as_table(&Arc::default());
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    for name in ["a", "b", "c"] {
        client.lock(name).await;
    }
    for name in ["a", "b"] {
        let told = client.receive().await;
        assert!(matches!(&told, ServerMessage::Enqueued { request_id, .. } if request_id == name), "{told:?}");
    }
    match client.receive().await {
        ServerMessage::Refused { request_id, why: RefusalCause::Fault(error) } => {
            assert_eq!((request_id.as_str(), error.code), ("c", Code::QuotaExceeded));
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn so_many_requests_of_all_sessions_of_an_account_wait_for_a_table_as_it_may_hold_calls() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_held_calls: Some(2), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let is_complete = Arc::new(AtomicBool::new(false));
    world.serve_as_table(&is_complete);
    let mut clients = Vec::new();
    for name in ["a", "b"] {
        let (mut client, _) = SessionClient::opened(&world, &tenant).await;
        client.lock(name).await;
        let told = client.receive().await;
        assert!(matches!(&told, ServerMessage::Enqueued { request_id, .. } if request_id == name), "{told:?}");
        clients.push(client);
    }
    clients[0].lock("c").await;
    match clients[0].receive().await {
        ServerMessage::Refused { request_id, why: RefusalCause::Fault(error) } => {
            assert_eq!((request_id.as_str(), error.code), ("c", Code::RateLimited));
            assert_eq!(error.ids[0], ("limit", "max_held_calls".to_owned()));
        }
        other => panic!("not refused: {other:?}"),
    }
    is_complete.store(true, Ordering::SeqCst);
    for (client, name) in clients.iter_mut().zip(["a", "b"]) {
        let told = client.receive().await;
        assert!(matches!(&told, ServerMessage::Acquired { request_id, .. } if request_id == name), "{told:?}");
    }
    let account = tenant.tenant().unwrap().account.id;
    let used = world.service.inner.deferred_calls.used(crate::admission::Sharer::Account(account));
    assert_eq!(used[0].1, 0, "what its leader knows is charged there");
}

#[tokio::test]
async fn a_list_is_compared_once_the_table_of_its_namespace_is_complete() {
    let (world, tenant) = demo_world().await;
    let is_complete = Arc::new(AtomicBool::new(false));
    let mut lists = world.serve_as_table(&is_complete);
    let (session_id, _) = SessionClient::connect(&world, &tenant).open(None).await;
    let mut client = SessionClient::connect(&world, &tenant);
    assert!(client.open(Some(session_id)).await.1);
    let pending = ["z", "a"].map(|name| Pending::Lock(lock_named(name))).into();
    client.send(ClientPayload::LockInfo(LockInfo { pending, ..LockInfo::default() })).await;
    let refused = timeout(Duration::from_secs(20), lists.wait_for(|count| *count >= 3));
    refused.await.expect("it is sent again").expect("the node is there");
    is_complete.store(true, Ordering::SeqCst);
    for name in ["z", "a"] {
        let told = client.receive().await;
        assert!(matches!(&told, ServerMessage::Acquired { request_id, .. } if request_id == name), "{told:?}");
    }
}

/// The next messages about requests: what they are, and which.
async fn next_answers(client: &mut SessionClient, count: usize) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    while told.len() < count {
        match client.receive().await {
            ServerMessage::Ready { request_id: Some(request_id) } => told.push(("ready", request_id)),
            ServerMessage::Acquired { request_id, .. } => told.push(("acquired", request_id)),
            ServerMessage::Enqueued { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    told
}

#[tokio::test]
async fn a_release_of_everything_ends_no_later_request() {
    let (world, tenant) = demo_world().await;
    let is_complete = Arc::new(AtomicBool::new(false));
    world.serve_as_table(&is_complete);
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.lock("before").await;
    assert!(matches!(client.receive().await, ServerMessage::Enqueued { .. }));
    client.send(ClientPayload::ReleaseAll).await;
    client.lock("after").await;
    assert_eq!(next_answers(&mut client, 1).await, [("ready", "before".to_owned())]);
    is_complete.store(true, Ordering::SeqCst);
    assert_eq!(next_answers(&mut client, 1).await, [("acquired", "after".to_owned())]);
}

#[tokio::test]
async fn a_release_of_everything_ends_no_later_request_at_the_next_leader() {
    let (world, tenant) = demo_world().await;
    let is_next = Arc::new(AtomicBool::new(false));
    let reports = world.serve_as_leaders(&is_next, false);
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.lock("before").await;
    assert_eq!(next_answers(&mut client, 1).await, [("acquired", "before".to_owned())]);
    is_next.store(true, Ordering::SeqCst);
    client.send(ClientPayload::ReleaseAll).await;
    client.lock("after").await;
    assert_eq!(next_answers(&mut client, 2).await, [("ready", "before".to_owned()), ("acquired", "after".to_owned())]);
    assert!(reports.lock().iter().all(|report| report.granted.is_empty()), "what is given up is not reported");
}

#[tokio::test]
async fn what_a_session_holds_is_asked_again_until_the_table_is_complete() {
    let (world, tenant) = demo_world().await;
    let (begins, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (subscriptions, mut queries) = world.reconcile_late(&begins, &answers);
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.lock("a").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
    begins.store(true, Ordering::SeqCst);
    let asked = queries.wait_for(|count| *count >= 3);
    timeout(Duration::from_secs(20), asked).await.expect("it is asked again").expect("the node is there");
    answers.store(true, Ordering::SeqCst);
    client.lock("b").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }), "the connection goes on");
    assert_eq!(subscriptions.load(Ordering::SeqCst), 1, "nothing that it follows is missed for that");
}

fn held_permits(request_id: &str, fencing_token: u64) -> HeldPermits {
    let (kind, path) = (Kind::Semaphore, Path::flat("s"));
    let reported = ReportedPermits { kind, path, request_id: request_id.to_owned(), fencing_token };
    HeldPermits { reported, holder: None }
}

#[tokio::test]
async fn a_lost_reply_to_a_list_of_permits_ends_the_connection_and_the_permits_stay() {
    let (world, tenant) = demo_world().await;
    let (mut client, session_id) = SessionClient::opened(&world, &tenant).await;
    let held = held_permits("a", client.acquire_permit("a").await);
    world.ignore_next(|command| matches!(command, LocksCommand::LockInfo(_)));
    let mut client = SessionClient::connect(&world, &tenant);
    assert!(client.open(Some(session_id.clone())).await.1);
    client.report_permits(std::slice::from_ref(&held)).await;
    let ended = client.ended().await;
    assert!(matches!(ended, CloseReason::Failed(_)), "{ended:?}");
    let mut client = SessionClient::connect(&world, &tenant);
    assert!(client.open(Some(session_id)).await.1);
    client.report_permits(&[held]).await;
    client.acquire_permit("b").await;
}

#[tokio::test]
async fn a_listed_hold_of_permits_that_does_not_exist_is_revoked_and_not_kept() {
    let (world, tenant) = demo_world().await;
    let (session_id, _) = SessionClient::connect(&world, &tenant).open(None).await;
    let mut client = SessionClient::connect(&world, &tenant);
    client.open(Some(session_id)).await;
    client.report_permits(&[held_permits("invented", 7)]).await;
    let lost = client.receive().await;
    assert!(matches!(lost, ServerMessage::Revoked { fencing_token: 7, .. }), "{lost:?}");
    client.lock("invented").await;
    let acquired = client.receive().await;
    assert!(matches!(acquired, ServerMessage::Acquired { .. }), "its request id is free: {acquired:?}");
}

#[tokio::test]
async fn all_entries_of_a_part_count_against_the_limit_together() {
    let world = TestGateway::start().await;
    let limits = LimitsPatch { max_lock_info: Some(2), ..LimitsPatch::default() };
    let tenant = limited_tenant(&world, limits).await;
    let (session_id, _) = SessionClient::connect(&world, &tenant).open(None).await;
    let mut client = SessionClient::connect(&world, &tenant);
    client.open(Some(session_id)).await;
    let held = vec![ReportedHold { path: Path::flat("x"), mode: Mode::Write, fencing_token: 1 }];
    let permits = vec![held_permits("a", 1), held_permits("b", 2)];
    client.send(ClientPayload::LockInfo(LockInfo { held, permits, ..LockInfo::default() })).await;
    let ended = client.ended().await;
    assert!(matches!(ended, CloseReason::Malformed(_)), "{ended:?}");
}

#[tokio::test]
async fn a_leader_that_asks_for_a_report_again_and_again_gets_it_with_pauses() {
    let (world, tenant) = demo_world().await;
    let asks = Arc::new(AtomicBool::new(true));
    let mut reports = world.request_reports_again(&asks);
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.send(ClientPayload::KeepAlive).await;
    let taken = timeout(Duration::from_secs(20), reports.wait_for(|times| times.len() >= 5));
    let times = taken.await.expect("it is reported again").expect("the node is there").clone();
    let mut pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pauses.all(|pause| pause >= Duration::from_millis(50)), "{times:?}");
    asks.store(false, Ordering::SeqCst);
    let told = timeout(Duration::from_secs(20), client.receive()).await.expect("it is answered");
    assert!(matches!(told, ServerMessage::KeptAlive { .. }), "{told:?}");
}
