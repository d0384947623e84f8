//! Clients that disconnect at any moment: a grant that one call reported does not end because another was cancelled.
//!
//! Each test goes through some tries with all delays between nothing and some milliseconds. `HOLDFAST_HANG_UPS=1000` asks
//! for more of them than usual.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::support::{
    AcquireRequest, FencingLockClient, SessionSocket, TestEnv, connect_new_tenant, through, wait_until,
};

through! {
    every_frontend:;
    with_tokens:
        a_renewal_that_is_given_up_takes_no_hold,
        of_two_that_wait_one_may_leave_at_any_moment,
        nothing_is_left_when_all_have_left,
        a_poll_keeps_its_place_while_other_calls_come_and_go;
}

const DEFAULT_TRIES: u64 = 100;
const WAIT_MS: u64 = 300_000;
const TTL_MS: u64 = 3_600_000;
const SESSION_TTL_MS: u64 = 60_000;
/// The longest that a caller stays.
const MAX_WAIT: Duration = Duration::from_millis(4);

fn tries() -> u64 {
    std::env::var("HOLDFAST_HANG_UPS").map_or(DEFAULT_TRIES, |tries| tries.parse().expect("a number"))
}

/// All delays from nothing on, evenly.
fn delay(at: u64) -> Duration {
    MAX_WAIT.mul_f64(at as f64 / tries() as f64)
}

/// Passes so long; timers are too coarse for it.
async fn busy_wait(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        yield_now().await;
    }
}

/// The answer, unless the caller hangs up first.
async fn cancel_after<T>(time: Duration, call: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        answer = call => Some(answer),
        () = busy_wait(time) => None,
    }
}

fn waiting_request(lock: &str) -> AcquireRequest {
    AcquireRequest::write(lock, "p").ttl_ms(TTL_MS).wait_ms(WAIT_MS)
}

/// The locks whose hold of that token is gone. They are asked about twice: what is given back late is gone by then.
async fn lost_locks<D: FencingLockClient>(world: &TestEnv<D>, held: &[(String, u64)]) -> Vec<String> {
    let mut lost = Vec::new();
    for _ in 0..2 {
        lost.clear();
        for (lock, token) in held {
            if !world.client.check(lock, *token).await.unwrap() {
                lost.push(lock.clone());
            }
        }
    }
    lost
}

async fn a_renewal_that_is_given_up_takes_no_hold<D: FencingLockClient>(world: TestEnv<D>) {
    let mut held = Vec::new();
    let mut hung_up = 0;
    for at in 0..tries() {
        let lock = format!("l{at}");
        let token = world.client.expect_granted(waiting_request(&lock)).await.fencing_token.unwrap();
        match cancel_after(delay(at), world.client.acquire(waiting_request(&lock))).await {
            None => hung_up += 1,
            Some(renewed) => assert_eq!(renewed.unwrap().fencing_token, Some(token)),
        }
        held.push((lock, token));
    }
    let lost = lost_locks(&world, &held).await;
    println!("{} of {} holds are gone after {hung_up} callers hung up", lost.len(), held.len());
    assert!(lost.is_empty(), "gone: {lost:?}");
    assert!(hung_up > 0, "nobody hung up");
}

async fn of_two_that_wait_one_may_leave_at_any_moment<D: FencingLockClient>(world: TestEnv<D>) {
    let mut held = Vec::new();
    for at in 0..tries() {
        let lock = format!("l{at}");
        world.client.expect_granted(AcquireRequest::write(&lock, "h").ttl_ms(TTL_MS)).await;
        let queued = Notify::new();
        let stays = async { world.client.acquire(waiting_request(&lock)).await.unwrap().fencing_token.unwrap() };
        let leaves = async {
            if at % 2 == 1 {
                queued.notified().await;
            }
            cancel_after(MAX_WAIT / 2 + delay(at), world.client.acquire(waiting_request(&lock))).await
        };
        let release = async {
            world.wait_for_queue(&lock, 1).await;
            queued.notify_one();
            busy_wait(MAX_WAIT / 2).await;
            world.client.release(&lock, "h").await.unwrap();
        };
        let (token, ..) = tokio::join!(stays, leaves, release);
        held.push((lock, token));
    }
    let lost = lost_locks(&world, &held).await;
    println!("{} of {} holds are gone", lost.len(), held.len());
    assert!(lost.is_empty(), "gone: {lost:?}");
}

async fn nothing_is_left_when_all_have_left<D: FencingLockClient>(world: TestEnv<D>) {
    for at in 0..tries() {
        let lock = format!("l{at}");
        world.client.expect_granted(AcquireRequest::write(&lock, "h").ttl_ms(TTL_MS)).await;
        let first = cancel_after(MAX_WAIT + delay(at), world.client.acquire(waiting_request(&lock)));
        let second = cancel_after(MAX_WAIT + delay(tries() - at), world.client.acquire(waiting_request(&lock)));
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_none() && second.is_none(), "nobody released it");
        world.wait_for_queue(&lock, 0).await;
        world.client.release(&lock, "h").await.unwrap();
    }
    // A call that was still on its way when its caller left may be granted, and is given back then.
    wait_until("nothing is held", async || world.held_locks().await.is_empty()).await;
}

#[tokio::test]
async fn a_connection_that_ends_takes_no_hold_of_its_session() {
    let (rest, first) = connect_new_tenant().await;
    drop(first);
    let mut lost = Vec::new();
    let all: Vec<u64> = (0..tries()).collect();
    // Sessions end some time after their connections.
    for some in all.chunks(DEFAULT_TRIES as usize / 2) {
        let mut held = Vec::new();
        for at in some {
            let mut socket = SessionSocket::connect(&rest).await;
            socket.open_session(SESSION_TTL_MS).await;
            let name = format!("l{at}");
            let token = socket.acquire("a", &name).await;
            // Once more under another name, and once more under the same one.
            socket.request_lock(if at % 2 == 0 { "b" } else { "a" }, &name).await;
            busy_wait(delay(*at)).await;
            held.push((name, token));
        }
        for (name, token) in held {
            let check = format!("POST /v1/namespaces/ns/locks/{name}/check");
            let answer = rest.json(&check, json!({"fencing_token": token})).await.ok();
            if answer["current"] != true {
                lost.push(name);
            }
        }
    }
    println!("{} of {} holds are gone", lost.len(), tries());
    assert!(lost.is_empty(), "gone: {lost:?}");
}

/// A poll that has ended keeps its place for the next one, also when another call for the same comes and goes.
async fn a_poll_keeps_its_place_while_other_calls_come_and_go<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "h").ttl_ms(TTL_MS)).await;
    let poll = || AcquireRequest::write("l", "p").ttl_ms(TTL_MS).wait_ms(WAIT_MS).poll_ms(60);
    for at in 0..8 {
        let queued = world.client.expect_refused(poll()).await;
        assert_eq!(queued.reason.as_deref(), Some("QUEUED"));
        let waits_on = world.client.expect_refused(poll());
        let other = cancel_after(delay(at), world.client.acquire(waiting_request("l")));
        let (queued, _) = tokio::join!(waits_on, other);
        assert_eq!((queued.reason.as_deref(), queued.lock.waiting), (Some("QUEUED"), Some(1)));
    }
    let granted = async { world.client.expect_granted(waiting_request("l")).await.fencing_token.unwrap() };
    let release = async { world.client.release("l", "h").await.unwrap() };
    let (token, _) = tokio::join!(granted, release);
    wait_until("it is held", async || world.client.check("l", token).await.unwrap()).await;
}
