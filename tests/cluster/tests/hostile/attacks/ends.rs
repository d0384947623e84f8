//! Much that ends together.

use std::time::{Duration, Instant};

use holdfast_proto::v1;

use super::Done;
use super::bytes::kibibyte;
use crate::enemy::{Enemy, Owner, Terms, at_once, in_the_future};
use crate::pause::wait_for;
use crate::session::flat;

const TTL: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it may take until everything has ended that is over.
const OVER_WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn session(enemy: Enemy) -> Done {
    let door = enemy.door().await?;
    let id = enemy.quiet_session(&door, TTL).await?;
    enemy.hold(&Owner::Session(id.clone()), &Terms::default(), "held-", enemy.size(200_000, 5_000)).await?;
    enemy.timed("the end", door.delete_session(&enemy.namespace, &id)).await.map_err(|status| status.to_string())?;
    nothing_is_held(&enemy).await
}

pub(crate) async fn sessions(enemy: Enemy) -> Done {
    let (count, holds) = (enemy.size(500, 40), enemy.size(200, 20));
    let door = enemy.door().await?;
    for ttl in [TTL, Duration::from_secs(3)] {
        let ids = parking_lot::Mutex::new(Vec::new());
        at_once(count, 32, async |number| {
            let Ok(id) = enemy.quiet_session(&door, ttl).await else { return };
            let owner = Owner::Session(id.clone());
            // What is refused is counted; the attack is as large as it may be.
            _ = enemy.hold(&owner, &Terms::default(), &format!("s{number}-"), holds).await;
            ids.lock().push(id);
        })
        .await;
        let ids = ids.into_inner();
        if ttl == TTL {
            at_once(ids.len(), ids.len().max(1), async |at| {
                _ = door.delete_session(&enemy.namespace, &ids[at]).await;
            })
            .await;
        }
        nothing_is_held(&enemy).await?;
    }
    Ok(())
}

pub(crate) async fn expiry(enemy: Enemy) -> Done {
    // Far enough away for all of it to be taken before, on a slow machine too; what comes too late is refused.
    let ahead = if enemy.is_full { Duration::from_secs(15) } else { Duration::from_secs(2) };
    let terms = Terms { expires_at: Some(in_the_future(ahead)), ..Terms::default() };
    let count = enemy.size(100_000, 3_000);
    at_once(16, 4, async |number| {
        let owner = Owner::Process(format!("owner-{number}"));
        _ = enemy.hold(&owner, &terms, &format!("p{number}-"), count / 16).await;
    })
    .await;
    nothing_is_held(&enemy).await
}

pub(crate) async fn release_all(enemy: Enemy) -> Done {
    let owner = "owner".to_owned();
    let count = enemy.size(100_000, 5_000);
    enemy.hold(&Owner::Process(owner.clone()), &Terms::default(), "held-", count).await?;
    let message = v1::ReleaseLocksRequest {
        namespace: enemy.namespace.clone(),
        process_id: Some(owner),
        all: true,
        ..Default::default()
    };
    let door = enemy.door().await?;
    enemy.timed("the release", door.release_set(message)).await.map_err(|status| status.to_string())?;
    nothing_is_held(&enemy).await
}

pub(crate) async fn delete(enemy: Enemy) -> Done {
    let door = enemy.door().await?;
    let terms = Terms { mode: v1::Mode::Read, metadata: kibibyte(), ..Terms::default() };
    for _ in 0..enemy.size(10, 2) {
        at_once(enemy.size(1_000, 200), 16, async |number| {
            let owner = Owner::Process(format!("reader-{number}"));
            _ = door.acquire_set(enemy.set(&owner, &terms, vec![flat("read")])).await;
        })
        .await;
        let message =
            v1::DeleteLockRequest { namespace: enemy.namespace.clone(), path: flat("read"), ..Default::default() };
        enemy.timed("the deletion", door.delete(message)).await.map_err(|status| status.to_string())?;
    }
    Ok(())
}

pub(crate) async fn reset(enemy: Enemy) -> Done {
    let (owners, each) = (enemy.size(800, 40), enemy.size(64, 50));
    at_once(owners, 16, async |number| {
        let owner = Owner::Process(format!("owner-{number}"));
        _ = enemy.hold(&owner, &Terms::default(), &format!("o{number}-"), each).await;
    })
    .await;
    let door = enemy.door().await?;
    let message = |living: usize| v1::ResetNamespaceRequest {
        namespace: enemy.namespace.clone(),
        live_owners: Some(v1::Owners { ids: (0..living).map(|number| format!("owner-{number}")).collect() }),
        before_revision: None,
    };
    // The first finds half of them alive, the others all that live, and the last nobody.
    for living in [owners / 2, owners / 2, owners / 2, 0] {
        enemy.timed("the reset", door.reset(message(living))).await.map_err(|status| status.to_string())?;
    }
    nothing_is_held(&enemy).await
}

pub(crate) async fn purge(enemy: Enemy) -> Done {
    let door = enemy.door().await?;
    let inner = Enemy { namespace: enemy.more_namespaces[0].clone(), ..enemy.clone() };
    for _ in 0..enemy.size(3, 1) {
        door.create_namespace(&inner.namespace).await.map_err(|status| status.to_string())?;
        let owner = Owner::Process("owner".to_owned());
        inner.hold(&owner, &Terms::default(), "held-", enemy.size(20_000, 2_000)).await?;
        let deleted = enemy.timed("the deletion", door.delete_namespace(&inner.namespace)).await;
        deleted.map_err(|status| status.to_string())?;
    }
    at_once(enemy.more_namespaces.len() * enemy.size(20, 2), 8, async |number| {
        let name = &enemy.more_namespaces[number % enemy.more_namespaces.len()];
        // Several make and delete the same at once, so that some of it is refused.
        _ = door.create_namespace(name).await;
        _ = door.delete_namespace(name).await;
    })
    .await;
    Ok(())
}

/// Waits until everything has ended.
async fn nothing_is_held(enemy: &Enemy) -> Done {
    let (door, begun) = (enemy.door().await?, Instant::now());
    let message = v1::ListLocksRequest { namespace: enemy.namespace.clone(), page_size: 1, ..Default::default() };
    let mut last = String::new();
    while begun.elapsed() < OVER_WITHIN {
        match door.list(message.clone()).await {
            Ok(page) if page.locks.is_empty() => return Ok(()),
            Ok(_) => "something is still held".clone_into(&mut last),
            Err(status) => last = status.to_string(),
        }
        wait_for(LOOK_EVERY).await;
    }
    Err(format!("not over within {OVER_WITHIN:?}: {last}"))
}
