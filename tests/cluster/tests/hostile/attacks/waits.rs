//! Who waits for whom.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Lock;
use tokio::task::JoinSet;

use super::Done;
use crate::enemy::{CLAIMS, Enemy, Owner, Terms, at_once};
use crate::pause::wait_for;
use crate::session::{flat, lock, read, write};

const HOLDS_EACH: usize = 66;
const WAIT_MS: u64 = 600_000;

/// The locks of one of those who wait, in as many requests as they take.
fn own(number: usize) -> Vec<Lock> {
    let names: Vec<_> = (0..HOLDS_EACH).map(|at| write(vec![format!("own-{number}-{at}")])).collect();
    let request = |(at, names): (usize, &[v1::Resource])| {
        lock(format!("o{number}"), format!("own-{number}-{at}"), names.to_vec())
    };
    names.chunks(CLAIMS).enumerate().map(request).collect()
}

pub(crate) async fn tangle(enemy: Enemy) -> Done {
    let owners = enemy.size(200, 40);
    let mut first = enemy.open().await?;
    first.ask([lock("x", "one", vec![write(flat("one"))]), lock("x", "two", vec![write(flat("two"))])]).await?;
    let mut session = enemy.open().await?;
    session.ask((0..owners).flat_map(own)).await?;
    for wanted in ["one", "two"] {
        let wants = |number| lock(format!("o{number}"), format!("{wanted}-{number}"), vec![write(flat(wanted))]);
        session.ask((0..owners).map(wants)).await?;
    }
    for number in (0..owners).step_by(owners / 10) {
        let again = lock(format!("o{number}"), format!("try-{number}"), vec![write(flat("one")), write(flat("two"))]);
        enemy.timed("a refused try", session.ask([Lock { r#try: true, ..again }])).await?;
        let stranger = lock("stranger", format!("stranger-{number}"), vec![write(flat("one"))]);
        enemy.timed("a refused try", session.ask([Lock { r#try: true, ..stranger }])).await?;
    }
    for number in (0..owners).step_by(owners / 10) {
        enemy.timed("a release among them", session.release([format!("own-{number}-1")])).await?;
    }
    enemy.timed("a release among them", first.release(["one".to_owned()])).await?;
    enemy.timed("a release among them", first.release(["two".to_owned()])).await?;
    session.release_all().await
}

pub(crate) async fn behind(enemy: Enemy) -> Done {
    let tangled = enemy.size(1_267, 300);
    let claim = |names: &[&str]| names.iter().map(|name| write(flat(*name))).collect::<Vec<_>>();
    let mut messages = vec![
        lock("h", "h", claim(&["m"])),
        lock("t", "t", claim(&["t"])),
        lock("y", "y", claim(&["y"])),
        lock("z", "z waits", claim(&["t", "y", "m"])),
        lock("y", "y waits", claim(&["m", "l"])),
    ];
    for number in 0..tangled {
        let holder = format!("f{number}");
        messages.push(lock(&holder, &holder, claim(&[&format!("f-{number}")])));
        messages.push(lock(&holder, format!("{holder} waits"), claim(&["t"])));
    }
    messages.push(lock("t", "t waits", claim(&["l"])));
    for number in 0..tangled {
        let holder = format!("g{number}");
        messages.push(lock(&holder, &holder, claim(&[&format!("f-{number}")])));
    }
    // A repeat says where it stands.
    messages.push(lock("t", "t waits", claim(&["l"])));
    let mut session = enemy.open().await?;
    session.ask(messages).await
}

pub(crate) async fn below(enemy: Enemy) -> Done {
    let mut holding = enemy.open().await?;
    let holds = enemy.size(1_001, 101);
    let reader =
        |at: usize| lock(format!("h{at}"), format!("h{at}"), vec![read(vec!["tree".to_owned(), at.to_string()])]);
    holding.ask((0..holds).map(reader)).await?;
    holding.ask([lock("w", "w", vec![write(flat("written"))])]).await?;
    let count = enemy.size(20_000, 1_000);
    // A lock has 1,000 readers at most, those who wait among them.
    let wanted = |at: usize| vec![if at < count / 20 { read(vec![]) } else { write(vec![]) }];
    let crowd = enemy.crowd(count, wanted).await?;
    for at in 0..enemy.size(40, 10) {
        enemy.timed("a release below", holding.release([format!("h{at}")])).await?;
    }
    holding.release(["w".to_owned()]).await?;
    drop(crowd);
    holding.close().await
}

pub(crate) async fn above(enemy: Enemy) -> Done {
    let count = enemy.size(20_000, 1_000);
    for above in [vec![], flat("tree")] {
        let mut holding = enemy.open().await?;
        holding.ask([lock("a", "above", vec![write(above)])]).await?;
        let each = |at: usize| vec![write(vec!["tree".to_owned(), at.to_string()])];
        let crowd = enemy.crowd(count, each).await?;
        holding.release(["above".to_owned()]).await?;
        holding.close().await?;
        for session in crowd {
            session.close().await?;
        }
    }
    Ok(())
}

pub(crate) async fn own_line(enemy: Enemy) -> Done {
    let mut holding = enemy.open().await?;
    holding.ask([lock("a", "a", vec![write(flat("one"))]), lock("a", "b", vec![write(flat("two"))])]).await?;
    let mut session = enemy.open().await?;
    let again = |at: usize| lock("same", at.to_string(), vec![write(flat("one")), write(flat("two"))]);
    session.ask((0..enemy.size(10_000, 500)).map(again)).await?;
    let other = lock("other", "other", vec![write(flat("one"))]);
    session.ask([other]).await?;
    holding.release(["a".to_owned(), "b".to_owned()]).await?;
    session.close().await
}

pub(crate) async fn cycle(enemy: Enemy) -> Done {
    let holds = enemy.size(10_000, 500);
    enemy.hold(&Owner::Process("crowd".to_owned()), &Terms::default(), "tree-", holds).await?;
    let mut session = enemy.open().await?;
    let wants = |holder: &str, id: &str, name: &str| lock(holder, id, vec![write(flat(name))]);
    session.ask([wants("a", "a", "a"), wants("b", "b", "b"), wants("b", "b waits", "a")]).await?;
    let everything = || vec![write(vec![])];
    for time in 0..enemy.size(100, 20) {
        let request = format!("everything-{time}");
        session.ask([lock("a", request.clone(), everything())]).await?;
        session.release([request]).await?;
    }
    session.close().await
}

pub(crate) async fn hang_ups(enemy: Enemy) -> Done {
    const CALLERS_PER_CONNECTION: usize = 500;
    let mut holding = enemy.open().await?;
    holding.ask([lock("h", "h", vec![write(flat("wanted"))])]).await?;
    let mut callers = JoinSet::new();
    for first in (0..enemy.size(10_000, 500)).step_by(CALLERS_PER_CONNECTION) {
        let door = enemy.door().await?;
        for number in first..first + CALLERS_PER_CONNECTION {
            let message = v1::AcquireLockRequest {
                namespace: enemy.namespace.clone(),
                path: flat("wanted"),
                process_id: Some(format!("caller-{number}")),
                ttl_ms: Some(WAIT_MS),
                wait_ms: WAIT_MS,
                ..Default::default()
            };
            let door = door.clone();
            callers.spawn(async move { _ = door.acquire(message).await });
        }
    }
    let door = enemy.door().await?;
    let wanted =
        || v1::GetLockRequest { namespace: enemy.namespace.clone(), path: flat("wanted"), ..Default::default() };
    let waiting = async || door.get(wanted()).await.ok().and_then(|answer| answer.lock).map_or(0, |lock| lock.waiting);
    // Whoever is refused does not wait.
    let all = callers.len() as u64;
    for _ in 0..200 {
        let refused: u64 = enemy.calls.all_refused().values().sum();
        if waiting().await + refused >= all {
            break;
        }
        wait_for(Duration::from_millis(50)).await;
    }
    callers.abort_all();
    while callers.join_next().await.is_some() {}
    for _ in 0..400 {
        if waiting().await == 0 {
            // Somebody else gets a place as before.
            at_once(4, 4, async |number| {
                let mut session = enemy.open().await.expect("a session opens");
                _ = session.ask([lock("next", number.to_string(), vec![write(flat("wanted"))])]).await;
            })
            .await;
            return holding.close().await;
        }
        wait_for(Duration::from_millis(50)).await;
    }
    Err("places stand of callers that have gone".to_owned())
}
