//! Much that ends together.

use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_testkit::wait_out;

use super::AttackResult;
use super::large_payloads::kibibyte_of_metadata;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, Owner, run_concurrently, timestamp_in};
use crate::hostile_tenant::session::flat_path;

const TTL: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take until everything has ended that is over.
const END_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn session(enemy: Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let id = enemy.create_session(&grpc, TTL).await?;
    enemy
        .acquire_many(&Owner::Session(id.clone()), &AcquireOptions::default(), "held-", enemy.scaled(200_000, 5_000))
        .await?;
    enemy.timed("the end", grpc.delete_session(&enemy.namespace, &id)).await.map_err(|status| status.to_string())?;
    wait_nothing_held(&enemy).await
}

pub(crate) async fn sessions(enemy: Attacker) -> AttackResult {
    let (count, holds) = (enemy.scaled(500, 40), enemy.scaled(200, 20));
    let grpc = enemy.connect().await?;
    for ttl in [TTL, Duration::from_secs(3)] {
        let ids = parking_lot::Mutex::new(Vec::new());
        run_concurrently(count, 32, async |number| {
            let Ok(id) = enemy.create_session(&grpc, ttl).await else { return };
            let owner = Owner::Session(id.clone());
            // What is refused is counted; the attack is as large as it may be.
            _ = enemy.acquire_many(&owner, &AcquireOptions::default(), &format!("s{number}-"), holds).await;
            ids.lock().push(id);
        })
        .await;
        let ids = ids.into_inner();
        if ttl == TTL {
            run_concurrently(ids.len(), ids.len().max(1), async |at| {
                _ = grpc.delete_session(&enemy.namespace, &ids[at]).await;
            })
            .await;
        }
        wait_nothing_held(&enemy).await?;
    }
    Ok(())
}

pub(crate) async fn expiry(enemy: Attacker) -> AttackResult {
    // Far enough away for all of it to be taken before, on a slow machine too; what comes too late is refused.
    let ahead = if enemy.is_full { Duration::from_secs(15) } else { Duration::from_secs(2) };
    let terms = AcquireOptions { expires_at: Some(timestamp_in(ahead)), ..AcquireOptions::default() };
    let count = enemy.scaled(100_000, 3_000);
    run_concurrently(16, 4, async |number| {
        let owner = Owner::Process(format!("owner-{number}"));
        _ = enemy.acquire_many(&owner, &terms, &format!("p{number}-"), count / 16).await;
    })
    .await;
    wait_nothing_held(&enemy).await
}

pub(crate) async fn ticks(enemy: Attacker) -> AttackResult {
    // So many milliseconds have a deadline each.
    let count = enemy.scaled(10_000, 500);
    let ahead = if enemy.is_full { Duration::from_secs(5) } else { Duration::from_secs(1) };
    let (begun, grpc) = (Instant::now(), enemy.connect().await?);
    run_concurrently(count, 64, async |at| {
        // From one instant on, not from each call.
        let due = (ahead + Duration::from_millis(at as u64)).saturating_sub(begun.elapsed());
        let terms = AcquireOptions { expires_at: Some(timestamp_in(due)), ..AcquireOptions::default() };
        let owner = Owner::Process(format!("owner-{at}"));
        _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, vec![flat_path(format!("tick-{at}"))])).await;
    })
    .await;
    wait_nothing_held(&enemy).await
}

pub(crate) async fn release_all(enemy: Attacker) -> AttackResult {
    let owner = "owner".to_owned();
    let count = enemy.scaled(100_000, 5_000);
    enemy.acquire_many(&Owner::Process(owner.clone()), &AcquireOptions::default(), "held-", count).await?;
    let message = v1::ReleaseLocksRequest {
        namespace: enemy.namespace.clone(),
        process_id: Some(owner),
        all: true,
        ..Default::default()
    };
    let grpc = enemy.connect().await?;
    enemy.timed("the release", grpc.release_set(message)).await.map_err(|status| status.to_string())?;
    wait_nothing_held(&enemy).await
}

pub(crate) async fn delete(enemy: Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let terms = AcquireOptions { mode: v1::Mode::Read, metadata: kibibyte_of_metadata(), ..AcquireOptions::default() };
    for _ in 0..enemy.scaled(10, 2) {
        run_concurrently(enemy.scaled(1_000, 200), 16, async |number| {
            let owner = Owner::Process(format!("reader-{number}"));
            _ = grpc.acquire_set(enemy.acquire_request(&owner, &terms, vec![flat_path("read")])).await;
        })
        .await;
        let message =
            v1::DeleteLockRequest { namespace: enemy.namespace.clone(), path: flat_path("read"), ..Default::default() };
        enemy.timed("the deletion", grpc.delete(message)).await.map_err(|status| status.to_string())?;
    }
    Ok(())
}

pub(crate) async fn reset(enemy: Attacker) -> AttackResult {
    let (owners, each) = (enemy.scaled(800, 40), enemy.scaled(64, 50));
    run_concurrently(owners, 16, async |number| {
        let owner = Owner::Process(format!("owner-{number}"));
        _ = enemy.acquire_many(&owner, &AcquireOptions::default(), &format!("o{number}-"), each).await;
    })
    .await;
    let grpc = enemy.connect().await?;
    let message = |living: usize| v1::ResetNamespaceRequest {
        namespace: enemy.namespace.clone(),
        live_owners: Some(v1::Owners { ids: (0..living).map(|number| format!("owner-{number}")).collect() }),
        before_revision: None,
    };
    // The first reset names half of the owners as live, the next ones all that remain, and the last one none.
    for living in [owners / 2, owners / 2, owners / 2, 0] {
        enemy.timed("the reset", grpc.reset(message(living))).await.map_err(|status| status.to_string())?;
    }
    wait_nothing_held(&enemy).await
}

pub(crate) async fn purge(enemy: Attacker) -> AttackResult {
    let grpc = enemy.connect().await?;
    let inner = Attacker { namespace: enemy.extra_namespaces[0].clone(), ..enemy.clone() };
    for _ in 0..enemy.scaled(3, 1) {
        grpc.create_namespace(&inner.namespace).await.map_err(|status| status.to_string())?;
        let owner = Owner::Process("owner".to_owned());
        inner.acquire_many(&owner, &AcquireOptions::default(), "held-", enemy.scaled(20_000, 2_000)).await?;
        let deleted = enemy.timed("the deletion", grpc.delete_namespace(&inner.namespace)).await;
        deleted.map_err(|status| status.to_string())?;
    }
    run_concurrently(enemy.extra_namespaces.len() * enemy.scaled(20, 2), 8, async |number| {
        let name = &enemy.extra_namespaces[number % enemy.extra_namespaces.len()];
        // Several make and delete the same at once, so that some of it is refused.
        _ = grpc.create_namespace(name).await;
        _ = grpc.delete_namespace(name).await;
    })
    .await;
    Ok(())
}

/// Waits until everything has ended.
pub(super) async fn wait_nothing_held(enemy: &Attacker) -> AttackResult {
    let (grpc, begun) = (enemy.connect().await?, Instant::now());
    let message = v1::ListLocksRequest { namespace: enemy.namespace.clone(), page_size: 1, ..Default::default() };
    let mut last = String::new();
    while begun.elapsed() < END_TIMEOUT {
        match grpc.list(message.clone()).await {
            Ok(page) if page.locks.is_empty() => return Ok(()),
            Ok(_) => "something is still held".clone_into(&mut last),
            Err(status) => last = status.to_string(),
        }
        wait_out(POLL_INTERVAL).await;
    }
    Err(format!("not over within {END_TIMEOUT:?}: {last}"))
}
