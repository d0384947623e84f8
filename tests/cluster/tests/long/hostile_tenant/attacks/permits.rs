//! Semaphores and pools: long queues, many of them, and much that ends or changes together.

use std::time::{Duration, Instant};

use holdfast_proto::v1::client_message::{AcquirePermits, Message, Take};
use holdfast_testkit::wait_out;
use serde_json::{Value, json};

use super::AttackResult;
use crate::hostile_tenant::attacker::{Attacker, run_concurrently};
use crate::hostile_tenant::session::{Session, flat_path};

/// What is wanted.
const WANTED: &str = "wanted";
/// Holds and waits of one semaphore, and members of one pool, that there may be.
const MAX_OF_SEMAPHORE: usize = 10_000;
const MAX_MEMBERS: usize = 1_000;
/// Members that one request takes.
const MAX_TAKEN: usize = 64;
const WAITS_PER_SESSION: usize = 5_000;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take until everything has ended that is over.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A session's request for permits.
fn acquire(request_id: String, name: &str, weight: usize, permits: Option<u64>) -> (String, Message) {
    let (path, weight) = (flat_path(name), Some(weight as u64));
    let message = AcquirePermits { request_id: request_id.clone(), path, weight, permits, ..Default::default() };
    (request_id, Message::AcquirePermits(message))
}

/// A session's request for so many members of the pool, or for one by its name.
fn take(request_id: String, count: Option<usize>, member: Option<String>) -> (String, Message) {
    let (path, count) = (flat_path(WANTED), count.map(|count| count as u64));
    let message = Take { request_id: request_id.clone(), path, count, member, ..Default::default() };
    (request_id, Message::Take(message))
}

async fn configure(enemy: &Attacker, permits: usize) -> Result<Value, String> {
    enemy.call_thing("semaphores", "configure", json!({"name": WANTED, "permits": permits})).await
}

/// So many sessions that wait for permits with all their requests.
async fn spawn_waiters(enemy: &Attacker, count: usize, weight: usize) -> Result<Vec<Session>, String> {
    let mut sessions = Vec::new();
    for first in (0..count).step_by(WAITS_PER_SESSION) {
        let mut session = enemy.open_session().await?;
        let numbers = first..count.min(first + WAITS_PER_SESSION);
        session.request(numbers.map(|number| acquire(format!("r{number:06}"), WANTED, weight, None))).await?;
        sessions.push(session);
    }
    Ok(sessions)
}

/// The semaphore or pool as it is shown.
async fn shown(enemy: &Attacker, kind: &str, view: &str) -> Result<Value, String> {
    Ok(enemy.call_thing(kind, "get", json!({"name": WANTED, "page_size": 1})).await?[view].take())
}

/// Waits until something is so of the semaphore or pool.
async fn wait_until(enemy: &Attacker, kind: &str, is_so: impl Fn(&Value) -> bool) -> AttackResult {
    let (view, begun) = (kind.trim_end_matches('s'), Instant::now());
    loop {
        let now = shown(enemy, kind, view).await?;
        if is_so(&now) {
            return Ok(());
        }
        if begun.elapsed() > END_TIMEOUT {
            return Err(format!("not over within {END_TIMEOUT:?}: {now}"));
        }
        wait_out(POLL_INTERVAL).await;
    }
}

fn is_idle(now: &Value) -> bool {
    now["in_use"] == 0 && now["holders_total"] == 0 && now["waiting"] == 0
}

/// Waits until the list of a kind is empty.
pub(super) async fn wait_none(enemy: &Attacker, kind: &str) -> AttackResult {
    let (line, begun) = (format!("GET /v1/namespaces/{}/{kind}?page_size=1", enemy.namespace), Instant::now());
    loop {
        let page = enemy.call_rest(&line, None).await?;
        if page[kind].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if begun.elapsed() > END_TIMEOUT {
            return Err(format!("not gone within {END_TIMEOUT:?}: {page}"));
        }
        wait_out(POLL_INTERVAL).await;
    }
}

pub(crate) async fn queue(enemy: Attacker) -> AttackResult {
    configure(&enemy, 1).await?;
    let mut holding = enemy.open_session().await?;
    holding.request([acquire("first".to_owned(), WANTED, 1, None)]).await?;
    let mut crowd = spawn_waiters(&enemy, enemy.scaled(MAX_OF_SEMAPHORE - 1, 500), 1).await?;
    // It is handed on within the first session, so often.
    let waiting = &mut crowd[0];
    let (mut last, mut held) = (String::new(), None);
    for _ in 0..enemy.scaled(1_000, 100) {
        let handed_on = async {
            match held.take() {
                None => holding.release(["first".to_owned()]).await?,
                Some(request_id) => waiting.release([request_id]).await?,
            }
            waiting.wait_granted().await
        };
        let next = enemy.timed("a hand-off of a permit", handed_on).await?;
        if next <= last {
            return Err(format!("{next} was granted after {last}, which had come later"));
        }
        last.clone_from(&next);
        held = Some(next);
    }
    holding.close().await?;
    for session in crowd {
        session.close().await?;
    }
    wait_until(&enemy, "semaphores", is_idle).await
}

pub(crate) async fn ephemeral(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(MAX_OF_SEMAPHORE + 200, 600);
    let mut session = enemy.open_session().await?;
    for _ in 0..enemy.scaled(3, 2) {
        // Each makes a semaphore of its own; those beyond the limit are refused.
        let one = |number: usize| acquire(format!("r{number}"), &format!("s{number}"), 1, Some(1));
        session.request((0..count).map(one)).await?;
        session.release_all().await?;
        wait_none(&enemy, "semaphores").await?;
    }
    session.close().await
}

pub(crate) async fn session_end(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(MAX_OF_SEMAPHORE - 100, 2_000);
    configure(&enemy, count).await?;
    let mut ending = enemy.open_session().await?;
    ending.request((0..count).map(|number| acquire(format!("r{number}"), WANTED, 1, None))).await?;
    let mut waiting = enemy.open_session().await?;
    waiting.request([acquire("all".to_owned(), WANTED, count, None)]).await?;
    let (grpc, id) = (enemy.connect().await?, ending.id.clone());
    drop(ending);
    enemy.timed("the end", grpc.delete_session(&enemy.namespace, &id)).await.map_err(|status| status.to_string())?;
    enemy.timed("the grant of all", waiting.wait_granted()).await?;
    waiting.close().await?;
    wait_until(&enemy, "semaphores", is_idle).await
}

pub(crate) async fn expiry(enemy: Attacker) -> AttackResult {
    // Far enough away for all of it to be taken before, on a slow machine too.
    let ahead = if enemy.is_full { Duration::from_secs(15) } else { Duration::from_secs(2) };
    let (count, begun) = (enemy.scaled(MAX_OF_SEMAPHORE - 100, 1_000), Instant::now());
    configure(&enemy, count).await?;
    run_concurrently(count, 32, async |number| {
        let ttl_ms = ahead.saturating_sub(begun.elapsed()).max(Duration::from_millis(100)).as_millis() as u64;
        let owner = format!("p{number}");
        let body = json!({"name": WANTED, "process_id": owner, "request_id": "r", "ttl_ms": ttl_ms});
        // What is refused is counted.
        _ = enemy.call_thing("semaphores", "acquire", body).await;
    })
    .await;
    let mut waiting = enemy.open_session().await?;
    waiting.request([acquire("all".to_owned(), WANTED, count, None)]).await?;
    waiting.wait_granted().await?;
    waiting.close().await?;
    wait_until(&enemy, "semaphores", is_idle).await
}

pub(crate) async fn shrink(enemy: Attacker) -> AttackResult {
    let mut holding = enemy.open_session().await?;
    for round in 0..enemy.scaled(3, 1) {
        configure(&enemy, 2).await?;
        let request = format!("first-{round}");
        holding.request([acquire(request.clone(), WANTED, 2, None)]).await?;
        let crowd = spawn_waiters(&enemy, enemy.scaled(MAX_OF_SEMAPHORE - 1, 1_000), 2).await?;
        // None of them can ever be granted from now on.
        enemy.timed("the configuration", configure(&enemy, 1)).await?;
        wait_until(&enemy, "semaphores", |now| now["waiting"] == 0).await?;
        for session in crowd {
            session.close().await?;
        }
        holding.release([request]).await?;
        wait_until(&enemy, "semaphores", is_idle).await?;
    }
    holding.close().await
}

/// Members of which the last ones have other names in every other round.
fn members(round: usize, kept: usize) -> Vec<Value> {
    let name = |number: usize| match number < kept {
        true => format!("kept-{number}"),
        false => format!("other-{}-{number}", round % 2),
    };
    (0..MAX_MEMBERS).map(|number| json!({"name": name(number), "disabled": round % 4 == 3})).collect()
}

async fn configure_pool(enemy: &Attacker, round: usize, kept: usize) -> Result<Value, String> {
    let body = json!({"name": WANTED, "members": members(round, kept)});
    enemy.call_thing("pools", "configure", body).await
}

pub(crate) async fn pool_changes(enemy: Attacker) -> AttackResult {
    const HOLDERS: usize = MAX_MEMBERS / MAX_TAKEN;
    // What is held may not be missing: it would count until it has come back.
    let kept = HOLDERS * MAX_TAKEN;
    configure_pool(&enemy, 0, kept).await?;
    let mut holding = enemy.open_session().await?;
    let of_kept = |number: usize| take(format!("t{number}"), Some(MAX_TAKEN), None);
    holding.request((0..HOLDERS).map(of_kept)).await?;
    let mut waiting = enemy.open_session().await?;
    waiting.request((0..100).map(|number| take(format!("w{number}"), Some(MAX_TAKEN), None))).await?;
    for round in 1..=enemy.scaled(400, 24) {
        enemy.timed("a configuration", configure_pool(&enemy, round, kept)).await?;
    }
    waiting.close().await?;
    holding.close().await?;
    wait_until(&enemy, "pools", is_idle).await?;
    configure_pool(&enemy, 0, kept).await?;
    let now = shown(&enemy, "pools", "pool").await?;
    let is_whole = now["members_total"] == MAX_MEMBERS && now["free"] == MAX_MEMBERS && now["leaving"] == 0;
    if is_whole { Ok(()) } else { Err(format!("members are lost or left over: {now}")) }
}

/// Takes and returns members again and again.
async fn take_and_return(enemy: &Attacker, worker: usize) -> AttackResult {
    let mut session = enemy.open_session().await?;
    for round in 0..enemy.scaled(300, 20) {
        let (request, refused) = (format!("t{round}"), session.refused);
        // Every fourth wants the same one.
        let wants = match worker % 4 {
            0 => take(request.clone(), None, Some("kept-5".to_owned())),
            _ => take(request.clone(), Some(MAX_TAKEN), None),
        };
        session.request([wants]).await?;
        if session.refused == refused {
            session.wait_granted().await?;
            session.release([request]).await?;
        }
    }
    session.close().await
}

pub(crate) async fn takes(enemy: Attacker) -> AttackResult {
    configure_pool(&enemy, 0, MAX_MEMBERS).await?;
    let first = parking_lot::Mutex::new(None);
    run_concurrently(40, 40, async |worker| {
        if let Err(error) = take_and_return(&enemy, worker).await {
            first.lock().get_or_insert(error);
        }
    })
    .await;
    if let Some(error) = first.into_inner() {
        return Err(error);
    }
    wait_until(&enemy, "pools", |now| is_idle(now) && now["free"] == MAX_MEMBERS).await
}

/// Makes semaphores, pools and latches with as much text as they may have, and requests that wait.
async fn fill(enemy: &Attacker) -> Result<Vec<Session>, String> {
    let text = "x".repeat(1_000);
    let count = enemy.scaled(500, 40);
    run_concurrently(3 * count, 16, async |number| {
        let name = format!("{}-{}", number % 3, number / 3);
        let (kind, verb, body) = match number % 3 {
            0 => ("semaphores", "configure", json!({"name": name, "permits": 9, "description": text})),
            1 => {
                let members: Vec<Value> = (0..20).map(|at| json!({"name": format!("m{at}")})).collect();
                ("pools", "configure", json!({"name": name, "members": members, "description": text}))
            }
            _ => ("latches", "create", json!({"name": name, "total": 9, "description": text})),
        };
        // What is refused is counted.
        _ = enemy.call_thing(kind, verb, body).await;
    })
    .await;
    configure(enemy, 1).await?;
    spawn_waiters(enemy, enemy.scaled(5_000, 500), 1).await
}

pub(crate) async fn lists(enemy: Attacker) -> AttackResult {
    let crowd = fill(&enemy).await?;
    let first = parking_lot::Mutex::new(None);
    run_concurrently(enemy.scaled(2_000, 70), 32, async |number| {
        let list = |of: &str| (format!("GET /v1/namespaces/{}/{of}page_size=1000", enemy.namespace), None);
        let get = |kind: &str, name: &str| {
            let line = format!("POST /v1/namespaces/{}/{kind}/get", enemy.namespace);
            (line, Some(json!({"name": name, "page_size": 1_000})))
        };
        let (line, body) = match number % 7 {
            0 => list("semaphores?"),
            1 => list("pools?"),
            2 => list("latches?"),
            3 => list("waits?kinds=locks,semaphores,pools&"),
            4 => get("semaphores", WANTED),
            5 => get("pools", "1-0"),
            _ => get("latches", "2-0"),
        };
        // One that comes too fast too often is counted as refused.
        match enemy.call_rest(&line, body).await {
            Err(error) if !error.contains("RATE_LIMITED") && !error.contains("UNAVAILABLE") => {
                first.lock().get_or_insert(error);
            }
            _ => {}
        }
    })
    .await;
    for session in crowd {
        session.close().await?;
    }
    first.into_inner().map_or(Ok(()), Err)
}
