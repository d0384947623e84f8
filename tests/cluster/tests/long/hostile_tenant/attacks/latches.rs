//! Latches: many jobs, and many who wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::wait_for_latch_response::Outcome;
use holdfast_testkit::wait_out;
use serde_json::json;
use tokio::task::JoinSet;

use super::AttackResult;
use crate::hostile_tenant::attacker::{Attacker, is_retryable, run_concurrently};
use crate::hostile_tenant::grpc_client::{GrpcClient, refused_limit};
use crate::hostile_tenant::session::flat_path;

/// Ids that one call counts.
const MAX_IDS: usize = 100;
/// Of one latch that are held back, and of one account at one gateway.
const MAX_QUESTIONS: usize = 10_000;
const QUESTIONS_PER_CONNECTION: usize = 500;
const WAIT_MS: u64 = 600_000;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take until all wait, and until nobody does any more.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Before a caller that is refused for now asks again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

async fn create(enemy: &Attacker, name: &str, total: usize) -> AttackResult {
    enemy.call_thing("latches", "create", json!({"name": name, "total": total})).await.map(drop)
}

pub(crate) async fn ids(enemy: Attacker) -> AttackResult {
    const TIMES: usize = 2;
    let total = enemy.scaled(100_000, 5_000);
    create(&enemy, "l", total).await?;
    let (counted, first, calls) = (AtomicUsize::new(0), parking_lot::Mutex::new(None), total / MAX_IDS);
    // Each id is reported twice, and counts once.
    run_concurrently(TIMES * calls, 16, async |number| {
        let from = number % calls * MAX_IDS;
        let ids: Vec<String> = (from..from + MAX_IDS).map(|id| format!("job-{id}")).collect();
        match enemy.call_thing("latches", "count_down", json!({"name": "l", "ids": ids})).await {
            Ok(answer) => _ = counted.fetch_add(answer["counted"].as_u64().unwrap_or(0) as usize, Ordering::Relaxed),
            Err(error) => _ = first.lock().get_or_insert(error),
        }
    })
    .await;
    if let Some(error) = first.into_inner() {
        return Err(error);
    }
    let shown = enemy.call_thing("latches", "get", json!({"name": "l", "page_size": 1_000})).await?;
    let latch = &shown["latch"];
    match (counted.into_inner(), latch["status"].as_str()) {
        (all, Some("COMPLETED")) if all == total && latch["done"] == total => Ok(()),
        (counted, _) => Err(format!("{counted} of {total} jobs counted: {latch}")),
    }
}

/// Callers that wait for a latch at the first gateway.
struct Crowd {
    callers: JoinSet<AttackResult>,
    refused: Arc<AtomicUsize>,
    count: usize,
}

impl Crowd {
    /// So many callers that wait until the latch is complete.
    async fn spawn(enemy: &Attacker, latch: &str, count: usize) -> Result<Self, String> {
        let (mut callers, refused) = (JoinSet::new(), Arc::<AtomicUsize>::default());
        for first in (0..count).step_by(QUESTIONS_PER_CONNECTION) {
            let grpc = GrpcClient::connect(enemy.gateways[0], &enemy.key, &enemy.calls).await?;
            let message = v1::WaitForLatchRequest {
                namespace: enemy.namespace.clone(),
                path: flat_path(latch),
                wait_ms: WAIT_MS,
                ..Default::default()
            };
            for _ in first..count.min(first + QUESTIONS_PER_CONNECTION) {
                callers.spawn(wait_until_complete(grpc.clone(), message.clone(), Arc::clone(&refused)));
            }
        }
        Ok(Self { callers, refused, count })
    }

    /// Waits until all of them wait or are refused.
    async fn wait_until_all_wait(&self, enemy: &Attacker) -> AttackResult {
        let is_so = |asked| asked + self.refused.load(Ordering::Relaxed) >= self.count;
        wait_for_questions(enemy, &format!("{} wait for a latch", self.count), is_so).await
    }
}

/// Waits with one call after the other, as long as the answer is to try again. One that is one too many is counted.
async fn wait_until_complete(
    grpc: GrpcClient,
    message: v1::WaitForLatchRequest,
    refused: Arc<AtomicUsize>,
) -> AttackResult {
    loop {
        match grpc.wait_for_latch(message.clone()).await {
            Ok(answer) if answer.outcome() == Outcome::Completed => return Ok(()),
            Ok(answer) => return Err(format!("a waiter is told {:?}", answer.outcome())),
            Err(status) => match refused_limit(&status).as_deref() {
                Some("max_held_questions") => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                // Those who went before may still be there for a moment.
                Some("held_questions_of_latch") => {}
                _ if is_retryable(&status) => {}
                _ => return Err(format!("a waiter is refused: {status}")),
            },
        }
        wait_out(RETRY_DELAY).await;
    }
}

/// Waits until so many wait for latches at the first gateway, as it says itself.
async fn wait_for_questions(enemy: &Attacker, what: &str, is_so: impl Fn(usize) -> bool) -> AttackResult {
    let begun = Instant::now();
    loop {
        let usage = enemy.call_rest("GET /v1/usage", None).await?;
        let mut rows = usage["limit_usage"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["limit"] == "max_held_questions");
        let asked = row.and_then(|row| row["used"].as_u64()).ok_or("no such limit is shown")? as usize;
        if is_so(asked) {
            return Ok(());
        }
        if begun.elapsed() > WAIT_TIMEOUT {
            return Err(format!("{what}: not within {WAIT_TIMEOUT:?}, {asked} do"));
        }
        wait_out(POLL_INTERVAL).await;
    }
}

pub(crate) async fn waiters(enemy: Attacker) -> AttackResult {
    for round in 0..enemy.scaled(3, 2) {
        let latch = format!("l{round}");
        create(&enemy, &latch, 1).await?;
        let mut crowd = Crowd::spawn(&enemy, &latch, enemy.scaled(MAX_QUESTIONS, 500)).await?;
        crowd.wait_until_all_wait(&enemy).await?;
        let complete = async {
            enemy.call_thing("latches", "count_down", json!({"name": latch, "ids": ["last"]})).await?;
            while let Some(told) = crowd.callers.join_next().await {
                told.map_err(|error| error.to_string())??;
            }
            Ok::<(), String>(())
        };
        enemy.timed("the telling of all", complete).await?;
        wait_for_questions(&enemy, "nobody waits for a latch", |asked| asked == 0).await?;
    }
    Ok(())
}

pub(crate) async fn hang_ups(enemy: Attacker) -> AttackResult {
    create(&enemy, "l", 1).await?;
    for _ in 0..enemy.scaled(4, 3) {
        let mut crowd = Crowd::spawn(&enemy, "l", enemy.scaled(MAX_QUESTIONS, 500)).await?;
        // As many fit again only once nothing is kept for those who hung up.
        crowd.wait_until_all_wait(&enemy).await?;
        crowd.callers.abort_all();
        while crowd.callers.join_next().await.is_some() {}
        wait_for_questions(&enemy, "those who hung up wait no more", |asked| asked == 0).await?;
    }
    // The latch is as it was.
    enemy.call_thing("latches", "count_down", json!({"name": "l", "ids": ["last"]})).await?;
    let answer = enemy.call_thing("latches", "wait", json!({"name": "l", "wait_ms": 1_000})).await?;
    if answer["outcome"] == "COMPLETED" { Ok(()) } else { Err(format!("the latch is not complete: {answer}")) }
}
