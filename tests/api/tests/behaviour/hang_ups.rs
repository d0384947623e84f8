//! Callers that hang up at any moment: what one call was told is not taken away because another one left.
//!
//! Each test goes through some tries with all delays between nothing and some milliseconds. `HOLDFAST_HANG_UPS=1000` asks
//! for more of them than usual.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::support::{Ask, Socket, TokenDoor, World, through, wait_until};

through! {
    every_door:;
    with_tokens:
        a_renewal_that_is_given_up_takes_no_hold,
        of_two_that_wait_one_may_leave_at_any_moment,
        nothing_is_left_when_all_have_left,
        a_poll_keeps_its_place_while_other_calls_come_and_go;
}

const USUAL_TRIES: u64 = 100;
const LONG_MS: u64 = 300_000;
const HOLD_MS: u64 = 3_600_000;
const SESSION_MS: u64 = 60_000;
/// The longest that a caller stays.
const PATIENCE: Duration = Duration::from_millis(4);

fn tries() -> u64 {
    std::env::var("HOLDFAST_HANG_UPS").map_or(USUAL_TRIES, |tries| tries.parse().expect("a number"))
}

/// All delays from nothing on, evenly.
fn delay(at: u64) -> Duration {
    PATIENCE.mul_f64(at as f64 / tries() as f64)
}

/// Passes so long; timers are too coarse for it.
async fn pass(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        yield_now().await;
    }
}

/// The answer, unless the caller hangs up first.
async fn answer_within<T>(time: Duration, call: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        answer = call => Some(answer),
        () = pass(time) => None,
    }
}

fn waits(lock: &str) -> Ask {
    Ask::write(lock, "p").ttl_ms(HOLD_MS).waiting(LONG_MS)
}

/// The locks whose hold of that token is gone. They are asked about twice: what is given back late is gone by then.
async fn lost<D: TokenDoor>(world: &World<D>, held: &[(String, u64)]) -> Vec<String> {
    let mut lost = Vec::new();
    for _ in 0..2 {
        lost.clear();
        for (lock, token) in held {
            if !world.door.check(lock, *token).await.unwrap() {
                lost.push(lock.clone());
            }
        }
    }
    lost
}

async fn a_renewal_that_is_given_up_takes_no_hold<D: TokenDoor>(world: World<D>) {
    let mut held = Vec::new();
    let mut hung_up = 0;
    for at in 0..tries() {
        let lock = format!("l{at}");
        let token = world.door.take(waits(&lock)).await.fencing_token.unwrap();
        match answer_within(delay(at), world.door.acquire(waits(&lock))).await {
            None => hung_up += 1,
            Some(renewed) => assert_eq!(renewed.unwrap().fencing_token, Some(token)),
        }
        held.push((lock, token));
    }
    let lost = lost(&world, &held).await;
    println!("{} of {} holds are gone after {hung_up} callers hung up", lost.len(), held.len());
    assert!(lost.is_empty(), "gone: {lost:?}");
    assert!(hung_up > 0, "nobody hung up");
}

async fn of_two_that_wait_one_may_leave_at_any_moment<D: TokenDoor>(world: World<D>) {
    let mut held = Vec::new();
    for at in 0..tries() {
        let lock = format!("l{at}");
        world.door.take(Ask::write(&lock, "h").ttl_ms(HOLD_MS)).await;
        let queued = Notify::new();
        let stays = async { world.door.acquire(waits(&lock)).await.unwrap().fencing_token.unwrap() };
        let leaves = async {
            if at % 2 == 1 {
                queued.notified().await;
            }
            answer_within(PATIENCE / 2 + delay(at), world.door.acquire(waits(&lock))).await
        };
        let release = async {
            world.wait_for_queue(&lock, 1).await;
            queued.notify_one();
            pass(PATIENCE / 2).await;
            world.door.release(&lock, "h").await.unwrap();
        };
        let (token, ..) = tokio::join!(stays, leaves, release);
        held.push((lock, token));
    }
    let lost = lost(&world, &held).await;
    println!("{} of {} holds are gone", lost.len(), held.len());
    assert!(lost.is_empty(), "gone: {lost:?}");
}

async fn nothing_is_left_when_all_have_left<D: TokenDoor>(world: World<D>) {
    for at in 0..tries() {
        let lock = format!("l{at}");
        world.door.take(Ask::write(&lock, "h").ttl_ms(HOLD_MS)).await;
        let first = answer_within(PATIENCE + delay(at), world.door.acquire(waits(&lock)));
        let second = answer_within(PATIENCE + delay(tries() - at), world.door.acquire(waits(&lock)));
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_none() && second.is_none(), "nobody released it");
        world.wait_for_queue(&lock, 0).await;
        world.door.release(&lock, "h").await.unwrap();
    }
    // A call that was still on its way when its caller left may be granted, and is given back then.
    wait_until("nothing is held", async || world.held().await.is_empty()).await;
}

#[tokio::test]
async fn a_connection_that_ends_takes_no_hold_of_its_session() {
    let (rest, first) = Socket::alone().await;
    drop(first);
    let mut lost = Vec::new();
    let all: Vec<u64> = (0..tries()).collect();
    // Sessions end some time after their connections.
    for some in all.chunks(USUAL_TRIES as usize / 2) {
        let mut held = Vec::new();
        for at in some {
            let mut socket = Socket::connect(&rest).await;
            socket.open(SESSION_MS).await;
            let name = format!("l{at}");
            let token = socket.take("a", &name).await;
            // Once more under another name, and once more under the same one.
            socket.lock(if at % 2 == 0 { "b" } else { "a" }, &name).await;
            pass(delay(*at)).await;
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
async fn a_poll_keeps_its_place_while_other_calls_come_and_go<D: TokenDoor>(world: World<D>) {
    world.door.take(Ask::write("l", "h").ttl_ms(HOLD_MS)).await;
    let poll = || Ask::write("l", "p").ttl_ms(HOLD_MS).waiting(LONG_MS).polling(60);
    for at in 0..8 {
        let queued = world.door.is_refused(poll()).await;
        assert_eq!(queued.reason.as_deref(), Some("QUEUED"));
        let waits_on = world.door.is_refused(poll());
        let other = answer_within(delay(at), world.door.acquire(waits("l")));
        let (queued, _) = tokio::join!(waits_on, other);
        assert_eq!((queued.reason.as_deref(), queued.lock.waiting), (Some("QUEUED"), Some(1)));
    }
    let granted = async { world.door.take(waits("l")).await.fencing_token.unwrap() };
    let release = async { world.door.release("l", "h").await.unwrap() };
    let (token, _) = tokio::join!(granted, release);
    wait_until("it is held", async || world.door.check("l", token).await.unwrap()).await;
}
