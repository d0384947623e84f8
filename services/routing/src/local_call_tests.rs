use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Deferred, StatusAnswer, Update};

use super::*;

fn update() -> Update {
    Update { next_revision: 3, items: Bytes::from_static(b"items") }
}

/// Answers commands with their own bytes. A deferrable call is deferred, gets an update for a credit, and waits to be
/// cancelled.
#[derive(Default)]
struct Scripted {
    was_withdrawn: Arc<AtomicBool>,
}

impl CallHandler for Scripted {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        async move {
            let Some(Body::Command(bytes)) = call.body else { panic!("a bug") };
            Answer { id: call.id, outcome: Some(Outcome::Reply(bytes)), ..Answer::default() }
        }
        .boxed()
    }

    fn call_deferrable(&self, call: Call, caller: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
        let was_withdrawn = Arc::clone(&self.was_withdrawn);
        async move {
            caller.defer().await;
            tokio::select! {
                () = caller.control.cancelled.cancelled() => {}
                () = caller.control.credit.notified() => {
                    caller.send_update(update()).await;
                    caller.control.cancelled.cancelled().await;
                }
            }
            // What takes time goes on without the caller.
            tokio::task::yield_now().await;
            was_withdrawn.store(true, Ordering::Relaxed);
            Some(Answer {
                id: call.id,
                outcome: Some(Outcome::NotProposed("withdrawn".to_owned())),
                ..Answer::default()
            })
        }
        .boxed()
    }

    fn status(&self) -> StatusAnswer {
        StatusAnswer::default()
    }

    fn not_ready(&self) -> Option<String> {
        None
    }
}

fn node(handler: Scripted) -> LocalNode {
    LocalNode { node_id: "nd_1".to_owned(), handler: Arc::new(handler) }
}

fn call(body: Body, max_wait_ms: u32) -> Call {
    Call { id: 7, max_wait_ms, body: Some(body), ..Call::default() }
}

fn waiting() -> Call {
    call(Body::Command(Bytes::from_static(b"acquire")), 1_000)
}

async fn outcome(call: &mut LocalCall) -> Option<Outcome> {
    call.next_reply().await.and_then(|answer| answer.outcome)
}

#[tokio::test]
async fn a_call_has_one_reply_and_then_none() {
    let bytes = Bytes::from_static(b"command");
    let mut calling = LocalCall::new(&node(Scripted::default()), call(Body::Command(bytes.clone()), 0));
    assert_eq!(outcome(&mut calling).await, Some(Outcome::Reply(bytes)));
    assert_eq!(calling.next_reply().await, None);
}

#[tokio::test]
async fn a_handler_that_panics_leaves_the_outcome_unknown() {
    let mut calling = LocalCall::new(&node(Scripted::default()), call(Body::Query(Bytes::new()), 0));
    assert!(matches!(outcome(&mut calling).await, Some(Outcome::Unknown(_))));
}

#[tokio::test]
async fn replies_come_in_order_and_a_cancelled_call_has_a_last_one() {
    let mut calling = LocalCall::new(&node(Scripted::default()), waiting());
    assert_eq!(outcome(&mut calling).await, Some(Outcome::Deferred(Deferred {})));
    assert!(calling.next_reply().now_or_never().is_none(), "an update needs a credit");
    calling.request_page();
    assert_eq!(outcome(&mut calling).await, Some(Outcome::Update(update())));
    assert!(calling.next_reply().now_or_never().is_none(), "it waits");
    calling.cancel();
    assert_eq!(outcome(&mut calling).await, Some(Outcome::NotProposed("withdrawn".to_owned())));
    assert_eq!(calling.next_reply().await, None);
}

#[tokio::test]
async fn the_node_withdraws_what_a_dropped_call_has_begun() {
    let handler = Scripted::default();
    let was_withdrawn = Arc::clone(&handler.was_withdrawn);
    let mut calling = LocalCall::new(&node(handler), waiting());
    assert_eq!(outcome(&mut calling).await, Some(Outcome::Deferred(Deferred {})));
    drop(calling);
    while !was_withdrawn.load(Ordering::Relaxed) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn nothing_goes_on_of_a_dropped_query() {
    let handler = Scripted::default();
    let was_withdrawn = Arc::clone(&handler.was_withdrawn);
    let mut calling = LocalCall::new(&node(handler), call(Body::Query(Bytes::new()), 1_000));
    assert_eq!(outcome(&mut calling).await, Some(Outcome::Deferred(Deferred {})));
    drop(calling);
    assert_eq!(Arc::strong_count(&was_withdrawn), 1);
    assert!(!was_withdrawn.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_dropped_call_that_has_not_begun_does_nothing() {
    let handler = Scripted::default();
    let was_withdrawn = Arc::clone(&handler.was_withdrawn);
    drop(LocalCall::new(&node(handler), waiting()));
    while Arc::strong_count(&was_withdrawn) > 1 {
        tokio::task::yield_now().await;
    }
    assert!(!was_withdrawn.load(Ordering::Relaxed));
}
