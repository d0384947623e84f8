//! What other services check of their semaphores, asked of ours: Curator's leases (order, several at once, chunks, leases
//! of the dead, a limit that changes, callers that give up), Consul's slots (tries, limits that differ, what is not held)
//! and Grackle's permits (one at a time, each by the job that has it).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};

use crate::semaphores::{
    WAIT_MS, call, configure, granted, refused, release, shown, tenant_with_namespace, wait_for_waiters,
};
use crate::support::{RestClient, SessionSocket, connect_new_tenant, wait_until};

/// Of a session whose client dies.
const SESSION_TTL_MS: u64 = 1_000;

fn waits(weight: u64) -> Value {
    json!({"weight": weight, "wait_ms": WAIT_MS})
}

/// The name of a process.
fn process(number: usize) -> String {
    format!("p{number}")
}

async fn figures(rest: &RestClient) -> [u64; 3] {
    let shown = shown(rest).await;
    ["in_use", "holders_total", "waiting"].map(|name| shown[name].as_u64().unwrap())
}

/// Lets so many callers join the queue, one after the other, and then `go`; in which order they were granted. Each gives
/// back what it has.
async fn order_of_grants(rest: &RestClient, weights: &[u64], go: impl Future<Output = ()>) -> Vec<usize> {
    let before = figures(rest).await[2];
    let turns = (0_usize..).zip(weights).map(async |(number, weight)| {
        wait_for_waiters(rest, before + number as u64).await;
        let token = granted(rest, &process(number), waits(*weight)).await;
        release(rest, &process(number)).await;
        (token, number)
    });
    let go = async {
        wait_for_waiters(rest, before + weights.len() as u64).await;
        go.await;
    };
    let (mut turns, ()) = tokio::join!(join_all(turns), go);
    turns.sort_unstable();
    turns.into_iter().map(|(_, number)| number).collect()
}

#[tokio::test]
async fn permits_go_round_in_the_order_of_arrival() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 1).await;
    granted(&rest, "first", json!({})).await;
    let go = async { drop(release(&rest, "first").await) };
    assert_eq!(order_of_grants(&rest, &[1; 8], go).await, (0..8).collect::<Vec<_>>());
    assert_eq!(figures(&rest).await, [0, 0, 0]);
}

#[tokio::test]
async fn requests_of_different_weight_keep_that_order() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 5).await;
    granted(&rest, "first", json!({"weight": 5})).await;
    let go = async { drop(release(&rest, "first").await) };
    assert_eq!(order_of_grants(&rest, &[3, 5, 1, 2, 5, 1], go).await, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn several_permits_are_granted_all_or_none() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 4).await;
    granted(&rest, "p", json!({"weight": 3})).await;
    let none = refused(&rest, "q", json!({"weight": 2})).await;
    assert_eq!(none["reason"]["code"], "EXHAUSTED");
    assert_eq!(figures(&rest).await, [3, 1, 0], "the free one was not taken");
    let (one, two, ()) =
        tokio::join!(granted(&rest, "q", waits(4)), refused(&rest, "r", json!({"weight": 2})), async {
            wait_for_waiters(&rest, 1).await;
            release(&rest, "p").await;
        });
    assert!(one > 0 && two["success"] == false);
    assert_eq!(figures(&rest).await, [4, 1, 0]);
}

#[tokio::test]
async fn an_owner_has_several_leases_and_gives_back_each_by_itself() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 6).await;
    let leases = ["a", "b", "c", "d", "e"];
    let tokens = join_all(leases.map(|id| granted(&rest, "p", json!({"request_id": id})))).await;
    assert_eq!(figures(&rest).await, [5, 5, 0]);
    let give_back = async |what: Value| {
        let mut body = json!({"name": "s", "process_id": "p"});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        call(&rest, "release", body).await["released"].clone()
    };
    assert_eq!(give_back(json!({"request_id": "c"})).await, true);
    assert_eq!(give_back(json!({"fencing_token": tokens[3]})).await, true);
    assert_eq!(give_back(json!({"request_id": "c"})).await, false, "each comes back once");
    assert_eq!(give_back(json!({"request_id": "a", "fencing_token": tokens[1]})).await, false, "they differ");
    let check = async |token| {
        call(&rest, "check", json!({"name": "s", "fencing_token": token})).await["current"].as_bool().unwrap()
    };
    let mut held = Vec::new();
    for token in tokens {
        held.push(check(token).await);
    }
    assert_eq!(held, [true, true, false, false, true]);
    assert_eq!(figures(&rest).await, [3, 3, 0]);
}

#[tokio::test]
async fn leases_that_come_back_in_chunks_let_in_as_many() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 11).await;
    join_all((0..11).map(|number| granted(&rest, "p", json!({"request_id": number.to_string()})))).await;
    let waiters = (0..11).map(async |number| granted(&rest, &process(number), waits(1)).await);
    let chunks = async {
        wait_for_waiters(&rest, 11).await;
        let mut left = 11;
        for chunk in [1, 3, 2, 5] {
            let ids = left - chunk..left;
            let release = |id: usize| {
                call(&rest, "release", json!({"name": "s", "process_id": "p", "request_id": id.to_string()}))
            };
            join_all(ids.map(release)).await;
            left -= chunk;
            assert_eq!(figures(&rest).await, [11, 11, left as u64], "as many as came back");
        }
    };
    tokio::join!(join_all(waiters), chunks);
}

#[tokio::test]
async fn threads_never_have_more_than_there_is() {
    const PERMITS: usize = 3;
    let rest = tenant_with_namespace().await;
    configure(&rest, PERMITS as u64).await;
    let (in_use, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    join_all((0..12).map(async |number| {
        for round in 0..5 {
            let weight = 1 + (number + round) % PERMITS;
            granted(&rest, &process(number), waits(weight as u64)).await;
            let now = in_use.fetch_add(weight, Ordering::SeqCst) + weight;
            assert!(now <= PERMITS, "{now} of {PERMITS} permits are in use");
            most.fetch_max(now, Ordering::SeqCst);
            in_use.fetch_sub(weight, Ordering::SeqCst);
            release(&rest, &process(number)).await;
        }
    }))
    .await;
    assert_eq!((most.into_inner(), figures(&rest).await), (PERMITS, [0, 0, 0]));
}

#[tokio::test]
async fn a_higher_limit_lets_in_those_who_wait_at_once() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 1).await;
    granted(&rest, "first", json!({})).await;
    let raise = async {
        wait_for_waiters(&rest, 4).await;
        let raised = configure(&rest, 5).await;
        assert_eq!((&raised["in_use"], &raised["waiting"]), (&json!(5), &json!(0)), "in the same step");
    };
    tokio::join!(join_all((0..4).map(async |number| granted(&rest, &process(number), waits(1)).await)), raise);
}

#[tokio::test]
async fn whoever_gives_up_leaves_nothing_and_delays_nobody() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 2).await;
    granted(&rest, "first", json!({})).await;
    let large = async {
        // It holds up the one behind until it gives up.
        let gone = refused(&rest, "large", json!({"weight": 2, "wait_ms": 3_000})).await;
        assert_eq!(gone["reason"]["code"], "TIMED_OUT");
    };
    let small = async {
        wait_for_waiters(&rest, 1).await;
        granted(&rest, "small", waits(1)).await
    };
    tokio::join!(large, small);
    assert_eq!(figures(&rest).await, [2, 2, 0]);
    let page = rest.call("GET /v1/namespaces/ns/waits?kinds=semaphores").await.ok();
    assert_eq!(page["waits"], json!([]));
}

async fn acquire_on(socket: &mut SessionSocket, request_id: &str, weight: u64) {
    socket
        .send(json!({
            "type": "acquire_permits", "request_id": request_id, "path": ["s"], "weight": weight, "permits": 3,
        }))
        .await;
}

#[tokio::test]
async fn leases_of_a_client_that_died_come_back_when_its_session_has_expired() {
    let (rest, mut dying) = connect_new_tenant().await;
    let mut living = SessionSocket::connect(&rest).await;
    living.open_session(30_000).await;
    let opened = Instant::now();
    dying.open_session(SESSION_TTL_MS).await;
    for id in ["a", "b"] {
        acquire_on(&mut dying, id, 1).await;
        dying.expect_acquired(id).await;
    }
    acquire_on(&mut living, "x", 3).await;
    living.expect_enqueued("x").await;
    drop(dying);
    living.expect_acquired("x").await;
    assert!(opened.elapsed() >= Duration::from_millis(SESSION_TTL_MS), "nobody is let in early");
    assert_eq!(figures(&rest).await, [3, 1, 0]);
    living.send(json!({"type": "close"})).await;
    wait_until("the semaphore is gone with its last hold", async || {
        rest.json("POST /v1/namespaces/ns/semaphores/get", json!({"name": "s"})).await.status == 404
    })
    .await;
}

#[tokio::test]
async fn a_client_that_dies_in_the_queue_holds_up_nobody() {
    let (rest, mut holder) = connect_new_tenant().await;
    let (mut dying, mut living) = (SessionSocket::connect(&rest).await, SessionSocket::connect(&rest).await);
    holder.open_session(30_000).await;
    dying.open_session(SESSION_TTL_MS).await;
    living.open_session(30_000).await;
    acquire_on(&mut holder, "a", 3).await;
    holder.expect_acquired("a").await;
    acquire_on(&mut dying, "b", 3).await;
    dying.expect_enqueued("b").await;
    acquire_on(&mut living, "c", 1).await;
    living.expect_enqueued("c").await;
    drop(dying);
    wait_for_waiters(&rest, 1).await;
    holder.send(json!({"type": "release", "request_id": "a"})).await;
    holder.expect_ready("a").await;
    living.expect_acquired("c").await;
}

#[tokio::test]
async fn slots_have_one_limit_and_a_lock_of_the_name_is_another_thing() {
    let rest = tenant_with_namespace().await;
    assert!(rest.acquire("ns", "s", "p").await.is_ok());
    let token = granted(&rest, "p", json!({"permits": 2})).await;
    let mut other = json!({"name": "s", "process_id": "q", "request_id": "r", "ttl_ms": 60_000});
    other["permits"] = json!(3);
    let conflict = rest.json("POST /v1/namespaces/ns/semaphores/acquire", other).await;
    let detail = conflict.expect_error("INVALID_ARGUMENT")["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("permits: ") && detail.contains("has 2") && detail.contains("configure"), "{detail}");
    granted(&rest, "q", json!({"permits": 2})).await;
    assert_eq!(refused(&rest, "r", json!({"permits": 2})).await["reason"]["code"], "EXHAUSTED", "a try is answered");
    assert_eq!(release(&rest, "r").await["released"], false, "it has none");
    release(&rest, "q").await;
    assert_eq!(call(&rest, "check", json!({"name": "s", "fencing_token": token})).await["current"], true);
}
