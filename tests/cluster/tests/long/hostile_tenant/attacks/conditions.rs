//! Conditions of locks: many who await one, signals to all of them, and signals whose receivers leave.

use std::time::{Duration, Instant};

use holdfast_proto::v1::client_message::{Await, Message, Signal};
use holdfast_testkit::wait_out;

use super::AttackResult;
use super::permits::wait_none;
use crate::hostile_tenant::attacker::Attacker;
use crate::hostile_tenant::session::{Session, flat_path, lock_message, write_claim};

/// Of one lock.
const MAX_AWAITING: usize = 1_000;
const LOCK: &str = "jobs";
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A session whose threads, one after the other, take a lock and give it up to await a condition of it. The names of
/// their requests begin so.
async fn spawn_awaits(enemy: &Attacker, lock: &str, name: &str, count: usize) -> Result<Session, String> {
    let mut session = enemy.open_session().await?;
    let each = |number: usize| {
        let id = format!("{name}{number:04}");
        let wants = lock_message(format!("t{number}"), id.clone(), vec![write_claim(flat_path(lock))]);
        let awaits = Await { request_id: id.clone(), ..Await::default() };
        [(id.clone(), Message::Lock(wants)), (id, Message::Await(awaits))]
    };
    session.request((0..count).flat_map(each)).await?;
    // The last of these grants is over.
    session.wait_granted().await?;
    Ok(session)
}

/// Waits until so many await conditions.
async fn wait_for_awaiting(enemy: &Attacker, count: usize) -> AttackResult {
    let (line, begun) = (format!("GET /v1/namespaces/{}/conditions?page_size=1000", enemy.namespace), Instant::now());
    loop {
        let page = enemy.call_rest(&line, None).await?;
        let awaiting = page["conditions"].as_array().into_iter().flatten().filter_map(|row| row["awaiting"].as_u64());
        let awaiting: u64 = awaiting.sum();
        if awaiting == count as u64 {
            return Ok(());
        }
        if begun.elapsed() > WAIT_TIMEOUT {
            return Err(format!("{awaiting} await conditions, and not {count}"));
        }
        wait_out(POLL_INTERVAL).await;
    }
}

/// Waits until the namespace has neither awaits nor waits.
async fn wait_until_idle(enemy: &Attacker) -> AttackResult {
    wait_none(enemy, "conditions").await?;
    wait_none(enemy, "waits").await
}

/// Takes a lock, which must be free, in a session that can signal then by this request.
async fn take(session: &mut Session, lock: &str, request_id: &str) -> AttackResult {
    session.request_locks([lock_message("signaller", request_id, vec![write_claim(flat_path(lock))])]).await?;
    session.wait_granted().await.map(drop)
}

/// Signals by a request that has the lock. Returns how many were woken.
async fn signal(session: &mut Session, request_id: &str, all: bool) -> Result<u64, String> {
    let (request_id, before) = (request_id.to_owned(), session.signalled);
    let signal = Signal { request_id: request_id.clone(), all, ..Signal::default() };
    session.request([(request_id, Message::Signal(signal))]).await?;
    Ok(session.signalled - before)
}

pub(crate) async fn signal_all(enemy: Attacker) -> AttackResult {
    let (locks, count) = (enemy.scaled(10, 3), enemy.scaled(MAX_AWAITING, 150));
    for _ in 0..enemy.scaled(3, 2) {
        let mut sessions = Vec::new();
        for number in 0..locks {
            sessions.push(spawn_awaits(&enemy, &format!("{LOCK}-{number}"), "r", count).await?);
        }
        wait_for_awaiting(&enemy, locks * count).await?;
        let mut signaller = enemy.open_session().await?;
        for number in 0..locks {
            let request = format!("s{number}");
            take(&mut signaller, &format!("{LOCK}-{number}"), &request).await?;
            let woken = enemy.timed("a signal to all", signal(&mut signaller, &request, true)).await?;
            if woken != count as u64 {
                return Err(format!("{woken} of {count} were woken"));
            }
        }
        signaller.close().await?;
        for session in &mut sessions {
            let mut last = String::new();
            for _ in 0..count.min(enemy.scaled(100, 20)) {
                let next = session.wait_granted().await?;
                if next <= last {
                    return Err(format!("{next} has the lock after {last}, which had awaited the signal longer"));
                }
                session.release([next.clone()]).await?;
                last = next;
            }
        }
        for session in sessions {
            session.close().await?;
        }
        wait_until_idle(&enemy).await?;
    }
    Ok(())
}

pub(crate) async fn hand_on(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(MAX_AWAITING - 1, 150);
    for round in 0..enemy.scaled(4, 2) {
        let mut leaving = spawn_awaits(&enemy, LOCK, "r", count).await?;
        let mut last = spawn_awaits(&enemy, LOCK, "last", 1).await?;
        wait_for_awaiting(&enemy, count + 1).await?;
        let mut signaller = enemy.open_session().await?;
        take(&mut signaller, LOCK, "s").await?;
        if signal(&mut signaller, "s", false).await? != 1 {
            return Err("a signal woke nobody".to_owned());
        }
        // Each has the signal when those before it have left; in every other round they leave with their session.
        if round % 2 == 0 {
            let ids: Vec<String> = (0..count).map(|number| format!("r{number:04}")).collect();
            let (some, rest) = ids.split_at(count.min(100));
            for id in some {
                enemy.timed("a signal handed on", leaving.release([id.clone()])).await?;
            }
            leaving.release(rest.to_vec()).await?;
            leaving.close().await?;
        } else {
            let (grpc, id) = (enemy.connect().await?, leaving.id.clone());
            drop(leaving);
            let ended = enemy.timed("the end", grpc.delete_session(&enemy.namespace, &id)).await;
            ended.map_err(|status| status.to_string())?;
        }
        signaller.release(["s".to_owned()]).await?;
        enemy.timed("the grant of the last", last.wait_granted()).await?;
        last.close().await?;
        signaller.close().await?;
        wait_until_idle(&enemy).await?;
    }
    Ok(())
}

pub(crate) async fn pairs(enemy: Attacker) -> AttackResult {
    // Each of the two gives the lock up with a signal to the other one.
    let (mut one, mut two) = (enemy.open_session().await?, enemy.open_session().await?);
    take(&mut one, LOCK, "a").await?;
    for round in 0..enemy.scaled(500, 50) {
        let (holding, id, other, next) = match round % 2 {
            0 => (&mut one, "a", &mut two, "b"),
            _ => (&mut two, "b", &mut one, "a"),
        };
        let woken = signal(holding, id, false).await?;
        if woken != u64::from(round > 0) {
            return Err(format!("{woken} were woken by the signal {round}"));
        }
        if round == 0 {
            other.request_locks([lock_message("signaller", next, vec![write_claim(flat_path(LOCK))])]).await?;
        }
        let awaits = Await { request_id: id.to_owned(), ..Await::default() };
        holding.request([(id.to_owned(), Message::Await(awaits))]).await?;
        enemy.timed("a lock given up", other.wait_granted()).await?;
    }
    one.close().await?;
    two.close().await?;
    wait_until_idle(&enemy).await
}
