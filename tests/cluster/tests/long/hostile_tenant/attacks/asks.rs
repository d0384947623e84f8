//! Asking for what many hold, again and again, and holds that stay kept from others after their release.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Lock;
use serde_json::{Value, json};

use super::AttackResult;
use super::bulk_ends::wait_nothing_held;
use super::large_payloads::kibibyte_of_metadata;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, MAX_CLAIMS, Owner, run_concurrently};
use crate::hostile_tenant::grpc_client::GrpcClient;
use crate::hostile_tenant::session::{self, Session, flat_path, lock_message, read_claim};

/// Of one lock.
const MAX_READERS: usize = 1_000;
const MAX_REASON_BYTES: usize = 256;
const LOCK: &str = "read";
const MAX_WITHIN_MS: usize = 600_000;
const SESSION_TTL: Duration = Duration::from_secs(600);
/// How long a lock is kept from others after its grant.
const AT_LEAST: Duration = Duration::from_secs(2);

/// Half of the readers are threads of a session, and half are processes. Returns the session and the number of readers.
async fn spawn_readers(enemy: &Attacker) -> Result<(Session, usize), String> {
    let half = enemy.scaled(MAX_READERS, 200) / 2;
    let mut session = enemy.open_session().await?;
    let thread = |at: usize| Lock {
        metadata: kibibyte_of_metadata(),
        ..lock_message(format!("t{at}"), format!("r{at}"), vec![read_claim(flat_path(LOCK))])
    };
    session.request_locks((0..half).map(thread)).await?;
    let (grpc, granted) = (enemy.connect().await?, AtomicUsize::new(half - session.refused));
    let terms = AcquireOptions { mode: v1::Mode::Read, metadata: kibibyte_of_metadata(), ..AcquireOptions::default() };
    run_concurrently(half, 16, async |number| {
        let owner = Owner::Process(format!("reader-{number}"));
        let answer = grpc.acquire_set(enemy.acquire_request(&owner, &terms, vec![flat_path(LOCK)])).await;
        granted.fetch_add(usize::from(answer.is_ok_and(|answer| answer.success)), Ordering::Relaxed);
    })
    .await;
    Ok((session, granted.into_inner()))
}

/// Asks all readers. One that comes too fast too often is counted as refused.
async fn ask_readers(enemy: &Attacker, terms: Value, readers: usize) -> AttackResult {
    let mut body = json!({"name": LOCK, "reason": "x".repeat(MAX_REASON_BYTES)});
    for (field, value) in terms.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    match enemy.call_thing("lock-sets", "ask-release", body).await {
        Ok(answer) if answer["asked"] == readers => Ok(()),
        Ok(answer) => Err(format!("{readers} should be asked: {} are", answer["asked"])),
        Err(error) if error.contains("RATE_LIMITED") || error.contains("UNAVAILABLE") => Ok(()),
        Err(error) => Err(error),
    }
}

pub(crate) async fn readers(enemy: Attacker) -> AttackResult {
    // The session is told of each request, and reads none of it.
    let (session, readers) = spawn_readers(&enemy).await?;
    let first = parking_lot::Mutex::new(None);
    run_concurrently(enemy.scaled(600, 45), 8, async |number| {
        let terms = match number % 3 {
            0 => json!({}),
            // The deadline is brought forward each time.
            1 => json!({"within_ms": MAX_WITHIN_MS - 100 * number, "force": true}),
            // It is not put off.
            _ => json!({"within_ms": MAX_WITHIN_MS, "force": true}),
        };
        if let Err(error) = ask_readers(&enemy, terms, readers).await {
            first.lock().get_or_insert(error);
        }
    })
    .await;
    if let Some(error) = first.into_inner() {
        return Err(error);
    }
    let at_once = async {
        ask_readers(&enemy, json!({"force": true}), readers).await?;
        wait_nothing_held(&enemy).await
    };
    enemy.timed("the end of all", at_once).await?;
    // Whoever connects again is served.
    let resumed = session::open(&enemy.connect().await?, &enemy.namespace, SESSION_TTL, Some(&session.id)).await?;
    drop(session);
    resumed.close().await
}

/// Takes many locks that are kept from others for a while, and releases them, again and again.
async fn take_and_release(enemy: &Attacker, grpc: &GrpcClient, worker: usize) -> AttackResult {
    let paths: Vec<_> = (0..MAX_CLAIMS).map(|at| flat_path(format!("kept-{worker}-{at}"))).collect();
    let acquire = |process_id: String, at_least: Duration| v1::AcquireLocksRequest {
        at_least_ms: at_least.as_millis() as u64,
        ..enemy.acquire_request(&Owner::Process(process_id), &AcquireOptions::default(), paths.clone())
    };
    let release = |process_id: String| v1::ReleaseLocksRequest {
        namespace: enemy.namespace.clone(),
        process_id: Some(process_id),
        all: true,
        ..Default::default()
    };
    let (owner, other) = (format!("owner-{worker}"), format!("other-{worker}"));
    let begun = Instant::now();
    for round in 0..enemy.scaled(100, 10) {
        // What is refused is counted.
        let taken = grpc.acquire_set(acquire(owner.clone(), AT_LEAST)).await.is_ok_and(|answer| answer.success);
        _ = grpc.release(release_one(enemy, &owner, &paths[0])).await;
        _ = grpc.release_set(release(owner.clone())).await;
        // Later, the time since the first grant is over at some point, and then somebody else may have them.
        if round > 0 || !taken {
            continue;
        }
        let got = grpc.acquire_set(acquire(other.clone(), Duration::ZERO)).await.is_ok_and(|answer| answer.success);
        if got && begun.elapsed() < AT_LEAST {
            return Err(format!("{other} got what {owner} had for less than {AT_LEAST:?}"));
        }
        _ = grpc.release_set(release(other.clone())).await;
    }
    // A release that was refused is made up for.
    for process_id in [owner, other] {
        enemy.call_thing("lock-sets", "release", json!({"process_id": process_id, "all": true})).await?;
    }
    Ok(())
}

/// A release of one lock by its path.
fn release_one(enemy: &Attacker, owner: &str, path: &[String]) -> v1::ReleaseLockRequest {
    v1::ReleaseLockRequest {
        namespace: enemy.namespace.clone(),
        path: path.to_vec(),
        process_id: Some(owner.to_owned()),
        ..Default::default()
    }
}

pub(crate) async fn kept(enemy: Attacker) -> AttackResult {
    let (grpc, first) = (enemy.connect().await?, parking_lot::Mutex::new(None));
    let workers = enemy.scaled(32, 8);
    run_concurrently(workers, workers, async |worker| {
        if let Err(error) = take_and_release(&enemy, &grpc, worker).await {
            first.lock().get_or_insert(error);
        }
    })
    .await;
    if let Some(error) = first.into_inner() {
        return Err(error);
    }
    wait_nothing_held(&enemy).await
}
