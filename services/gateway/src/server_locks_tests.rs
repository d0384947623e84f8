//! Waiting, sets and resets over gRPC, against a real listener.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use tonic::Code;
use tonic::transport::Channel;

use super::{TestServer, acquire, reason};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_WAIT: Duration = Duration::from_secs(20);

async fn start() -> (TestServer, LocksServiceClient<Channel>) {
    let running = TestServer::start(false).await;
    running.make_namespace().await;
    let locks = LocksServiceClient::new(running.channel.clone());
    (running, locks)
}

fn set_request(process_id: &str, paths: &[&[&str]], mode: v1::Mode) -> v1::AcquireLocksRequest {
    let path = |path: &&[&str]| path.iter().map(|&segment| segment.to_owned()).collect();
    let resource = |resource: &&[&str]| v1::Resource { path: path(resource), mode: mode.into() };
    v1::AcquireLocksRequest {
        namespace: "ns".into(),
        resources: paths.iter().map(resource).collect(),
        process_id: Some(process_id.into()),
        ttl_ms: Some(60_000),
        ..Default::default()
    }
}

async fn wait_for_queue(running: &TestServer, waiting: u64) {
    let mut locks = LocksServiceClient::new(running.channel.clone());
    let get = v1::GetLockRequest { namespace: "ns".into(), name: Some("a/b".into()), ..Default::default() };
    let looking = async {
        while locks.get_lock(running.call(get.clone())).await.unwrap().into_inner().lock.unwrap().waiting != waiting {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(MAX_WAIT, looking).await.expect("the queue gets there in good time");
}

#[tokio::test]
async fn a_call_waits_and_one_that_is_dropped_leaves_the_queue() {
    let (running, mut locks) = start().await;
    locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap();
    let request = v1::AcquireLockRequest { wait_ms: 60_000, ..acquire("q", v1::Mode::Write) };
    let (mut waiter, call) = (locks.clone(), running.call(request.clone()));
    let waits = tokio::spawn(async move { waiter.acquire_lock(call).await });
    wait_for_queue(&running, 1).await;
    let polled = v1::AcquireLockRequest {
        poll_ms: Some(10),
        ..v1::AcquireLockRequest { process_id: Some("r".into()), ..request }
    };
    let queued = locks.acquire_lock(running.call(polled)).await.unwrap().into_inner().reason.unwrap();
    assert_eq!((queued.code(), queued.queue_position), (v1::refusal::Code::Queued, Some(1)));
    waits.abort();
    wait_for_queue(&running, 1).await;
    let name = Some(String::from("a/b"));
    let release =
        v1::ReleaseLockRequest { namespace: "ns".into(), name, process_id: Some("p".into()), ..Default::default() };
    locks.release_lock(running.call(release)).await.unwrap();
    let granted = locks.acquire_lock(running.call(acquire("r", v1::Mode::Write))).await.unwrap().into_inner();
    assert!(granted.success, "{granted:?}");
}

#[tokio::test]
async fn a_callers_own_deadline_ends_its_wait() {
    let (running, mut locks) = start().await;
    locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap();
    let mut call = running.call(v1::AcquireLockRequest { wait_ms: 60_000, ..acquire("q", v1::Mode::Write) });
    call.metadata_mut().insert("grpc-timeout", "100m".parse().unwrap());
    let status = locks.acquire_lock(call).await.unwrap_err();
    // Depends on whether the client or the service notices the deadline first.
    assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status:?}");
    wait_for_queue(&running, 0).await;
}

#[tokio::test]
async fn a_process_that_stops_ends_the_waits_of_its_callers() {
    let (running, mut locks) = start().await;
    locks.acquire_lock(running.call(acquire("p", v1::Mode::Write))).await.unwrap();
    let waits = running.call(v1::AcquireLockRequest { wait_ms: 600_000, ..acquire("q", v1::Mode::Write) });
    let waits = tokio::spawn(async move { locks.acquire_lock(waits).await });
    wait_for_queue(&running, 1).await;
    running.stop.send(()).unwrap();
    let status = tokio::time::timeout(MAX_WAIT, waits).await.expect("an answer in good time").unwrap().unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    tokio::time::timeout(MAX_WAIT, running.served).await.expect("an end in good time").unwrap().unwrap();
}

#[tokio::test]
async fn sets_trees_and_the_whole_namespace_are_locked_and_reset() {
    let (running, mut locks) = start().await;
    let taken = set_request("p", &[&["t", "x"], &["s"]], v1::Mode::Write);
    let taken = locks.acquire_locks(running.call(taken)).await.unwrap().into_inner();
    assert!(taken.success);
    let paths: Vec<_> = taken.locks.iter().map(|lock| lock.path.join("/")).collect();
    assert_eq!(paths, ["s", "t/x"]);
    assert_eq!((taken.locks[0].name.as_deref(), taken.locks[1].name.as_deref()), (Some("s"), None));

    let check = v1::CheckLockRequest {
        namespace: "ns".into(),
        path: vec!["t".into(), "x".into()],
        fencing_token: taken.fencing_token(),
        ..Default::default()
    };
    assert!(locks.check_lock(running.call(check.clone())).await.unwrap().into_inner().current);
    let whole = v1::AcquireLockRequest { name: None, whole_namespace: true, ..acquire("q", v1::Mode::Read) };
    let refused = locks.acquire_lock(running.call(whole)).await.unwrap().into_inner();
    assert_eq!(refused.reason.unwrap().code(), v1::refusal::Code::Descendant);
    assert_eq!(refused.lock.unwrap().path, Vec::<String>::new());

    let release = v1::ReleaseLocksRequest {
        namespace: "ns".into(),
        process_id: Some("p".into()),
        resources: vec![v1::ToRelease { path: vec!["s".into()] }],
        ..Default::default()
    };
    assert!(locks.release_locks(running.call(release)).await.unwrap().into_inner().released);
    assert!(locks.check_lock(running.call(check.clone())).await.unwrap().into_inner().current);

    let reset = v1::ResetNamespaceRequest { namespace: "ns".into(), ..Default::default() };
    let refused = locks.reset_namespace(running.call(reset.clone())).await.unwrap_err();
    assert_eq!(reason(&refused), "INVALID_ARGUMENT");
    let reset = v1::ResetNamespaceRequest { live_owners: Some(v1::Owners::default()), ..reset };
    let removed = locks.reset_namespace(running.call(reset)).await.unwrap().into_inner();
    assert_eq!((removed.removed_holds, removed.removed_waiters), (1, 0));
    assert!(!locks.check_lock(running.call(check)).await.unwrap().into_inner().current);
}

#[tokio::test]
async fn a_deadlock_names_its_cycle() {
    let (running, mut locks) = start().await;
    for (who, path) in [("p", ["x"]), ("q", ["y"])] {
        locks.acquire_locks(running.call(set_request(who, &[&path], v1::Mode::Write))).await.unwrap();
    }
    let poll =
        v1::AcquireLocksRequest { wait_ms: 60_000, poll_ms: Some(1), ..set_request("p", &[&["y"]], v1::Mode::Write) };
    locks.acquire_locks(running.call(poll)).await.unwrap();
    let closing = v1::AcquireLocksRequest { wait_ms: 60_000, ..set_request("q", &[&["x"]], v1::Mode::Write) };
    let refused = locks.acquire_locks(running.call(closing)).await.unwrap().into_inner().reason.unwrap();
    assert_eq!(refused.code(), v1::refusal::Code::Deadlock);
    let steps: Vec<_> = refused.cycle.iter().map(|step| (step.process_id.as_str(), step.path.join("/"))).collect();
    assert_eq!(steps, [("p", "x".to_owned()), ("q", "y".to_owned())]);
}
