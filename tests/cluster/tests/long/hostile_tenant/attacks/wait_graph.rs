//! Who waits for whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::Lock;
use holdfast_testkit::wait_out;
use tokio::task::JoinSet;

use super::AttackResult;
use crate::hostile_tenant::attacker::{AcquireOptions, Attacker, MAX_CLAIMS, Owner, run_concurrently};
use crate::hostile_tenant::grpc_client::{GrpcClient, refused_limit};
use crate::hostile_tenant::session::{flat_path, lock_message, read_claim, write_claim};

const HOLDS_EACH: usize = 66;
const WAIT_MS: u64 = 600_000;
/// What callers want that only wait.
const WANTED: &str = "wanted";
const CALLERS_PER_CONNECTION: usize = 500;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take until all callers wait, and until their places are given up.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(90);
/// Before a caller that is refused for now asks again.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// The longest such delay, which doubles each time: tens of thousands who ask at once would keep the service from
/// whoever has yet to wait.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(8);

/// The locks of one of those who wait, in as many requests as they take.
fn own_locks(number: usize) -> Vec<Lock> {
    let names: Vec<_> = (0..HOLDS_EACH).map(|at| write_claim(vec![format!("own-{number}-{at}")])).collect();
    let request = |(at, names): (usize, &[v1::Resource])| {
        lock_message(format!("o{number}"), format!("own-{number}-{at}"), names.to_vec())
    };
    names.chunks(MAX_CLAIMS).enumerate().map(request).collect()
}

pub(crate) async fn tangle(enemy: Attacker) -> AttackResult {
    let owners = enemy.scaled(200, 40);
    let mut first = enemy.open_session().await?;
    first
        .request_locks([
            lock_message("x", "one", vec![write_claim(flat_path("one"))]),
            lock_message("x", "two", vec![write_claim(flat_path("two"))]),
        ])
        .await?;
    let mut session = enemy.open_session().await?;
    session.request_locks((0..owners).flat_map(own_locks)).await?;
    for wanted in ["one", "two"] {
        let wants = |number| {
            lock_message(format!("o{number}"), format!("{wanted}-{number}"), vec![write_claim(flat_path(wanted))])
        };
        session.request_locks((0..owners).map(wants)).await?;
    }
    for number in (0..owners).step_by(owners / 10) {
        let again = lock_message(
            format!("o{number}"),
            format!("try-{number}"),
            vec![write_claim(flat_path("one")), write_claim(flat_path("two"))],
        );
        enemy.timed("a refused try", session.request_locks([Lock { r#try: true, ..again }])).await?;
        let stranger = lock_message("stranger", format!("stranger-{number}"), vec![write_claim(flat_path("one"))]);
        enemy.timed("a refused try", session.request_locks([Lock { r#try: true, ..stranger }])).await?;
    }
    for number in (0..owners).step_by(owners / 10) {
        enemy.timed("a release among them", session.release([format!("own-{number}-1")])).await?;
    }
    enemy.timed("a release among them", first.release(["one".to_owned()])).await?;
    enemy.timed("a release among them", first.release(["two".to_owned()])).await?;
    session.release_all().await
}

pub(crate) async fn behind(enemy: Attacker) -> AttackResult {
    let tangled = enemy.scaled(1_267, 300);
    let claim = |names: &[&str]| names.iter().map(|name| write_claim(flat_path(*name))).collect::<Vec<_>>();
    let mut messages = vec![
        lock_message("h", "h", claim(&["m"])),
        lock_message("t", "t", claim(&["t"])),
        lock_message("y", "y", claim(&["y"])),
        lock_message("z", "z waits", claim(&["t", "y", "m"])),
        lock_message("y", "y waits", claim(&["m", "l"])),
    ];
    for number in 0..tangled {
        let holder = format!("f{number}");
        messages.push(lock_message(&holder, &holder, claim(&[&format!("f-{number}")])));
        messages.push(lock_message(&holder, format!("{holder} waits"), claim(&["t"])));
    }
    messages.push(lock_message("t", "t waits", claim(&["l"])));
    for number in 0..tangled {
        let holder = format!("g{number}");
        messages.push(lock_message(&holder, &holder, claim(&[&format!("f-{number}")])));
    }
    // A repetition returns its position.
    messages.push(lock_message("t", "t waits", claim(&["l"])));
    let mut session = enemy.open_session().await?;
    session.request_locks(messages).await
}

pub(crate) async fn below(enemy: Attacker) -> AttackResult {
    let mut holding = enemy.open_session().await?;
    let holds = enemy.scaled(1_001, 101);
    let reader = |at: usize| {
        lock_message(format!("h{at}"), format!("h{at}"), vec![read_claim(vec!["tree".to_owned(), at.to_string()])])
    };
    holding.request_locks((0..holds).map(reader)).await?;
    holding.request_locks([lock_message("w", "w", vec![write_claim(flat_path("written"))])]).await?;
    let count = enemy.scaled(20_000, 1_000);
    // A lock has 1,000 readers at most, those who wait among them.
    let wanted = |at: usize| vec![if at < count / 20 { read_claim(vec![]) } else { write_claim(vec![]) }];
    let crowd = enemy.spawn_waiters(count, wanted).await?;
    for at in 0..enemy.scaled(40, 10) {
        enemy.timed("a release below", holding.release([format!("h{at}")])).await?;
    }
    holding.release(["w".to_owned()]).await?;
    drop(crowd);
    holding.close().await
}

pub(crate) async fn above(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(20_000, 1_000);
    for above in [vec![], flat_path("tree")] {
        let mut holding = enemy.open_session().await?;
        holding.request_locks([lock_message("a", "above", vec![write_claim(above)])]).await?;
        let each = |at: usize| vec![write_claim(vec!["tree".to_owned(), at.to_string()])];
        let crowd = enemy.spawn_waiters(count, each).await?;
        holding.release(["above".to_owned()]).await?;
        holding.close().await?;
        for session in crowd {
            session.close().await?;
        }
    }
    Ok(())
}

pub(crate) async fn own_line(enemy: Attacker) -> AttackResult {
    let mut holding = enemy.open_session().await?;
    holding
        .request_locks([
            lock_message("a", "a", vec![write_claim(flat_path("one"))]),
            lock_message("a", "b", vec![write_claim(flat_path("two"))]),
        ])
        .await?;
    let mut session = enemy.open_session().await?;
    let again = |at: usize| {
        lock_message("same", at.to_string(), vec![write_claim(flat_path("one")), write_claim(flat_path("two"))])
    };
    session.request_locks((0..enemy.scaled(10_000, 500)).map(again)).await?;
    let other = lock_message("other", "other", vec![write_claim(flat_path("one"))]);
    session.request_locks([other]).await?;
    holding.release(["a".to_owned(), "b".to_owned()]).await?;
    session.close().await
}

pub(crate) async fn cycle(enemy: Attacker) -> AttackResult {
    let holds = enemy.scaled(10_000, 500);
    enemy.acquire_many(&Owner::Process("crowd".to_owned()), &AcquireOptions::default(), "tree-", holds).await?;
    let mut session = enemy.open_session().await?;
    let wants = |holder: &str, id: &str, name: &str| lock_message(holder, id, vec![write_claim(flat_path(name))]);
    session.request_locks([wants("a", "a", "a"), wants("b", "b", "b"), wants("b", "b waits", "a")]).await?;
    let everything = || vec![write_claim(vec![])];
    for time in 0..enemy.scaled(100, 20) {
        let request = format!("everything-{time}");
        session.request_locks([lock_message("a", request.clone(), everything())]).await?;
        session.release([request]).await?;
    }
    session.close().await
}

/// A call of that caller, which waits for a lock.
fn wait_request(enemy: &Attacker, caller: usize) -> v1::AcquireLockRequest {
    v1::AcquireLockRequest {
        namespace: enemy.namespace.clone(),
        path: flat_path(WANTED),
        process_id: Some(format!("caller-{caller}")),
        ttl_ms: Some(WAIT_MS),
        wait_ms: WAIT_MS,
        ..Default::default()
    }
}

/// How many wait for the lock, unless that is not answered.
async fn waiting_count(enemy: &Attacker, grpc: &GrpcClient) -> Option<u64> {
    let wanted =
        v1::GetLockRequest { namespace: enemy.namespace.clone(), path: flat_path(WANTED), ..Default::default() };
    grpc.get(wanted).await.ok()?.lock.map(|lock| lock.waiting)
}

/// Lets all callers hang up, and waits until their places are gone.
async fn hang_up_all(enemy: &Attacker, grpc: &GrpcClient, mut callers: JoinSet<()>) -> AttackResult {
    callers.abort_all();
    while callers.join_next().await.is_some() {}
    let deadline = Instant::now() + QUEUE_TIMEOUT;
    while waiting_count(enemy, grpc).await != Some(0) {
        if Instant::now() > deadline {
            return Err("places stand of callers that have gone".to_owned());
        }
        wait_out(POLL_INTERVAL).await;
    }
    Ok(())
}

pub(crate) async fn hang_ups(enemy: Attacker) -> AttackResult {
    let mut holding = enemy.open_session().await?;
    holding.request_locks([lock_message("h", "h", vec![write_claim(flat_path(WANTED))])]).await?;
    let mut callers = JoinSet::new();
    for first in (0..enemy.scaled(10_000, 500)).step_by(CALLERS_PER_CONNECTION) {
        let grpc = enemy.connect().await?;
        for number in first..first + CALLERS_PER_CONNECTION {
            let (grpc, message) = (grpc.clone(), wait_request(&enemy, number));
            callers.spawn(async move { _ = grpc.acquire(message).await });
        }
    }
    let grpc = enemy.connect().await?;
    // A refused request does not wait.
    let all = callers.len() as u64;
    for _ in 0..200 {
        let refused: u64 = enemy.calls.errors().values().sum();
        if waiting_count(&enemy, &grpc).await.unwrap_or(0) + refused >= all {
            break;
        }
        wait_out(POLL_INTERVAL).await;
    }
    hang_up_all(&enemy, &grpc, callers).await?;
    // Another request joins the queue as before.
    run_concurrently(4, 4, async |number| {
        let mut session = enemy.open_session().await.expect("a session opens");
        _ = session
            .request_locks([lock_message("next", number.to_string(), vec![write_claim(flat_path(WANTED))])])
            .await;
    })
    .await;
    holding.close().await
}

/// More callers that wait at one gateway than an account may have there: the surplus is refused.
pub(crate) async fn waits(enemy: Attacker) -> AttackResult {
    let count = enemy.scaled(70_000, 1_070);
    let mut holding = enemy.open_session().await?;
    holding.request_locks([lock_message("h", "h", vec![write_claim(flat_path(WANTED))])]).await?;
    let (mut callers, refused) = (JoinSet::new(), Arc::<AtomicUsize>::default());
    for first in (0..count).step_by(CALLERS_PER_CONNECTION) {
        let grpc = GrpcClient::connect(enemy.gateways[0], &enemy.key, &enemy.calls).await?;
        for number in first..count.min(first + CALLERS_PER_CONNECTION) {
            let (grpc, message, refused) = (grpc.clone(), wait_request(&enemy, number), Arc::clone(&refused));
            callers.spawn(async move {
                // Whoever comes faster than the rate, or finds a queue full, tries again, more and more rarely.
                let mut delay = RETRY_DELAY;
                while let Err(status) = grpc.acquire(message.clone()).await {
                    if refused_limit(&status).as_deref() == Some("max_held_calls") {
                        refused.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                    wait_out(delay).await;
                    delay = (2 * delay).min(MAX_RETRY_DELAY);
                }
            });
        }
    }
    let (grpc, deadline) = (enemy.connect().await?, Instant::now() + QUEUE_TIMEOUT);
    loop {
        let waiting = waiting_count(&enemy, &grpc).await.unwrap_or(0) as usize;
        let refused = refused.load(Ordering::Relaxed);
        if waiting + refused >= count {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("of {count} callers only {waiting} wait, and {refused} are refused"));
        }
        wait_out(POLL_INTERVAL).await;
    }
    let refused = refused.load(Ordering::Relaxed);
    if refused < count - enemy.max_held_calls {
        return Err(format!("of {count} callers {refused} were refused: more wait than {}", enemy.max_held_calls));
    }
    hang_up_all(&enemy, &grpc, callers).await?;
    holding.close().await
}
