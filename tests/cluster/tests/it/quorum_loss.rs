//! With two of three nodes away nothing is served, and every call is answered in time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::history::{Call, History, LockId, Outcome, Record};
use holdfast_cluster_tests::{DurationStats, assert_no_violations, call_lock, lock_ids, print_summary, read_all_locks};
use holdfast_testkit::{CallOutcome, Cluster, RestClient, Setup, eventually};
use holdfast_types::Mode;

/// Within which a minority answers, on a busy machine too: the service takes half of it, and a call has ten seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the others are away: until well after the lease and the elections that fail.
const OUTAGE: Duration = Duration::from_secs(6);
/// Reads are answered under the leader's lease until it runs out.
const LEASE: Duration = Duration::from_secs(1);
const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const ACQUIRE: Call = Call::Acquire { mode: Mode::Write, ttl_ms: 3_600_000, token: None };

/// A call with its record; how long it took.
async fn call_and_record(
    api: &RestClient,
    lock: &LockId,
    owner: &str,
    call: Call,
    history: &History,
) -> (Duration, Outcome) {
    let start = history.now();
    let outcome = match call_lock(api, &lock.namespace, &lock.name, owner, call).await {
        Ok(answer) => Outcome::Answered(answer),
        Err(error) => {
            let is_right = matches!((error.status, &*error.code), (503, "UNAVAILABLE") | (504, "DEADLINE_EXCEEDED"));
            assert!(is_right, "{call:?} is answered with {error}");
            history.record_error(&error);
            if error.outcome == CallOutcome::NotDone { Outcome::NotDone } else { Outcome::Unknown }
        }
    };
    let end = history.now();
    history.add(Record { owner: owner.into(), lock: lock.clone(), call, start, end, outcome: outcome.clone() });
    (end - start, outcome)
}

/// Every kind of call on every lock, at once. Returns how long each took.
async fn call_all(api: &RestClient, locks: &[LockId], history: &History, since: Instant) -> Vec<Duration> {
    let calls = locks.iter().enumerate().flat_map(|(at, lock)| {
        let own = format!("holder-{at}");
        [(own.clone(), Call::Get), (own, Call::Release { token: None }), ("other".to_owned(), ACQUIRE)]
            .map(|(owner, call)| (lock, owner, call))
    });
    let calls = calls.map(async |(lock, owner, call)| {
        let lease_is_over = since.elapsed() > LEASE;
        let (took, outcome) = call_and_record(api, lock, &owner, call, history).await;
        let is_served = matches!(outcome, Outcome::Answered(_));
        assert!(!is_served || call == Call::Get && !lease_is_over, "{call:?} was served: {outcome:?}");
        took
    });
    let mut times = join_all(calls).await;
    let began = Instant::now();
    let created = api.create_namespace("created-by-a-minority", "once").await;
    assert!(created.is_err(), "a namespace was made");
    times.push(began.elapsed());
    times
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_answers_in_time_and_serves_nothing() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("minority", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let api = cluster.rest_client(0, &tenant.key);
    let history = History::default();
    for (at, lock) in locks.iter().enumerate() {
        let (_, outcome) = call_and_record(&api, lock, &format!("holder-{at}"), ACQUIRE, &history).await;
        assert!(matches!(outcome, Outcome::Answered(answer) if answer.success));
    }
    // First their processes are gone, then they are silent.
    for are_killed in [true, false] {
        for node in &mut cluster.nodes[1..] {
            if are_killed { _ = node.kill().await } else { node.pause() }
        }
        // The last of them may have acknowledged the leader until now.
        let since = Instant::now();
        let mut times = Vec::new();
        while since.elapsed() < OUTAGE {
            times.extend(call_all(&api, &locks, &history, since).await);
        }
        let times = DurationStats::from_durations(times);
        println!("{} nodes away: {times}", if are_killed { "killed" } else { "paused" });
        assert!(times.max() <= RESPONSE_TIMEOUT, "a call took {:?}", times.max());
        for node in &mut cluster.nodes[1..] {
            if are_killed { node.start() } else { node.resume() }
        }
        let began = Instant::now();
        eventually("the service goes on", async || {
            let (_, outcome) = call_and_record(&api, &locks[0], "after", ACQUIRE, &history).await;
            if matches!(outcome, Outcome::Answered(_)) { Ok(()) } else { Err(format!("{outcome:?}")) }
        })
        .await;
        println!("the first write was answered {:.1?} after the nodes were back", began.elapsed());
        cluster.wait_ready().await;
        read_all_locks(&api, &locks, &history).await;
    }
    print_summary(&history);
    assert_no_violations(&history);
    cluster.wait_equal_states().await;
}
