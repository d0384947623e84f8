//! Watching and looking.

use holdfast_proto::v1;
use reqwest::Method;
use serde_json::Value;

use super::Done;
use super::bytes::kibibyte;
use super::connections::pair;
use crate::enemy::{Enemy, Owner, Terms, at_once};
use crate::session::{flat, lock, write};

const PAIRS: [usize; 2] = [4_000, 200];

/// Makes events, from several callers.
async fn events(enemy: &Enemy) -> Done {
    let door = enemy.door().await?;
    let count = enemy.size(PAIRS[0], PAIRS[1]);
    at_once(count, 16, async |number| pair(&door, &enemy.namespace, &format!("caller-{}", number % 64)).await).await;
    Ok(())
}

async fn watch(enemy: &Enemy, count: usize, prefix: Vec<String>) -> Result<Vec<tonic::Streaming<v1::Event>>, String> {
    let mut streams = Vec::new();
    let mut door = enemy.door().await?;
    for number in 0..count {
        // So many of them share a connection.
        if number % 50 == 49 {
            door = enemy.door().await?;
        }
        let message =
            v1::WatchRequest { namespace: enemy.namespace.clone(), prefix: prefix.clone(), from_revision: Some(1) };
        streams.push(door.watch(message).await.map_err(|status| format!("a watcher is refused: {status}"))?);
    }
    Ok(streams)
}

pub(crate) async fn watchers(enemy: Enemy) -> Done {
    let streams = watch(&enemy, enemy.size(300, 40), flat("nobody is here")).await?;
    events(&enemy).await?;
    drop(streams);
    Ok(())
}

pub(crate) async fn unread(enemy: Enemy) -> Done {
    let streams = watch(&enemy, enemy.size(100, 20), vec![]).await?;
    events(&enemy).await?;
    drop(streams);
    Ok(())
}

pub(crate) async fn lists(enemy: Enemy) -> Done {
    let mut holding = enemy.open().await?;
    holding.ask([lock("h", "h", vec![write(flat("wanted"))])]).await?;
    let crowd = enemy.crowd(enemy.size(5_000, 500), |_| vec![write(flat("wanted"))]).await?;
    let door = enemy.door().await?;
    let terms = Terms { mode: v1::Mode::Read, metadata: kibibyte(), ..Terms::default() };
    at_once(enemy.size(1_000, 200), 16, async |number| {
        let owner = Owner::Process(format!("reader-{number}"));
        _ = door.acquire_set(enemy.set(&owner, &terms, vec![flat("read")])).await;
    })
    .await;
    let path = format!("/v1/namespaces/{}/waits", enemy.namespace);
    at_once(enemy.size(400, 20), 8, async |number| {
        if number % 2 == 0 {
            enemy.calls.count();
            _ = enemy.api.json::<Value>(Method::GET, &path, None).await;
        } else {
            let message =
                v1::GetLockRequest { namespace: enemy.namespace.clone(), path: flat("read"), ..Default::default() };
            _ = door.get(message).await;
        }
    })
    .await;
    drop(crowd);
    holding.close().await
}
