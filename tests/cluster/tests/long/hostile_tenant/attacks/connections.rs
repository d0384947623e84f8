//! Sessions and connections.

use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Held;
use serde_json::{Value, json};

use super::AttackResult;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, MAX_CLAIMS, Owner, run_concurrently};
use crate::hostile_tenant::grpc_client::GrpcClient;
use crate::hostile_tenant::session::{self, flat_path, lock_message, write_claim};

const TTL: Duration = Duration::from_secs(600);

pub(crate) async fn lock_info(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(17_000, 1_000);
    let session = enemy.open_session().await?;
    let id = session.id.clone();
    drop(session);
    let tokens = enemy.acquire_many(&Owner::Session(id.clone()), &AcquireOptions::default(), "h", count).await?;
    let held = |(first, token): &(usize, u64)| {
        let (first, token) = (*first, *token);
        let one =
            move |at| Held { path: flat_path(format!("h{at}")), mode: v1::Mode::Write.into(), fencing_token: token };
        (first..count.min(first + MAX_CLAIMS)).map(one)
    };
    let held: Vec<Held> = tokens.iter().flat_map(held).collect();
    for _ in 0..enemy.scaled(10, 3) {
        let mut session = session::open(&enemy.connect().await?, &enemy.namespace, TTL, Some(&id)).await?;
        enemy.timed("a lock info", session.lock_info(&held)).await?;
        if let Some(lost) = session.lost.first() {
            return Err(format!("the session lost something: {lost}"));
        }
    }
    // Then many sessions at once, with holds that are not theirs.
    run_concurrently(enemy.scaled(60, 6), 20, async |_| {
        let in_vain = async {
            let id = enemy.open_session().await?.id.clone();
            let mut session = session::open(&enemy.connect().await?, &enemy.namespace, TTL, Some(&id)).await?;
            session.lock_info(&held[..held.len().min(9_990)]).await?;
            session.close().await
        };
        enemy.timed("a lock info in vain", in_vain).await.ok();
    })
    .await;
    Ok(())
}

pub(crate) async fn keep_alives(enemy: Attacker) -> AttackResult {
    let mut session = enemy.open_session().await?;
    let owner =
        |at: usize| lock_message(format!("t{at}"), format!("r{at}"), vec![write_claim(flat_path(format!("l{at}")))]);
    session.request_locks((0..enemy.scaled(10_000, 1_000)).map(owner)).await?;
    session.keep_alive(enemy.scaled(10_000, 500)).await?;
    let (grpc, id) = (enemy.connect().await?, session.id.clone());
    run_concurrently(enemy.scaled(10_000, 500), 64, async |_| _ = grpc.keep_alive(&enemy.namespace, &id).await).await;
    session.close().await
}

pub(crate) async fn reconnects(enemy: Attacker) -> AttackResult {
    let first = parking_lot::Mutex::new(None);
    run_concurrently(enemy.scaled(50, 8), 50, async |number| {
        let storm = async {
            let mut session = enemy.open_session().await?;
            let id = session.id.clone();
            session.request_locks([lock_message("t", "r", vec![write_claim(flat_path(format!("l{number}")))])]).await?;
            for _ in 0..enemy.scaled(40, 5) {
                // The one before is superseded, and not closed. One that is refused is counted.
                if let Ok(resumed) = session::open(&enemy.connect().await?, &enemy.namespace, TTL, Some(&id)).await {
                    session = resumed;
                }
            }
            // The last that resumed has it, unless others did meanwhile.
            _ = session.close().await;
            Ok(())
        };
        if let Err(error) = storm.await {
            first.lock().get_or_insert(error);
        }
    })
    .await;
    first.into_inner().map_or(Ok(()), Err)
}

pub(crate) async fn full_rate(enemy: Attacker) -> AttackResult {
    let mut frontends = Vec::new();
    for _ in 0..8 {
        frontends.push(enemy.connect().await?);
    }
    let until = Instant::now() + Duration::from_millis(enemy.scaled(10_000, 1_000) as u64);
    run_concurrently(64, 64, async |number| {
        let (grpc, owner) = (&frontends[number % frontends.len()], format!("caller-{number}"));
        while Instant::now() < until {
            acquire_and_release(grpc, &enemy.namespace, &owner).await;
        }
    })
    .await;
    Ok(())
}

/// Takes a lock of its own and gives it up.
pub(crate) async fn acquire_and_release(grpc: &GrpcClient, namespace: &str, owner: &str) {
    let message = v1::AcquireLockRequest {
        namespace: namespace.to_owned(),
        path: flat_path(owner),
        process_id: Some(owner.to_owned()),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    _ = grpc.acquire(message).await;
    let message = v1::ReleaseLockRequest {
        namespace: namespace.to_owned(),
        path: flat_path(owner),
        process_id: Some(owner.to_owned()),
        ..Default::default()
    };
    _ = grpc.release(message).await;
}

/// Opens a session, has more losses told to it than the gateway keeps for it, and reads none of them.
pub(crate) async fn notices(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(4_000, 400);
    let mut session = enemy.open_session().await?;
    let one = |at: usize| lock_message("t", format!("r{at}"), vec![write_claim(flat_path(format!("l{at}")))]);
    session.request_locks((0..count).map(one)).await?;
    let grpc = enemy.connect().await?;
    run_concurrently(count, 16, async |at| {
        let (namespace, path) = (enemy.namespace.clone(), flat_path(format!("l{at}")));
        _ = grpc.delete(v1::DeleteLockRequest { namespace, path, ..Default::default() }).await;
    })
    .await;
    // Whoever connects again is served.
    let resumed = session::open(&enemy.connect().await?, &enemy.namespace, TTL, Some(&session.id)).await?;
    drop(session);
    resumed.close().await
}

/// More connections to one gateway than an account may have, each of which is known to be its own.
pub(crate) async fn connections(enemy: Attacker) -> AttackResult {
    let mut open = Vec::new();
    for _ in 0..enemy.scaled(1_100, 60) {
        // This process may have too few files for all of them.
        let Ok(grpc) = GrpcClient::connect(enemy.gateways[0], &enemy.key, &enemy.calls).await else { break };
        let message = v1::ListLocksRequest { namespace: enemy.namespace.clone(), page_size: 1, ..Default::default() };
        _ = grpc.list(message).await;
        open.push(grpc);
    }
    if open.is_empty() { Err("no connection opens".to_owned()) } else { Ok(()) }
}

/// More looks and releases at once at one gateway than an account may have open.
pub(crate) async fn open_calls(enemy: Attacker) -> AttackResult {
    const CALLS_PER_CONNECTION: usize = 1_000;
    let connections = enemy.scaled(28, 2);
    let mut frontends = Vec::new();
    for _ in 0..connections {
        frontends.push(GrpcClient::connect(enemy.gateways[0], &enemy.key, &enemy.calls).await?);
    }
    let count = connections * CALLS_PER_CONNECTION;
    run_concurrently(count, count, async |number| {
        let (grpc, namespace) = (&frontends[number % connections], enemy.namespace.clone());
        let (path, process_id) = (flat_path("nobody's"), Some("nobody".to_owned()));
        if number.is_multiple_of(3) {
            _ = grpc.get(v1::GetLockRequest { namespace, path, ..Default::default() }).await;
        } else {
            _ = grpc.release(v1::ReleaseLockRequest { namespace, path, process_id, ..Default::default() }).await;
        }
    })
    .await;
    Ok(())
}

/// Tokens, and everything that is known of the account itself.
pub(crate) async fn account_reads(enemy: Attacker) -> AttackResult {
    const READS: [&str; 4] = ["/v1/usage", "/v1/audit?page_size=1000", "/v1/namespaces", "/v1/api-keys?page_size=1000"];
    run_concurrently(enemy.scaled(5_000, 200), 64, async |number| {
        enemy.calls.record_call();
        let done = match READS.get(number % (READS.len() + 1)) {
            Some(path) => enemy.api.fetch::<Value>(&format!("GET {path}"), None).await,
            None => enemy.api.fetch::<Value>("POST /v1/tokens", Some(json!({}))).await,
        };
        if let Err(error) = done {
            enemy.calls.record_error(&error.code);
        }
    })
    .await;
    Ok(())
}

pub(crate) async fn keys(enemy: Attacker) -> AttackResult {
    run_concurrently(enemy.scaled(300, 10), 4, async |_| {
        enemy.calls.record_call();
        let made = enemy.api.fetch::<Value>("POST /v1/api-keys", Some(json!({}))).await;
        match made {
            Ok(key) => _ = enemy.api.delete(&format!("/v1/api-keys/{}", key["key_id"].as_str().unwrap_or("?"))).await,
            Err(error) => enemy.calls.record_error(&error.code),
        }
    })
    .await;
    Ok(())
}
