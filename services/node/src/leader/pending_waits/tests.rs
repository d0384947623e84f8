use holdfast_core::limit::MAX_CALLERS_OF_WAIT;
use holdfast_core::{AccountId, Incarnation, Owner};

use super::*;

const WAIT: WaitId = WaitId(7);

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "n".into(), incarnation: Incarnation(2) }
}

fn adopted(wait: WaitId, attempts: &[u64]) -> AdoptedWait {
    AdoptedWait { namespace: namespace(), wait, attempts: attempts.to_vec(), cancel: None }
}

fn waits(waits: &mut PendingWaits, attempt: u64) -> Attachment {
    waits.enqueued(&namespace(), WAIT, attempt, attempt);
    waits.attach(WAIT, attempt).unwrap()
}

fn granted(attempt: u64) -> Effect {
    Effect::WaitResolved {
        namespace: namespace(),
        wait: WAIT,
        attempt,
        owner: Owner::Process("p".into()),
        request_id: None,
        claims: vec![],
        outcome: AcquireOutcome::Granted { fencing_token: 9 },
        locks: vec![],
    }
}

fn cancel_for(attempt: u64) -> Rollback {
    Rollback::of_effect(granted(attempt)).unwrap()
}

/// Returns the attempts that the wait reaper cancels after this time.
fn cancels(waits: &mut PendingWaits, after: Duration) -> Vec<Vec<u64>> {
    let orphaned = waits.take_orphaned(Instant::now() + after, Rules::TWO);
    orphaned.into_iter().map(|orphaned| orphaned.attempts).collect()
}

#[tokio::test]
async fn by_rules_1_a_place_is_given_up_by_the_last_of_its_callers_only() {
    let mut all = PendingWaits::default();
    let first = waits(&mut all, 1);
    assert_eq!(all.abandon(WAIT, 3, Rules::ONE), None, "it still waits");
    all.enqueued(&namespace(), WAIT, 2, 2);
    drop(first);
    assert_eq!(all.abandon(WAIT, 1, Rules::ONE), None, "the second call is on its way");
    let second = all.attach(WAIT, 2);
    let third = waits(&mut all, 3);
    drop(second);
    assert_eq!(all.abandon(WAIT, 2, Rules::ONE), None, "another one still waits");
    drop(third);
    assert_eq!(all.abandon(WAIT, 1, Rules::ONE), None, "the third has not said so yet");
    assert_eq!(all.abandon(WAIT, 3, Rules::ONE), Some(vec![3]), "nobody is left, and the highest owns the place");
    assert_eq!(all.abandon(WaitId(8), 3, Rules::ONE), Some(vec![3]), "what was settled meanwhile is given back");
}

#[tokio::test]
async fn whoever_leaves_is_cancelled_with_those_before_that_the_core_was_not_told_of() {
    let mut all = PendingWaits::default();
    let (first, second, third) = (waits(&mut all, 1), waits(&mut all, 2), waits(&mut all, 3));
    drop(first);
    assert_eq!(all.abandon(WAIT, 1, Rules::TWO), Some(vec![1]));
    drop(second);
    assert_eq!(all.abandon(WAIT, 2, Rules::TWO), Some(vec![2, 1]), "the first cancel is not known to be done");
    all.on_cancelled(WAIT, &[2, 1]);
    drop(third);
    assert_eq!(all.abandon(WAIT, 3, Rules::TWO), Some(vec![3]));
    assert_eq!(cancels(&mut all, RECONNECT_GRACE), [vec![3]], "it is tried again until it is done");
}

#[tokio::test]
async fn the_newest_calls_for_a_request_take_the_places_of_the_oldest_and_another_request_keeps_its_own() {
    const MAX: u64 = MAX_CALLERS_OF_WAIT as u64;
    let mut all = PendingWaits::default();
    all.enqueued(&namespace(), WaitId(8), 1, 1);
    let neighbour = all.attach(WaitId(8), 1);
    let mut callers: Vec<_> = (1..=MAX + 2).map(|attempt| waits(&mut all, attempt)).collect();
    for oldest in callers.drain(..2) {
        let Attachment::Pending(told) = oldest else { panic!("it waited") };
        assert!(matches!(told.await, Ok(WaitNotice::Displaced)));
    }
    assert_eq!(all.replaced(WAIT, &[1, 2, MAX + 2]), [1, 2], "their attempts no longer count");
    // The same if all of them hang up, and come again, and are only on their way.
    drop(callers);
    (3..=MAX + 2).for_each(|attempt| all.detach(WAIT, attempt, Duration::from_secs(10)));
    (MAX + 3..4 * MAX).for_each(|attempt| {
        drop(waits(&mut all, attempt));
        all.detach(WAIT, attempt, Duration::from_secs(10));
    });
    (4 * MAX..6 * MAX).for_each(|attempt| all.enqueued(&namespace(), WAIT, attempt, attempt));
    assert!(cancels(&mut all, Duration::from_secs(60))[0].len() <= 3 * MAX_CALLERS_OF_WAIT);
    let Some(Attachment::Pending(mut told)) = neighbour else { panic!("it waits") };
    assert_eq!(told.try_recv().err(), Some(oneshot::error::TryRecvError::Empty), "its wait is another one");
}

#[tokio::test]
async fn a_call_takes_the_place_of_one_whose_poll_has_ended_and_of_no_other() {
    let mut all = PendingWaits::default();
    let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
    drop(second);
    all.detach(WAIT, 2, Duration::from_secs(10));
    assert_eq!(all.replaced(WAIT, &[1, 2]), [2]);
    let third = waits(&mut all, 3);
    all.on_cancelled(WAIT, &[2]);
    assert_eq!(all.replaced(WAIT, &[1, 3]), [0; 0], "both are there");
    drop((first, third));
    all.detach(WAIT, 1, Duration::from_secs(10));
    all.detach(WAIT, 3, Duration::from_secs(20));
    assert_eq!(cancels(&mut all, Duration::from_secs(19)), [[0; 0]; 0]);
    assert_eq!(cancels(&mut all, Duration::from_secs(20)), [[1, 3]]);
}

#[tokio::test]
async fn what_some_have_heard_of_is_given_back_for_the_others_only() {
    let mut all = PendingWaits::default();
    let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
    drop(second);
    all.detach(WAIT, 2, Duration::from_secs(10));
    all.enqueued(&namespace(), WAIT, 3, 3);
    all.resolve(WAIT, granted(3), 5, Rules::TWO);
    let Attachment::Pending(told) = first else { panic!("it waits") };
    assert!(told.await.is_ok());
    assert!(matches!(all.attach(WAIT, 3), Some(Attachment::Resolved(_))));
    assert_eq!(cancels(&mut all, Duration::from_secs(10)), [[2]]);
}

#[tokio::test]
async fn a_grant_that_nobody_could_be_told_of_is_given_back_for_all() {
    let mut all = PendingWaits::default();
    drop((waits(&mut all, 1), waits(&mut all, 2)));
    all.resolve(WAIT, granted(2), 5, Rules::TWO);
    assert_eq!(all.abandon(WAIT, 1, Rules::TWO), Some(vec![1]));
    all.on_cancelled(WAIT, &[1]);
    let reply = Bytes::new();
    all.grant_undelivered(WAIT, 3, reply, cancel_for(3));
    assert_eq!(cancels(&mut all, RECONNECT_GRACE), [[2, 3]]);
}

#[tokio::test]
async fn by_rules_1_what_one_caller_has_heard_of_is_not_given_back() {
    let mut all = PendingWaits::default();
    let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
    drop(second);
    all.detach(WAIT, 2, Duration::from_secs(10));
    all.resolve(WAIT, granted(2), 5, Rules::ONE);
    let Attachment::Pending(told) = first else { panic!("it waits") };
    assert!(told.await.is_ok());
    assert!(all.take_orphaned(Instant::now() + Duration::from_secs(60), Rules::ONE).is_empty());
}

#[tokio::test]
async fn whoever_awaited_a_condition_is_told_what_becomes_of_its_wait_for_the_lock() {
    const MOVED: WaitId = WaitId(8);
    let mut all = PendingWaits::default();
    let (first, second) = (waits(&mut all, 1), waits(&mut all, 2));
    drop(second);
    all.detach(WAIT, 2, Duration::from_secs(10));
    all.moved(WAIT, MOVED);
    assert_eq!((all.current(WAIT), all.replaced(WAIT, &[1, 2])), (MOVED, vec![2]));
    all.resolve(MOVED, granted(1), 5, Rules::TWO);
    let Attachment::Pending(told) = first else { panic!("it waits") };
    assert!(told.await.is_ok());
    all.on_cancelled(WAIT, &[2]);
    assert!(all.pending.is_empty() && all.moved.is_empty() && all.expiries.is_empty());
}

#[tokio::test]
async fn an_await_is_cancelled_by_what_it_gave_up_wherever_it_stands() {
    let mut all = PendingWaits::default();
    drop(waits(&mut all, 1));
    let (path, owner) = (holdfast_core::Path::flat("l"), Owner::Process("p".into()));
    let cancel = CancelAwait { namespace: namespace(), path, owner, fencing_token: 3, attempts: vec![1] };
    all.set_cancel(WAIT, cancel);
    all.detach(WAIT, 1, Duration::ZERO);
    let late = all.take_orphaned(Instant::now(), Rules::TWO).remove(0);
    // It is moved, and nobody waits under that number any more.
    all.moved(WAIT, WaitId(8));
    assert!(matches!(&late.rollback, Some(Rollback::Await(cancel)) if cancel.fencing_token == 3));
    all.reinsert(late);
    let again = all.take_orphaned(Instant::now() + RECONNECT_GRACE, Rules::TWO).remove(0);
    assert!(matches!(again.rollback, Some(Rollback::Await(_))) && again.attempts == [1]);
}

#[tokio::test]
async fn requests_that_expire_together_are_taken_a_few_at_a_time() {
    let (mut all, now) = (PendingWaits::default(), Instant::now());
    (0..600).for_each(|wait| all.adopt(adopted(WaitId(wait), &[1]), now));
    let due = now + RECONNECT_GRACE;
    for taken in [256, 256, 88, 0] {
        assert_eq!(all.next_expiry().is_some_and(|next| next <= due), taken > 0);
        assert_eq!(all.take_orphaned(due, Rules::TWO).len(), taken);
    }
}

#[tokio::test]
async fn a_new_leader_gives_up_what_nobody_comes_back_for() {
    let mut all = PendingWaits::default();
    all.adopt(adopted(WAIT, &[4, 6]), Instant::now());
    assert_eq!(all.replaced(WAIT, &[4, 6]), [4]);
    let back = waits(&mut all, 8);
    drop(back);
    assert_eq!(all.abandon(WAIT, 8, Rules::TWO), Some(vec![8, 4]));
    let late = all.take_orphaned(Instant::now() + RECONNECT_GRACE, Rules::TWO).remove(0);
    assert_eq!(late.attempts, [4, 8, 6]);
    all.reinsert(late);
    assert_eq!(cancels(&mut all, 2 * RECONNECT_GRACE), [[4, 8, 6]], "it is tried again until it is done");
}

#[tokio::test]
async fn callers_of_an_earlier_leader_may_return_from_when_the_leadership_begins() {
    let (mut all, other, now) = (PendingWaits::default(), WaitId(8), Instant::now());
    all.adopt(adopted(WAIT, &[4, 6]), now);
    all.adopt(adopted(other, &[5]), now);
    let begins = now + Duration::from_secs(3);
    all.begin(begins);
    assert!(all.take_orphaned(now + RECONNECT_GRACE, Rules::TWO).is_empty());
    assert_eq!(all.next_expiry(), Some(begins + RECONNECT_GRACE));
    all.adopt(adopted(WaitId(9), &[7]), begins + Duration::from_secs(1));
    let mut late = all.take_orphaned(begins + RECONNECT_GRACE, Rules::TWO);
    late.sort_by_key(|orphaned| orphaned.wait);
    assert_eq!(late.into_iter().map(|orphaned| orphaned.attempts).collect::<Vec<_>>(), [vec![4, 6], vec![5]]);
    assert_eq!(all.next_expiry(), Some(begins + Duration::from_secs(1) + RECONNECT_GRACE));
}
