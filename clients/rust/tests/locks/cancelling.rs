//! A wait that is dropped, at whatever moment, leaves nothing behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use holdfast_client::{Error, Guard, Result};

use crate::recorder::Recorder;
use crate::support::{NAMESPACE, client, eventually, eventually_nothing_left, fresh, session, shown, soon};

/// Polls so many times at most, and drops the future then.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            // Once more at the latest when something happened; at the last time at once.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops the future at each point at which it waits, until it comes to its end. How often it was dropped.
async fn dropped_everywhere<F: Future<Output = Result<Guard>>>(make: impl Fn() -> F, after: impl AsyncFn()) -> usize {
    for times in 0.. {
        let done = soon("an answer", polled(make(), times)).await;
        let is_done = done.is_some();
        drop(done);
        after().await;
        if is_done {
            return times;
        }
    }
    unreachable!("the loop has no end")
}

#[tokio::test]
async fn a_lock_dropped_at_any_point_leaves_no_ghost() {
    let session = session("one").await;
    let name = fresh("free");
    let mutex = session.mutex(name.as_str());
    let after = async || eventually_nothing_left(&session, &name).await;
    assert!(dropped_everywhere(|| mutex.lock(), after).await >= 2);
    assert!(dropped_everywhere(|| mutex.try_lock(), after).await >= 2);
}

/// The lock is another one's, so that the wait is dropped in the queue. It is also dropped before the service can have
/// heard of it.
#[tokio::test]
async fn a_wait_dropped_in_the_queue_leaves_no_ghost() {
    let (one, other) = (session("one").await, session("other").await);
    let name = fresh("taken");
    let guard = one.mutex(name.as_str()).lock().await.unwrap();
    for times in [1, 1, 1] {
        let mutex = other.mutex(name.as_str());
        assert!(polled(mutex.lock(), times).await.is_none());
    }
    for _ in 0..3 {
        let mutex = other.mutex(name.as_str());
        let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
        eventually("it waits", async || shown(&client(), &name).await.waiting == 1).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        eventually("nobody waits", async || shown(&client(), &name).await.waiting == 0).await;
    }
    eventually("the session forgets them", async || other.request_count() == 0).await;
    guard.release().await.unwrap();
    eventually_nothing_left(&one, &name).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_is_done_all_the_same() {
    let session = session("one").await;
    let name = fresh("dropped release");
    let guard = session.mutex(name.as_str()).lock().await.unwrap();
    assert!(polled(guard.release(), 1).await.is_none());
    eventually_nothing_left(&session, &name).await;
}

/// The grant is on its way when its caller gives up: this runtime has one thread, which does not listen meanwhile.
#[tokio::test]
async fn a_grant_that_comes_too_late_satisfies_nobody_and_handlers_are_told() {
    let recorder = Recorder::default();
    let late = client().session(NAMESPACE).process_id("late").handler(recorder.clone()).open().await.unwrap();
    let name = fresh("late");
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
                eventually("the late one holds it", async || shown(&client, &name).await.holders_total == 1).await;
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
            shown(&client(), &name).await.waiting == 1
        };
        eventually("it waits", look).await;
        unlock.send(()).unwrap();
        // Nothing else runs on this thread now.
        is_done.recv().unwrap();
    }
    // The next request of the same owner gets an answer of its own.
    let next = soon("the next one's turn", mutex.lock()).await.unwrap();
    recorder.eventually(&format!("locked {name}")).await;
    let token = next.fencing_token();
    assert_eq!(shown(&client(), &name).await.write_lock_holder.unwrap().fencing_token, token);
    next.release().await.unwrap();
    eventually_nothing_left(&late, &name).await;
    holder.join().unwrap();
}

#[tokio::test]
async fn a_lock_that_would_close_a_cycle_of_waits_is_refused() {
    let session = session("one").await;
    let (x, y) = (fresh("x"), fresh("y"));
    let _a_has_x = session.mutex(x.as_str()).owned_by("a").lock().await.unwrap();
    let _b_has_y = session.mutex(y.as_str()).owned_by("b").lock().await.unwrap();
    let a_wants_y = tokio::spawn({
        let mutex = session.mutex(y.as_str()).owned_by("a");
        async move { mutex.lock().await.map(drop) }
    });
    eventually("a waits", async || shown(&client(), &y).await.waiting == 1).await;
    let error = session.mutex(x.as_str()).owned_by("b").lock().await.unwrap_err();
    let Error::Refused(refusal) = error else { panic!("{error}") };
    assert_eq!(refusal.reason, holdfast_client::Reason::Deadlock);
    assert_eq!(refusal.cycle.len(), 2);
    a_wants_y.abort();
}
