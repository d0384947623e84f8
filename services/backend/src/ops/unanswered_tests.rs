//! Commands of session connections whose replies are lost, or which could not be sent for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_api::session_message::{
    Arrive, ClientPayload, HeldPermits, LockInfo, RefusalCause, Release, ServerMessage,
};
use holdfast_api::*;
use holdfast_core::{Command, Response, codec};
use holdfast_proto::internal::call;
use holdfast_testkit::fake_node::not_proposed;
use holdfast_types::{BarrierCommand, BarrierOutcome, CommandError, Kind, LocksCommand, Path, Query, ReportedPermits};
use tokio::sync::watch;
use tokio::time::{Duration, timeout};

use super::core_node::{TestGateway, answer_with, context};
use super::session_tests::SessionClient;
use super::tests::demo_world;

/// Executes the next matching command and loses its reply. Proposes nothing after it, until the flag is set.
fn lose_next(world: &TestGateway, is_it: impl Fn(&LocksCommand) -> bool + Send + Sync + 'static) -> Arc<AtomicBool> {
    let is_back = Arc::<AtomicBool>::default();
    let (has_lost, returns) = (AtomicBool::new(false), Arc::clone(&is_back));
    let matches = move |bytes: &[u8]| matches!(codec::decode(bytes), Ok(Command::Locks(command)) if is_it(&command));
    world.intercept(move |call, serve| match &call.body {
        Some(call::Body::Command(bytes)) if !returns.load(Ordering::SeqCst) => {
            if has_lost.load(Ordering::SeqCst) {
                return not_proposed();
            }
            let reply = serve();
            if !matches(bytes) {
                return reply;
            }
            has_lost.store(true, Ordering::SeqCst);
            answer_with(Ok(Response::Ignored))
        }
        _ => serve(),
    });
    is_back
}

fn arrives(command: &LocksCommand) -> bool {
    matches!(command, LocksCommand::Barrier(BarrierCommand::Arrive(_)))
}

fn arrive(request_id: &str, parties: u32, double: bool) -> ClientPayload {
    let (path, holder) = (vec!["b".to_owned()], Some(request_id.to_owned()));
    let (request_id, parties, double) = (request_id.to_owned(), Some(parties), Some(double));
    ClientPayload::Arrive(Arrive { request_id, path, generation: None, parties, double, holder })
}

fn leave(request_id: &str) -> ClientPayload {
    ClientPayload::Leave(Release { request_id: request_id.to_owned(), unheard: false })
}

/// Checks that the next message says how the generation of the request ended. Returns that generation.
async fn expect_tripped(client: &mut SessionClient, request: &str, outcome: BarrierOutcome) -> u64 {
    match client.receive().await {
        ServerMessage::Tripped { request_id, answer } => {
            assert_eq!((request_id.as_str(), answer.outcome), (request, outcome));
            answer.generation
        }
        other => panic!("{request} has no outcome: {other:?}"),
    }
}

#[tokio::test]
async fn a_repeat_of_what_may_have_been_executed_is_never_refused_for_the_rate() {
    let (world, tenant) = demo_world().await;
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    let is_back = lose_next(&world, |command| matches!(command, LocksCommand::Session(_)));
    for _ in 0..2 {
        client.lock("a").await;
        client.expect_unknown("a").await;
    }
    is_back.store(true, Ordering::SeqCst);
    client.lock("a").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
}

#[tokio::test]
async fn an_arrival_of_which_the_client_heard_nothing_leaves() {
    let (world, tenant) = demo_world().await;
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    let is_back = lose_next(&world, arrives);
    client.send(arrive("a", 2, false)).await;
    client.expect_unknown("a").await;
    is_back.store(true, Ordering::SeqCst);
    let barrier = ThingName { namespace: "demo".to_owned(), name: LockName::Path(vec!["b".to_owned()]) };
    let arrived = || async { world.service.get_barrier(&tenant, &context(), &barrier).await.unwrap().arrivals.len() };
    assert_eq!(arrived().await, 1);
    client.send(leave("a")).await;
    match client.receive().await {
        ServerMessage::Refused { request_id, why: RefusalCause::Fault(error) } => {
            assert_eq!((request_id.as_str(), error.code), ("a", Code::DeadlineExceeded));
        }
        other => panic!("it has not left: {other:?}"),
    }
    assert_eq!(arrived().await, 0);
    client.send(leave("a")).await;
    let unknown = client.receive().await;
    assert!(matches!(unknown, ServerMessage::Error { .. }), "it has left already: {unknown:?}");
}

#[tokio::test]
async fn the_last_to_leave_a_double_barrier_leaves_again_after_a_resume() {
    let (world, tenant) = demo_world().await;
    let (mut client, session_id) = SessionClient::opened(&world, &tenant).await;
    client.send(arrive("b", 1, true)).await;
    let generation = expect_tripped(&mut client, "b", BarrierOutcome::Tripped).await;
    let is_back = lose_next(&world, |command| matches!(command, LocksCommand::Barrier(BarrierCommand::Leave(_))));
    client.send(leave("b")).await;
    client.expect_unknown("b").await;
    is_back.store(true, Ordering::SeqCst);
    let mut client = SessionClient::connect(&world, &tenant);
    client.open(Some(session_id)).await;
    let (kind, path) = (Kind::Barrier, Path::flat("b"));
    let reported = ReportedPermits { kind, path, request_id: "b".to_owned(), fencing_token: generation };
    let permits = vec![HeldPermits { reported, holder: Some("b".to_owned()) }];
    client.send(ClientPayload::LockInfo(LockInfo { permits, ..LockInfo::default() })).await;
    client.send(leave("b")).await;
    expect_tripped(&mut client, "b", BarrierOutcome::Tripped).await;
    expect_tripped(&mut client, "b", BarrierOutcome::Left).await;
}

#[tokio::test]
async fn what_a_session_has_is_asked_once_the_access_of_its_caller_can_be_checked_again() {
    let (world, tenant) = demo_world().await;
    let (mut client, _) = SessionClient::opened(&world, &tenant).await;
    client.lock("a").await;
    assert!(matches!(client.receive().await, ServerMessage::Acquired { .. }));
    let (is_back, looks) = (Arc::<AtomicBool>::default(), watch::Sender::new(0));
    let asks = watch::Sender::new(0);
    let (returns, looked, asked) = (Arc::clone(&is_back), looks.clone(), asks.clone());
    world.intercept(move |call, serve| {
        let Some(call::Body::Query(bytes)) = &call.body else { return serve() };
        match codec::decode(bytes) {
            Ok(Query::Account { .. } | Query::ApiKey { .. }) if !returns.load(Ordering::SeqCst) => {
                looked.send_modify(|count| *count += 1);
                answer_with(Err(CommandError::Busy("others are looked up".to_owned())))
            }
            Ok(Query::ReconcileHolds { .. }) => {
                asked.send_modify(|count| *count += 1);
                serve()
            }
            _ => serve(),
        }
    });
    let renamed = UpdateAccount { full_name: Some("B".to_owned()), ..UpdateAccount::default() };
    let account = tenant.principal().account().unwrap().account.to_string();
    let operator = world.operator().await;
    world.service.update_account(&operator, &context(), &account, renamed).await.unwrap();
    // Checked again, since the check before had no result.
    timeout(Duration::from_secs(30), looks.subscribe().wait_for(|count| *count >= 3)).await.unwrap().unwrap();
    let before = *asks.borrow();
    is_back.store(true, Ordering::SeqCst);
    timeout(Duration::from_secs(30), asks.subscribe().wait_for(|count| *count > before)).await.unwrap().unwrap();
}
