use bytes::Bytes;
use futures::FutureExt;

use super::*;
use crate::lane_budget::MAX_COMPUTED;

const PAGE: usize = 64 << 10;

fn answer(id: u64, bytes: usize) -> Answer {
    Answer { id, outcome: Some(Outcome::Reply(Bytes::from(vec![7; bytes]))), ..Answer::default() }
}

/// Fills a lane with pages; returns how many it has taken.
fn fill(lane: &ReplyQueue) -> usize {
    (0..).take_while(|id| lane.send(answer(*id, PAGE)).now_or_never().is_some()).count()
}

fn ids(answers: &[Answer]) -> Vec<u64> {
    answers.iter().map(|answer| answer.id).collect()
}

#[test]
fn an_account_has_so_many_bytes_of_replies_and_another_has_its_own() {
    let (caller, mut replies) = ReplyQueue::new();
    let (full, other) = (caller.of_account(1, false), caller.of_account(2, false));
    assert_eq!(fill(&full), 64, "4 MiB");
    assert!(full.wait_for_capacity().now_or_never().is_none(), "a query would only wait with its reply");
    assert_eq!(caller.of_account(1, false).send(answer(9, 1)).now_or_never(), None, "the lane is the same");
    assert_eq!(caller.of_account(1, true).send(answer(1_001, 1)).now_or_never(), Some(true), "an urgent one");
    assert_eq!(other.send(answer(1_002, 1)).now_or_never(), Some(true));
    let mut waiting = Box::pin(full.send(answer(1_003, PAGE)));
    assert_eq!(waiting.as_mut().now_or_never(), None);

    let frame = ids(&replies.take(256, 1 << 20));
    assert_eq!(frame.len(), 18, "1 MiB in pages, and two small ones: {frame:?}");
    assert_eq!(frame.iter().filter(|id| **id > 1_000).count(), 2, "{frame:?}");
    assert_eq!(frame.first(), Some(&1_001), "what is urgent is before the rest of its account: {frame:?}");
    assert_eq!(waiting.now_or_never(), Some(true), "it waited for room");
    assert!(full.wait_for_capacity().now_or_never().is_some());
}

#[test]
fn small_replies_of_others_go_on_while_accounts_have_all_bytes_of_a_connection() {
    let (caller, mut replies) = ReplyQueue::new();
    for account in 1..=16 {
        assert_eq!(fill(&caller.of_account(account, false)), 64);
    }
    assert_eq!(fill(&caller.of_account(17, false)), 17, "64 MiB of all, and what is guaranteed to it");
    let late = caller.of_account(18, false);
    assert_eq!(late.send(answer(1_000, PAGE + 1)).now_or_never(), None, "a larger one is of all");
    for id in 1_001..=1_016 {
        assert_eq!(late.send(answer(id, 4 << 10)).now_or_never(), Some(true), "64 KiB are guaranteed");
    }
    assert_eq!(late.send(answer(1_017, 4 << 10)).now_or_never(), None);
    let frame = ids(&replies.take(256, 2 << 20));
    assert!((1_001..=1_016).all(|id| frame.contains(&id)), "each account has the same share of a frame: {frame:?}");
    assert_eq!(late.send(answer(1_018, PAGE)).now_or_never(), Some(true));
}

#[tokio::test]
async fn replies_of_a_call_keep_their_order_and_are_awaited() {
    let (caller, mut replies) = ReplyQueue::new();
    let sender = caller.of_account(3, false);
    let sending = tokio::spawn(async move {
        for id in 0..1_000 {
            assert!(sender.send(answer(id, PAGE)).await);
        }
    });
    for id in 0..1_000 {
        assert_eq!(replies.next().await.id, id);
    }
    sending.await.unwrap();
    assert!(replies.try_next().is_none());
}

#[tokio::test]
async fn whoever_waits_for_room_learns_that_nobody_reads() {
    let (caller, replies) = ReplyQueue::new();
    fill(&caller);
    let waiting = tokio::spawn({
        let caller = caller.clone();
        async move { caller.send(answer(1, PAGE)).await }
    });
    tokio::task::yield_now().await;
    assert!(!caller.is_closed());
    drop(replies);
    assert!(!waiting.await.unwrap());
    assert!(caller.is_closed() && !caller.send(answer(2, 1)).await);
}

#[test]
fn few_queries_of_an_account_are_computed_before_their_replies_are_queued_and_another_has_its_own() {
    let (caller, replies) = ReplyQueue::new();
    let (full, other) = (caller.of_account(1, false), caller.of_account(2, false));
    let begin = || full.wait_for_capacity().now_or_never().flatten();
    let mut computed: Vec<QueryPermit> = std::iter::from_fn(begin).collect();
    assert_eq!(computed.len(), MAX_COMPUTED);
    assert!(other.wait_for_capacity().now_or_never().flatten().is_some());
    let mut next = Box::pin(full.wait_for_capacity());
    assert!(next.as_mut().now_or_never().is_none());
    computed.pop();
    assert!(next.now_or_never().flatten().is_some());
    drop(replies);
    assert!(begin().is_none(), "nobody reads");
}

#[test]
fn accounts_without_replies_are_forgotten() {
    let (caller, mut replies) = ReplyQueue::new();
    for account in 1..=10_000 {
        assert_eq!(caller.of_account(account, false).send(answer(account, 1)).now_or_never(), Some(true));
        assert_eq!(ids(&replies.take(256, 1 << 20)), [account]);
    }
    assert!(caller.replies.budgets.lock().of_lanes.len() <= MIN_SWEEP);
}

#[test]
fn the_queue_of_one_call_is_bounded_and_keeps_no_memory_while_it_is_empty() {
    let (caller, mut replies) = ReplyQueue::of_one_call();
    for round in 0..2 {
        assert_eq!(fill(&caller), 64, "4 MiB in round {round}");
        let taken: Vec<Answer> = std::iter::from_fn(|| replies.try_next()).collect();
        assert_eq!(ids(&taken), (0..64).collect::<Vec<u64>>());
        let Lanes::OfOneCall(lane) = &*caller.replies.lanes.lock() else { panic!("it has one lane") };
        assert_eq!(lane.capacity(), 0);
    }
    let (caller, replies) = ReplyQueue::of_one_call();
    drop(replies);
    assert_eq!(caller.send(answer(1, 1)).now_or_never(), Some(false), "nobody reads");
}
