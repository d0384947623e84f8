//! Watching and looking.

use holdfast_proto::v1;
use serde_json::Value;

use super::AttackResult;
use super::connections::acquire_and_release;
use super::large_payloads::kibibyte_of_metadata;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, Owner, run_concurrently};
use crate::hostile_tenant::session::{flat_path, lock_message, write_claim};

const EVENT_PAIRS: [usize; 2] = [4_000, 200];

/// Makes events, from several callers.
async fn produce_events(enemy: &Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let count = enemy.scaled(EVENT_PAIRS[0], EVENT_PAIRS[1]);
    run_concurrently(count, 16, async |number| {
        acquire_and_release(&grpc, &enemy.namespace, &format!("caller-{}", number % 64)).await
    })
    .await;
    Ok(())
}

async fn open_watches(
    enemy: &Attacker,
    count: usize,
    prefix: Vec<String>,
) -> Result<Vec<tonic::Streaming<v1::Event>>, String> {
    let mut streams = Vec::new();
    let mut grpc = enemy.connect().await?;
    for number in 0..count {
        // So many of them share a connection.
        if number % 50 == 49 {
            grpc = enemy.connect().await?;
        }
        let message = v1::WatchRequest {
            namespace: enemy.namespace.clone(),
            prefix: prefix.clone(),
            from_revision: Some(1),
            kinds: Vec::new(),
        };
        streams.push(grpc.watch(message).await.map_err(|status| format!("a watcher is refused: {status}"))?);
    }
    Ok(streams)
}

pub(crate) async fn watchers(enemy: Attacker) -> AttackResult {
    let streams = open_watches(&enemy, enemy.scaled(300, 40), flat_path("nobody is here")).await?;
    produce_events(&enemy).await?;
    drop(streams);
    Ok(())
}

pub(crate) async fn unread(enemy: Attacker) -> AttackResult {
    let streams = open_watches(&enemy, enemy.scaled(100, 20), vec![]).await?;
    produce_events(&enemy).await?;
    drop(streams);
    Ok(())
}

pub(crate) async fn lists(enemy: Attacker) -> AttackResult {
    let mut holding = enemy.open_session().await?;
    holding.request_locks([lock_message("h", "h", vec![write_claim(flat_path("wanted"))])]).await?;
    let crowd = enemy.spawn_waiters(enemy.scaled(5_000, 500), |_| vec![write_claim(flat_path("wanted"))]).await?;
    let grpc = enemy.connect().await?;
    let terms = AcquireOptions { mode: v1::Mode::Read, metadata: kibibyte_of_metadata(), ..AcquireOptions::default() };
    run_concurrently(enemy.scaled(1_000, 200), 16, async |number| {
        let owner = Owner::Process(format!("reader-{number}"));
        _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, vec![flat_path("read")])).await;
    })
    .await;
    let path = format!("/v1/namespaces/{}/waits", enemy.namespace);
    run_concurrently(enemy.scaled(400, 20), 8, async |number| {
        if number % 2 == 0 {
            enemy.calls.record_call();
            _ = enemy.api.fetch::<Value>(&format!("GET {path}"), None).await;
        } else {
            let message = v1::GetLockRequest {
                namespace: enemy.namespace.clone(),
                path: flat_path("read"),
                ..Default::default()
            };
            _ = grpc.get(message).await;
        }
    })
    .await;
    drop(crowd);
    holding.close().await
}
