//! A wait that is dropped, at whatever moment, leaves nothing behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use holdfast_client::{Client, Error, Guard, LockStatus, Mode, Result, Session};

use crate::recorder::Recorder;
use crate::support::{
    NAMESPACE, ProxyMode, TTL, client, dropped_after, eventually, eventually_nothing_left, eventually_waiting,
    get_lock, in_time, key, proxy, session, unique_name,
};

/// Where nothing is left to happen but what others do.
const MAX_STEPS: usize = 10_000;

/// Drops the future that is made after 0, 1, 2 … and then ever more steps, until it comes to its end or only another one
/// could bring it there: before it was said, before it was answered, in the queue, before the answer was taken. How
/// often it was dropped.
async fn drop_at_every_step<T>(make: impl Fn() -> LocalBoxFuture<'static, T>, after: impl AsyncFn()) -> usize {
    let (mut steps, mut drops) = (0, 0);
    while steps < MAX_STEPS {
        let done = dropped_after(make(), steps).await;
        let is_done = done.is_some();
        drop(done);
        after().await;
        if is_done {
            break;
        }
        drops += 1;
        steps += 1 + steps / 4;
    }
    drops
}

type Make = Box<dyn Fn() -> LocalBoxFuture<'static, Result<Guard>>>;

/// Every way to lock.
fn lock_variants(session: &Session, name: &str) -> Vec<(&'static str, Make)> {
    macro_rules! way {
        ($lock:expr, $call:ident $(, $argument:expr)*) => {{
            let lock = $lock;
            let make: Make = Box::new(move || {
                let lock = lock.clone();
                async move { lock.$call($($argument),*).await }.boxed_local()
            });
            (stringify!($call), make)
        }};
    }
    let (mutex, rw_lock) = (session.mutex(name), session.rw_lock(name));
    let set = session.lock_set([(name.to_owned(), Mode::Write), (format!("{name} too"), Mode::Read)]);
    vec![
        way!(mutex.clone(), lock),
        way!(mutex.clone(), try_lock),
        way!(mutex.clone(), lock_timeout, TTL),
        way!(mutex, lock_observed, drop),
        way!(rw_lock.clone(), read),
        way!(rw_lock.clone(), try_write),
        way!(rw_lock, write_timeout, TTL),
        way!(set, lock),
    ]
}

#[tokio::test]
async fn a_lock_dropped_at_any_point_leaves_no_ghost() {
    let session = session("one").await;
    let name = unique_name("free");
    let after = async || eventually_nothing_left(&session, &name).await;
    for (call, make) in lock_variants(&session, &name) {
        let drops = drop_at_every_step(make, &after).await;
        assert!(drops >= 3, "{call}: dropped at {drops} points only, and not also after it was said");
    }
}

#[tokio::test]
async fn a_wait_dropped_at_any_point_leaves_no_ghost() {
    let (one, other) = (session("one").await, session("other").await);
    let name = unique_name("taken");
    let guard = one.mutex(name.as_str()).lock().await.unwrap();
    let after = async || {
        eventually("nobody waits", async || get_lock(&client(), &name).await.waiting == 0).await;
        eventually("the session forgets it", async || other.request_count() == 0).await;
    };
    for (call, make) in lock_variants(&other, &name) {
        let drops = drop_at_every_step(make, &after).await;
        assert!(drops >= 3, "{call}: dropped at {drops} points only");
    }
    guard.release().await.unwrap();
    eventually_nothing_left(&one, &name).await;
}

#[tokio::test]
async fn a_release_dropped_at_any_point_is_done_all_the_same() {
    let session = session("one").await;
    let name = unique_name("dropped release");
    for steps in [0, 1, 2, 3, 5, 8, 20, 50, 200, MAX_STEPS] {
        let guard = session.mutex(name.as_str()).lock().await.unwrap();
        dropped_after(guard.release(), steps).await;
        eventually_nothing_left(&session, &name).await;
    }
}

/// The lock service view keeps what was asked for, and its unlock ends it, however far it has come.
#[tokio::test]
async fn a_kept_lock_whose_caller_went_is_ended_by_an_unlock() {
    let (one, other) = (session("one").await, session("other").await);
    let (free, taken) = (unique_name("free"), unique_name("taken"));
    let guard = other.mutex(taken.as_str()).lock().await.unwrap();
    let locks = one.lock_service();
    for name in [&free, &taken] {
        for steps in [0, 1, 2, 3, 5, 8, 20, 50, 200, MAX_STEPS] {
            dropped_after(locks.lock(name.as_str()), steps).await;
            assert!(locks.status(name.as_str()) != LockStatus::Holding || name == &free);
            locks.unlock(name.as_str()).await;
            assert_eq!((locks.status(name.as_str()), one.request_count()), (LockStatus::None, 0));
        }
    }
    guard.release().await.unwrap();
    eventually_nothing_left(&one, &free).await;
}

/// Two who wait give up while nobody can be told, one of them after it was granted.
#[tokio::test]
async fn waits_that_are_given_up_while_no_gateway_answers_are_gone_when_one_does() {
    let (proxy, recorder) = (proxy(), Recorder::default());
    let cut = Client::builder().gateway(proxy.url()).api_key(key()).prefer_leader(false).build().unwrap();
    let cut = cut.session(NAMESPACE).ttl(TTL).handler(recorder.clone()).open().await.unwrap();
    let other = session("other").await;
    let (granted, waited) = (unique_name("granted"), unique_name("waited"));
    let (giving, keeping) =
        (other.mutex(granted.as_str()).lock().await.unwrap(), other.mutex(waited.as_str()).lock().await.unwrap());
    let [first, second] = [&granted, &waited].map(|name| {
        let mutex = cut.mutex(name.as_str());
        tokio::spawn(async move { mutex.lock().await.map(drop) })
    });
    eventually_waiting(&client(), &granted, 1).await;
    eventually_waiting(&client(), &waited, 1).await;
    proxy.set_mode(ProxyMode::Cut);
    recorder.eventually("jeopardy").await;
    giving.release().await.unwrap();
    eventually("it is granted", async || get_lock(&client(), &granted).await.holders_total == 1).await;
    for waiting in [first, second] {
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    }
    proxy.set_mode(ProxyMode::Open);
    eventually_nothing_left(&cut, &granted).await;
    eventually_waiting(&client(), &waited, 0).await;
    keeping.release().await.unwrap();
    let again = in_time("a lock of its own", cut.mutex(granted.as_str()).lock_timeout(Duration::from_secs(10))).await;
    again.unwrap().release().await.unwrap();
}

/// The grant is on its way when its caller gives up: this runtime has one thread, which does not listen meanwhile.
#[tokio::test]
async fn a_grant_that_comes_too_late_satisfies_nobody_and_handlers_are_told() {
    let recorder = Recorder::default();
    let late = client().session(NAMESPACE).process_id("late").handler(recorder.clone()).open().await.unwrap();
    let name = unique_name("late");
    let (unlock, may_unlock) = std::sync::mpsc::channel::<()>();
    let (tell, is_done) = std::sync::mpsc::channel::<()>();
    let (held, is_held) = tokio::sync::oneshot::channel();
    let holder = std::thread::spawn({
        let name = name.clone();
        move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let holder = session("holder").await;
                let guard = holder.mutex(name.as_str()).lock().await.unwrap();
                held.send(()).unwrap();
                tokio::task::block_in_place(|| may_unlock.recv()).unwrap();
                guard.release().await.unwrap();
                let client = client();
                eventually("the late one holds it", async || get_lock(&client, &name).await.holders_total == 1).await;
                tell.send(()).unwrap();
                holder.close().await;
            });
        }
    });
    is_held.await.unwrap();
    let mutex = late.mutex(name.as_str());
    {
        let mut waiting = pin!(mutex.lock());
        let look = async || {
            let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await;
            assert!(polled, "it is another one's");
            get_lock(&client(), &name).await.waiting == 1
        };
        eventually("it waits", look).await;
        unlock.send(()).unwrap();
        // Nothing else runs on this thread now.
        is_done.recv().unwrap();
    }
    // The next request of the same owner gets an answer of its own.
    let next = in_time("the next one's turn", mutex.lock()).await.unwrap();
    recorder.eventually(&format!("locked {name}")).await;
    let token = next.fencing_token();
    assert_eq!(get_lock(&client(), &name).await.write_lock_holder.unwrap().fencing_token, token);
    next.release().await.unwrap();
    eventually_nothing_left(&late, &name).await;
    holder.join().unwrap();
}

#[tokio::test]
async fn a_lock_that_would_close_a_cycle_of_waits_is_refused() {
    let session = session("one").await;
    let (x, y) = (unique_name("x"), unique_name("y"));
    let _a_has_x = session.mutex(x.as_str()).owned_by("a").lock().await.unwrap();
    let _b_has_y = session.mutex(y.as_str()).owned_by("b").lock().await.unwrap();
    let a_wants_y = tokio::spawn({
        let mutex = session.mutex(y.as_str()).owned_by("a");
        async move { mutex.lock().await.map(drop) }
    });
    eventually("a waits", async || get_lock(&client(), &y).await.waiting == 1).await;
    let error = session.mutex(x.as_str()).owned_by("b").lock().await.unwrap_err();
    let Error::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.reason, holdfast_client::Reason::Deadlock);
    assert_eq!(refusal.cycle.len(), 2);
    a_wants_y.abort();
}
