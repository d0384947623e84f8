//! Sessions and connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Held;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::Done;
use crate::door::Door;
use crate::enemy::{CLAIMS, Enemy, Owner, Terms, at_once};
use crate::session::{self, flat, lock, write};

const TTL: Duration = Duration::from_secs(600);

pub(crate) async fn lock_info(enemy: Enemy) -> Done {
    let count = enemy.size(17_000, 1_000);
    let session = enemy.open().await?;
    let id = session.id.clone();
    drop(session);
    let tokens = enemy.hold(&Owner::Session(id.clone()), &Terms::default(), "h", count).await?;
    let held = |(first, token): &(usize, u64)| {
        let (first, token) = (*first, *token);
        let one = move |at| Held { path: flat(format!("h{at}")), mode: v1::Mode::Write.into(), fencing_token: token };
        (first..count.min(first + CLAIMS)).map(one)
    };
    let held: Vec<Held> = tokens.iter().flat_map(held).collect();
    for _ in 0..enemy.size(10, 3) {
        let mut session = session::open(&enemy.door().await?, &enemy.namespace, TTL, Some(&id)).await?;
        enemy.timed("a lock info", session.lock_info(held.clone())).await?;
        if let Some(lost) = session.lost.first() {
            return Err(format!("the session lost something: {lost}"));
        }
    }
    Ok(())
}

pub(crate) async fn keep_alives(enemy: Enemy) -> Done {
    let mut session = enemy.open().await?;
    let owner = |at: usize| lock(format!("t{at}"), format!("r{at}"), vec![write(flat(format!("l{at}")))]);
    session.ask((0..enemy.size(10_000, 1_000)).map(owner)).await?;
    session.keep_alive(enemy.size(10_000, 500)).await?;
    let (door, id) = (enemy.door().await?, session.id.clone());
    at_once(enemy.size(10_000, 500), 64, async |_| _ = door.keep_alive(&enemy.namespace, &id).await).await;
    session.close().await
}

pub(crate) async fn reconnects(enemy: Enemy) -> Done {
    let first = parking_lot::Mutex::new(None);
    at_once(enemy.size(50, 8), 50, async |number| {
        let storm = async {
            let mut session = enemy.open().await?;
            let id = session.id.clone();
            session.ask([lock("t", "r", vec![write(flat(format!("l{number}")))])]).await?;
            for _ in 0..enemy.size(40, 5) {
                // The one before is superseded, and not closed. One that is refused is counted.
                if let Ok(resumed) = session::open(&enemy.door().await?, &enemy.namespace, TTL, Some(&id)).await {
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

pub(crate) async fn full_rate(enemy: Enemy) -> Done {
    let mut doors = Vec::new();
    for _ in 0..8 {
        doors.push(enemy.door().await?);
    }
    let until = Instant::now() + Duration::from_millis(enemy.size(10_000, 1_000) as u64);
    at_once(64, 64, async |number| {
        let (door, owner) = (&doors[number % doors.len()], format!("caller-{number}"));
        while Instant::now() < until {
            pair(door, &enemy.namespace, &owner).await;
        }
    })
    .await;
    Ok(())
}

/// Takes a lock of its own and gives it up.
pub(crate) async fn pair(door: &Door, namespace: &str, owner: &str) {
    let message = v1::AcquireLockRequest {
        namespace: namespace.to_owned(),
        path: flat(owner),
        process_id: Some(owner.to_owned()),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    _ = door.acquire(message).await;
    let message = v1::ReleaseLockRequest {
        namespace: namespace.to_owned(),
        path: flat(owner),
        process_id: Some(owner.to_owned()),
        ..Default::default()
    };
    _ = door.release(message).await;
}

pub(crate) async fn strangers(enemy: Enemy) -> Done {
    let mut silent = Vec::new();
    for number in 0..enemy.size(300, 30) {
        let gateway = enemy.gateways[number % enemy.gateways.len()];
        silent.push(TcpStream::connect(gateway).await.map_err(|error| error.to_string())?);
    }
    let calls = Arc::clone(&enemy.calls);
    at_once(enemy.size(3_000, 200), 32, async |number| {
        // As long as a true one, with an id that nobody has.
        let (own, _) = enemy.key.rsplit_once('_').expect("a key has parts");
        let forged = format!("{}{:06x}_{}", &own[..own.len() - 6], number, "A".repeat(enemy.key.len() - own.len() - 1));
        let gateway = enemy.gateways[number % enemy.gateways.len()];
        let Ok(door) = Door::connect(gateway, &forged, &calls).await else { return };
        _ = door.keep_alive(&enemy.namespace, "se_none").await;
    })
    .await;
    Ok(())
}

pub(crate) async fn keys(enemy: Enemy) -> Done {
    at_once(enemy.size(300, 10), 4, async |_| {
        enemy.calls.count();
        let made = enemy.api.json::<Value>(Method::POST, "/v1/api-keys", Some(json!({}))).await;
        match made {
            Ok(key) => _ = enemy.api.delete(&format!("/v1/api-keys/{}", key["key_id"].as_str().unwrap_or("?"))).await,
            Err(error) => enemy.calls.refused(&error.code),
        }
    })
    .await;
    Ok(())
}
