//! What takes much memory, or makes answers large.

use std::collections::HashMap;

use holdfast_proto::v1;

use super::Done;
use crate::enemy::{CLAIMS, Enemy, Owner, Terms, at_once};
use crate::session::{flat, lock, write};

/// The bytes that metadata may have.
const METADATA: usize = 1_024;
/// Pairs of metadata that are refused, and those that are not.
const PAIRS: [usize; 2] = [525, 64];
/// A path whose segments nobody else has, of a request that is just not too large.
const DEPTH: usize = 16;
const SEGMENT: usize = 56;

/// As much metadata as there may be, in so many pairs.
fn pairs(count: usize) -> HashMap<String, String> {
    let name = |at: usize| char::from_u32(0x21 + at as u32).filter(char::is_ascii_graphic);
    let short = |at: usize| name(at).map_or_else(|| format!("{at:x}"), String::from);
    let mut metadata: HashMap<_, _> = (0..count).map(|at| (short(at), String::new())).collect();
    let used: usize = metadata.keys().map(String::len).sum();
    if let Some(value) = metadata.get_mut("!") {
        *value = "v".repeat(METADATA.saturating_sub(used));
    }
    // One that is too long anyway is refused for its bytes before its pairs are counted.
    while metadata.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > METADATA {
        let Some(longest) = metadata.keys().max_by_key(|name| name.len()).cloned() else { break };
        metadata.remove(&longest);
    }
    metadata
}

/// A single pair of as many bytes as there may be.
pub(crate) fn kibibyte() -> HashMap<String, String> {
    HashMap::from([("a".to_owned(), "x".repeat(METADATA - 1))])
}

pub(crate) async fn metadata(enemy: Enemy) -> Done {
    let door = enemy.door().await?;
    let names = |request: usize| (0..CLAIMS).map(|at| flat(format!("m{request}-{at}"))).collect::<Vec<_>>();
    for count in PAIRS {
        let terms = Terms { metadata: pairs(count), ..Terms::default() };
        at_once(enemy.size(700, 40), 16, async |request| {
            let owner = Owner::Process(format!("owner-{request}"));
            _ = door.acquire_set(enemy.set(&owner, &terms, names(request))).await;
        })
        .await;
    }
    Ok(())
}

pub(crate) async fn named(enemy: Enemy) -> Done {
    let mut session = enemy.open().await?;
    let claims = || (0..CLAIMS).map(|at| write(flat(format!("held-{at}")))).collect::<Vec<_>>();
    let again = |at: usize| lock("same", format!("request-{at:06}"), claims());
    session.ask((0..enemy.size(30_000, 1_000)).map(again)).await?;
    session.close().await
}

pub(crate) async fn deep(enemy: Enemy) -> Done {
    let door = enemy.door().await?;
    let path = |request: usize, at: usize| -> Vec<String> {
        (0..DEPTH).map(|segment| format!("{request:06}-{at:02}-{segment:02}-{}", "x".repeat(SEGMENT - 13))).collect()
    };
    let terms = Terms::default();
    at_once(enemy.size(1_000, 50), 32, async |request| {
        let paths = (0..CLAIMS).map(|at| path(request, at)).collect();
        let owner = Owner::Process(format!("owner-{request}"));
        _ = door.acquire_set(enemy.set(&owner, &terms, paths)).await;
    })
    .await;
    Ok(())
}

pub(crate) async fn replies(enemy: Enemy) -> Done {
    const READERS: usize = 16;
    let names = || (0..CLAIMS).map(|at| flat(format!("read-{at}"))).collect::<Vec<_>>();
    let terms = Terms { mode: v1::Mode::Read, metadata: kibibyte(), ..Terms::default() };
    let door = enemy.door().await?;
    at_once(READERS, READERS, async |number| {
        let owner = Owner::Process(format!("reader-{number}"));
        _ = door.acquire_set(enemy.set(&owner, &terms, names())).await;
    })
    .await;
    at_once(128 * enemy.size(8, 1), 128, async |number| {
        let owner = Owner::Process(format!("another-{}", number % 128));
        _ = door.acquire_set(enemy.set(&owner, &terms, names())).await;
    })
    .await;
    Ok(())
}
