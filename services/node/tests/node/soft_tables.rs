//! Locks of a namespace whose durability is SESSION: one leader after the other grants them from its memory.

use std::path::Path as FilePath;
use std::sync::Arc;

use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_core::{
    AccountId, AcquireOutcome, Actor, AuditAction, Audited, Claim, Command, CommandError, Durability, EventKind,
    FencingToken, Incarnation, KeepAliveOutcome, Kinds, Limits, LocksCommand, MessageSeq, Metadata, Mode,
    NamespaceMessage, NamespaceRef, OpenSession, OpenTableSession, Owner, Path, Query, Reply, ReportedHold,
    ReportedRequest, RequestId, Response, Revision, SessionAcquire, SessionCommand, SessionKeepAlive, SessionRequest,
    SessionView, TableCommand, TableReport, TableState, Wait, codec,
};
use holdfast_node::{Node, NodeOptions};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Application as NamedApplication, Call};
use holdfast_routing::TcpDialer;
use tempfile::tempdir;
use tokio::time::{Duration, sleep, timeout};

use crate::broken_shards::{KEY, MAX_WAIT, wait_led};

/// How long a repeated call waits.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// The time to live of the sessions. No test waits for its end.
const TTL_MS: u64 = 60_000;
/// That of the session whose end a test waits for: the shortest that there is.
const SHORT_TTL_MS: u64 = 2_000;

fn soft() -> NamespaceRef {
    NamespaceRef { account: AccountId(7), name: "soft".to_owned(), incarnation: Incarnation(1) }
}

fn lock() -> Path {
    Path::flat("l")
}

/// Starts the node of a cluster of one.
async fn start(data_dir: &FilePath, secret: &ClusterSecret) -> Node {
    let nodes = vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())];
    let config = ClusterConfig::generate(nodes, 1, 1).expect("it is a config");
    let options = NodeOptions::new("nd_1", config, secret.clone(), data_dir);
    let node = Node::open(&options, Arc::new(TcpDialer)).expect("the node starts");
    node.start_replicas(&options).await.expect("the replicas start");
    node
}

/// Calls the shard, again while the call is not proposed.
async fn call(node: &Node, body: Body) -> Result<Response, CommandError> {
    let calling = async {
        loop {
            let (replica, term) = wait_led(node).await;
            let (body, application) = (Some(body.clone()), NamedApplication::Locks.into());
            let call =
                Call { id: 1, replica, term, deadline_ms: 20_000, body, application, key: KEY, ..Call::default() };
            match node.local().handler.call(call).await.outcome {
                Some(Outcome::Reply(reply)) => {
                    return codec::decode::<Reply>(&reply).expect("it can be read").outcome;
                }
                // The rules that know the command do not apply yet, or the node does not lead yet.
                Some(Outcome::NotProposed(_) | Outcome::NotLeader(_)) => sleep(RETRY_DELAY).await,
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(MAX_WAIT, calling).await.expect("it is answered")
}

async fn apply(node: &Node, command: LocksCommand) -> Result<Response, CommandError> {
    call(node, Body::Command(codec::encode(&Command::Locks(command)).into())).await
}

async fn query(node: &Node, query: Query) -> Result<Response, CommandError> {
    call(node, Body::Query(codec::encode(&query).into())).await
}

fn opening(id: &str, resume: bool) -> LocksCommand {
    let open = OpenSession {
        namespace: soft(),
        session_id: id.to_owned(),
        resume,
        request_id: RequestId([id.as_bytes()[3] + u8::from(resume); 16]),
        process_id: "p".to_owned(),
        ttl_ms: TTL_MS,
        metadata: Metadata::new(),
    };
    LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, transition_ms: 0 }))
}

async fn open(node: &Node, id: &str) -> SessionView {
    match apply(node, opening(id, false)).await {
        Ok(Response::TableSessionOpened { session, table_epoch, .. }) => {
            assert!(session.number > table_epoch && table_epoch > 0, "it is of the epoch");
            session
        }
        other => panic!("not opened: {other:?}"),
    }
}

async fn send(node: &Node, session: &SessionView, seq: u64, request: SessionRequest) -> Result<Response, CommandError> {
    let message = MessageSeq { epoch: session.epoch, seq };
    let command = SessionCommand { account: soft().account, session: session.number, message, request };
    apply(node, LocksCommand::Session(command)).await
}

fn acquire() -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![Claim { path: lock(), mode: Mode::Write }],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: "r".to_owned(),
    })
}

fn token_of(outcome: Result<Response, CommandError>) -> FencingToken {
    match outcome {
        Ok(Response::Granted { fencing_token }) => fencing_token,
        other => panic!("not granted: {other:?}"),
    }
}

/// The request by which a session holds the lock.
fn granted(token: FencingToken) -> ReportedRequest {
    ReportedRequest {
        request_id: "r".to_owned(),
        holder: None,
        metadata: Metadata::new(),
        claimed: 1,
        claims: vec![ReportedHold { path: lock(), mode: Mode::Write, fencing_token: token }],
    }
}

/// The id of the session that holds the lock.
async fn holder(node: &Node) -> Option<String> {
    let Ok(Response::Lock(lock)) = query(node, Query::Lock { namespace: soft(), path: lock() }).await else {
        panic!("no lock")
    };
    lock.write_lock_holder.map(|holder| match holder.owner {
        Owner::Session { session_id, .. } => session_id,
        Owner::Process(process) => panic!("held by {process:?}"),
    })
}

async fn table_state(node: &Node) -> TableState {
    match query(node, Query::TableState { namespace: soft() }).await {
        Ok(Response::TableState(state)) => state,
        other => panic!("no state: {other:?}"),
    }
}

/// The kinds of the events from a revision on, and where to read on.
async fn events(node: &Node, from: Revision) -> Result<(Vec<EventKind>, Revision), CommandError> {
    let (namespace, prefix, kinds, limit) = (soft(), Path::default(), Kinds::LOCKS, 100);
    match query(node, Query::Events { namespace, from_revision: Some(from), prefix, kinds, limit }).await? {
        Response::Events { events, next_revision, .. } => {
            Ok((events.into_iter().map(|event| event.kind).collect(), next_revision))
        }
        other => panic!("no events: {other:?}"),
    }
}

async fn open_namespace(node: &Node) {
    let message = NamespaceMessage::open_durable(soft(), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".to_owned(), number: 1, message };
    assert_eq!(apply(node, deliver).await, Ok(Response::Done));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_grants_from_its_memory_in_order() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let (first, second) = (open(&node, "se_1").await, open(&node, "se_2").await);
    let token = token_of(send(&node, &first, 1, acquire()).await);
    let waits = send(&node, &second, 1, acquire()).await;
    assert!(matches!(waits, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })), "{waits:?}");
    assert_eq!(holder(&node).await.as_deref(), Some("se_1"));
    let usage = query(&node, Query::Usage { namespace: soft() }).await;
    assert_eq!(usage, Ok(Response::Usage { holds: 1, waiting: 1, sessions: 2 }));
    let release = SessionRequest::Release { request_id: "r".to_owned(), is_known: true };
    assert_eq!(send(&node, &first, 2, release).await, Ok(Response::Done));
    assert_eq!(holder(&node).await.as_deref(), Some("se_2"));
    let check = Query::Check { namespace: soft(), path: lock(), fencing_token: token };
    assert!(query(&node, check).await.is_ok());
    let Ok(Response::Sessions { sessions, .. }) =
        query(&node, Query::Sessions { namespace: soft(), after: None, limit: 5 }).await
    else {
        panic!("no sessions")
    };
    assert_eq!(sessions.iter().map(|session| session.holds).collect::<Vec<_>>(), [0, 1]);
    assert!(table_state(&node).await.is_ready());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_those_of_sessions_and_locks_and_begin_anew_with_each_leader() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    // It waits for the epoch to begin, and hears where its events do.
    let begins = events(&node, Revision::MAX).await;
    let Err(CommandError::RevisionCompacted { oldest: first }) = begins else { panic!("not begun: {begins:?}") };
    let session = open(&node, "se_1").await;
    let token = token_of(send(&node, &session, 1, acquire()).await);
    let release = SessionRequest::Release { request_id: "r".to_owned(), is_known: true };
    assert_eq!(send(&node, &session, 2, release).await, Ok(Response::Done));
    let Ok((kinds, next)) = events(&node, first).await else { panic!("they are remembered") };
    assert_eq!(kinds, [EventKind::SessionOpened, EventKind::Acquired, EventKind::Released]);
    assert_eq!(events(&node, token).await, Ok((kinds[1..].to_vec(), next)), "a token is the revision of a grant");
    node.stop().await;

    let node = start(dir.path(), &secret).await;
    let later = open(&node, "se_2").await;
    let state = table_state(&node).await;
    assert!(!state.is_ready() && state.epoch >= next, "{state:?}");
    let compacted = Err(CommandError::RevisionCompacted { oldest: state.epoch });
    assert_eq!((events(&node, first).await, events(&node, next).await), (compacted.clone(), compacted));
    let Ok((kinds, _)) = events(&node, state.epoch).await else { panic!("its table need not be complete") };
    assert_eq!(kinds, [EventKind::SessionOpened]);
    let close = LocksCommand::CloseSession { namespace: soft(), session_id: "se_1".into(), message: None };
    assert_eq!(apply(&node, close).await, Ok(Response::Done));
    token_of(send(&node, &later, 1, acquire()).await);
    let Ok((kinds, _)) = events(&node, state.epoch).await else { panic!("they are remembered") };
    assert_eq!(kinds, [EventKind::SessionOpened, EventKind::SessionEnded, EventKind::Acquired]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_forced_open_is_noted_in_the_log_and_goes_to_the_next() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let (first, second) = (open(&node, "se_1").await, open(&node, "se_2").await);
    token_of(send(&node, &first, 1, acquire()).await);
    send(&node, &second, 1, acquire()).await.expect("it waits");
    let command = Box::new(Command::Locks(LocksCommand::Delete { namespace: soft(), path: lock() }));
    let audited = Audited { actor: Actor::Operator, request_id: "r".to_owned(), command };
    let forced = call(&node, Body::Command(codec::encode(&Command::Audited(audited)).into())).await;
    assert_eq!(forced, Ok(Response::Done));
    assert_eq!(holder(&node).await.as_deref(), Some("se_2"));
    let account = Some(soft().account);
    let records = query(&node, Query::Audit { account, before: None, limit: 5 }).await;
    let Ok(Response::AuditRecords { records, .. }) = records else { panic!("no records: {records:?}") };
    assert_eq!(records.iter().map(|record| record.action).collect::<Vec<_>>(), [AuditAction::LockDeleted]);
    node.stop().await;
}

async fn keep_alive(node: &Node, session: &SessionView) -> KeepAliveOutcome {
    let (session_id, epoch) = (session.session_id.clone(), session.epoch);
    let session = SessionKeepAlive { key: KEY, namespace: soft(), session_id, epoch };
    match query(node, Query::KeepAlives { sessions: vec![session] }).await {
        Ok(Response::KeptAlive(mut outcomes)) => outcomes.remove(0),
        other => panic!("no outcome: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_reported_to_the_next_leader_lives_on_with_its_lock() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let earlier = open(&node, "se_1").await;
    let token = token_of(send(&node, &earlier, 1, acquire()).await);
    node.stop().await;

    let node = start(dir.path(), &secret).await;
    let later = open(&node, "se_2").await;
    let report = TableReport {
        namespace: soft(),
        session: earlier.number,
        connection_epoch: earlier.epoch,
        seq: 0,
        table_epoch: table_state(&node).await.epoch,
        part: 1,
        parts: 1,
        granted: vec![granted(token)],
        pending: Vec::new(),
    };
    let waiting = send(&node, &later, 1, acquire());
    let reporting = apply(&node, LocksCommand::Table(TableCommand::Report(report)));
    let (waits, reported) = tokio::join!(waiting, reporting);
    assert_eq!(reported, Ok(Response::Done));
    assert!(matches!(waits, Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. })), "{waits:?}");
    assert!(table_state(&node).await.is_ready());
    assert_eq!(holder(&node).await.as_deref(), Some("se_1"));
    assert!(matches!(keep_alive(&node, &earlier).await, KeepAliveOutcome::Recorded { .. }));
    let resumed = apply(&node, opening("se_1", true)).await;
    assert!(matches!(resumed, Ok(Response::TableSessionOpened { resumed: true, .. })), "{resumed:?}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_grants_nothing_until_all_sessions_of_before_have_ended() {
    crate::mutations::enable_from_env();
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let earlier = open(&node, "se_1").await;
    let token = token_of(send(&node, &earlier, 1, acquire()).await);
    node.stop().await;

    let node = start(dir.path(), &secret).await;
    let later = open(&node, "se_2").await;
    let state = table_state(&node).await;
    assert_eq!((state.is_ready(), state.missing, state.waiting_for), (false, 1, vec!["se_1".to_owned()]));
    let busy = send(&node, &later, 1, acquire()).await;
    assert!(matches!(busy, Err(CommandError::Busy(_))), "the other one may hold it: {busy:?}");
    let unreported = CommandError::Unreported { table_epoch: state.epoch };
    assert_eq!(send(&node, &earlier, 2, acquire()).await, Err(unreported.clone()), "a report comes first");
    assert_eq!(keep_alive(&node, &earlier).await, KeepAliveOutcome::Rejected(unreported));
    let resumed = apply(&node, opening("se_1", true)).await;
    assert!(matches!(resumed, Ok(Response::TableSessionOpened { resumed: true, .. })), "{resumed:?}");
    assert!(!table_state(&node).await.is_ready(), "its client has not shown what it holds");

    let waiting = send(&node, &later, 2, acquire());
    let closing = async {
        let close = LocksCommand::CloseSession { namespace: soft(), session_id: "se_1".into(), message: None };
        assert_eq!(apply(&node, close).await, Ok(Response::Done));
    };
    let (granted, ()) = tokio::join!(waiting, closing);
    assert!(token_of(granted) > token, "a call that waits for the table is done when it is complete");
    assert!(table_state(&node).await.is_ready());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_a_gateway_is_reported_by_the_connection_that_resumes_it() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let earlier = open(&node, "se_1").await;
    let token = token_of(send(&node, &earlier, 1, acquire()).await);
    node.stop().await;

    let node = start(dir.path(), &secret).await;
    open(&node, "se_2").await;
    let resumed = match apply(&node, opening("se_1", true)).await {
        Ok(Response::TableSessionOpened { session, resumed: true, .. }) => session,
        other => panic!("not resumed: {other:?}"),
    };
    let table_epoch = table_state(&node).await.epoch;
    let report = |session: &SessionView| TableReport {
        namespace: soft(),
        session: session.number,
        connection_epoch: session.epoch,
        seq: 0,
        table_epoch,
        part: 1,
        parts: 1,
        granted: vec![granted(token)],
        pending: Vec::new(),
    };
    let unreported = CommandError::Unreported { table_epoch };
    assert_eq!(keep_alive(&node, &resumed).await, KeepAliveOutcome::Rejected(unreported));
    let late = apply(&node, LocksCommand::Table(TableCommand::Report(report(&earlier)))).await;
    assert_eq!(late, Err(CommandError::Superseded { epoch: resumed.epoch }), "of the gateway that it had");
    let reported = apply(&node, LocksCommand::Table(TableCommand::Report(report(&resumed)))).await;
    assert_eq!(reported, Ok(Response::Done));
    assert!(table_state(&node).await.is_ready());
    assert_eq!(holder(&node).await.as_deref(), Some("se_1"));
    assert!(matches!(keep_alive(&node, &resumed).await, KeepAliveOutcome::Recorded { .. }));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_resumes_again_and_again_without_a_report_does_not_live_on() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let LocksCommand::Table(TableCommand::OpenSession(mut short)) = opening("se_1", false) else {
        panic!("not an opening")
    };
    short.open.ttl_ms = SHORT_TTL_MS;
    let opened = apply(&node, LocksCommand::Table(TableCommand::OpenSession(short.clone()))).await;
    assert!(matches!(opened, Ok(Response::TableSessionOpened { .. })), "{opened:?}");
    node.stop().await;

    let node = start(dir.path(), &secret).await;
    open(&node, "se_2").await;
    short.open.resume = true;
    let mut number: u8 = 100;
    let ended = async {
        loop {
            number = number.wrapping_add(1);
            short.open.request_id = RequestId([number; 16]);
            match apply(&node, LocksCommand::Table(TableCommand::OpenSession(short.clone()))).await {
                Ok(Response::TableSessionOpened { resumed: true, .. }) | Err(CommandError::Busy(_)) => {}
                ended => return ended,
            }
        }
    };
    let ended = timeout(MAX_WAIT, ended).await.expect("it ends");
    assert!(matches!(ended, Err(CommandError::SessionNotFound(_))), "{ended:?}");
    assert!(table_state(&node).await.is_ready());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_refused_without_an_entry_once_the_last_such_namespace_is_gone() {
    let (dir, secret) = (tempdir().expect("there is a disk"), ClusterSecret::generate().expect("there is chance"));
    let node = start(dir.path(), &secret).await;
    open_namespace(&node).await;
    let session = open(&node, "se_1").await;
    let table_epoch = table_state(&node).await.epoch;
    let purge = NamespaceMessage::Purge { namespace: soft() };
    let deliver = LocksCommand::Deliver { source: "namespaces_00".to_owned(), number: 2, message: purge };
    assert_eq!(apply(&node, deliver).await, Ok(Response::Done));
    let report = TableReport {
        namespace: soft(),
        session: session.number,
        connection_epoch: session.epoch,
        seq: 0,
        table_epoch,
        part: 1,
        parts: 1,
        granted: Vec::new(),
        pending: Vec::new(),
    };
    let refused = apply(&node, LocksCommand::Table(TableCommand::Report(report))).await;
    // The log would say that it takes none, which is for gateways to try again.
    assert!(matches!(refused, Err(CommandError::SessionNotFound(_))), "{refused:?}");
    node.stop().await;
}
