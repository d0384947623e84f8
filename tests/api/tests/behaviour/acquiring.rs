//! Taking a lock that is free or held.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;

use crate::support::frontends::{instant_ns, now_ms};
use crate::support::{AcquireRequest, Holder, LockClient, Mode, State, TestEnv, through};

through! {
    every_frontend:
        a_free_lock_is_taken_for_writing_with_all_that_a_holder_has,
        a_free_lock_is_taken_for_reading_with_all_that_a_holder_has,
        a_refusal_is_no_error_and_shows_the_holder,
        a_reader_keeps_writers_out_and_lets_readers_in,
        the_same_owner_in_the_other_mode_is_refused,
        many_readers_are_shown_in_order_of_arrival,
        locks_of_different_names_do_not_concern_one_another,
        an_instant_is_taken_as_the_end_of_the_hold,
        of_many_writers_that_ask_at_once_exactly_one_is_let_in,
        no_two_writers_are_ever_inside_together;
    with_tokens:
        a_holder_has_the_metadata_that_it_brought,
        a_refusal_says_why_and_by_whom,
        tokens_rise_with_every_grant,
        a_grant_and_its_token_are_the_revision_of_the_lock;
}

const TTL_MS: i64 = 60_000;

/// What every frontend shows of a new hold. `sent_at` is before the call.
fn assert_new_hold(holder: &Holder, process_id: &str, mode: Mode, asked_at: i64) {
    assert_eq!(holder.process_id, process_id);
    let answered_at = now_ms();
    assert!((asked_at..=answered_at).contains(&holder.locked_at_ms), "{holder:?}");
    assert!((asked_at + TTL_MS - 5..=answered_at + TTL_MS + 5).contains(&holder.expires_at_ms), "{holder:?}");
    assert!(holder.mode.is_none_or(|shown| shown == mode));
    assert!(holder.in_transition.is_none_or(|is_in_transition| !is_in_transition));
    assert!(holder.fencing_token.is_none_or(|token| token > 0));
    assert!(holder.remaining_ms.is_none_or(|left| left > 0 && i64::try_from(left).unwrap() <= TTL_MS));
    assert!(holder.metadata.as_ref().is_none_or(|metadata| metadata.is_empty()));
}

async fn a_free_lock_is_taken_for_writing_with_all_that_a_holder_has<D: LockClient>(world: TestEnv<D>) {
    let asked_at = now_ms();
    let taken = world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    assert_eq!((taken.lock.name.as_str(), taken.lock.state), ("l", State::WriteLocked));
    let writer = taken.lock.writer.as_ref().unwrap();
    assert_new_hold(writer, "p", Mode::Write, asked_at);
    assert_eq!(taken.lock.locked_at_ms, Some(writer.locked_at_ms));
    assert!(taken.lock.readers.is_empty());
    assert_eq!(writer.fencing_token, taken.fencing_token);
    let shown = world.client.get("l").await.unwrap();
    assert_eq!(
        (shown.state, shown.writer_id(), shown.locked_at_ms),
        (State::WriteLocked, "p", taken.lock.locked_at_ms)
    );
}

async fn a_free_lock_is_taken_for_reading_with_all_that_a_holder_has<D: LockClient>(world: TestEnv<D>) {
    let asked_at = now_ms();
    let taken = world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    assert_eq!((taken.lock.name.as_str(), taken.lock.state), ("l", State::ReadLocked));
    assert_eq!((taken.lock.readers.len(), &taken.lock.writer), (1, &None));
    let reader = &taken.lock.readers[0];
    assert_new_hold(reader, "p", Mode::Read, asked_at);
    assert_eq!(taken.lock.locked_at_ms, Some(reader.locked_at_ms));
    assert_eq!(reader.fencing_token, taken.fencing_token);
    let shown = world.client.get("l").await.unwrap();
    assert_eq!((shown.state, shown.reader_ids()), (State::ReadLocked, vec!["p"]));
}

async fn a_refusal_is_no_error_and_shows_the_holder<D: LockClient>(world: TestEnv<D>) {
    let taken = world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    for ask in [AcquireRequest::write("l", "q"), AcquireRequest::read("l", "q")] {
        let refused = world.client.expect_refused(ask).await;
        assert_eq!((refused.lock.state, refused.lock.writer_id()), (State::WriteLocked, "p"));
        assert_eq!(refused.lock.locked_at_ms, taken.lock.locked_at_ms);
    }
    let shown = world.client.get("l").await.unwrap();
    assert_eq!((shown.writer_id(), shown.readers.len(), shown.revision), ("p", 0, taken.lock.revision));
}

async fn a_reader_keeps_writers_out_and_lets_readers_in<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    let refused = world.client.expect_refused(AcquireRequest::write("l", "q")).await;
    assert_eq!((refused.lock.state, refused.lock.reader_ids()), (State::ReadLocked, vec!["p"]));
    let both = world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    assert_eq!(both.lock.reader_ids(), ["p", "q"]);
    assert_eq!(world.client.get("l").await.unwrap().reader_ids(), ["p", "q"]);
}

async fn the_same_owner_in_the_other_mode_is_refused<D: LockClient>(world: TestEnv<D>) {
    for (first, second) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let lock = format!("{first:?}");
        let taken = world.client.expect_granted(AcquireRequest::new(&lock, "p", first)).await;
        let refused = world.client.expect_refused(AcquireRequest::new(&lock, "p", second)).await;
        assert!(refused.reason.is_none_or(|reason| reason == "UPGRADE"));
        assert_eq!((refused.lock.state, refused.lock.revision), (taken.lock.state, taken.lock.revision));
    }
}

async fn many_readers_are_shown_in_order_of_arrival<D: LockClient>(world: TestEnv<D>) {
    // Names whose order is another than that of their arrival.
    let arriving: Vec<String> = (0..20).map(|n| format!("reader-{}", (n * 7) % 20)).collect();
    for reader in &arriving {
        world.client.expect_granted(AcquireRequest::read("l", reader)).await;
    }
    let last = world.client.expect_granted(AcquireRequest::read("l", &arriving[0])).await;
    // An acquire shows sixteen at most, a get shows all.
    assert_eq!(last.lock.reader_ids(), arriving[..16]);
    let shown = world.client.get("l").await.unwrap();
    assert_eq!(shown.reader_ids(), arriving);
    assert_eq!(shown.locked_at_ms, Some(shown.readers[0].locked_at_ms));
    world.client.release("l", &arriving[3]).await.unwrap();
    world.client.expect_granted(AcquireRequest::read("l", &arriving[3])).await;
    let mut expected = arriving.clone();
    let again = expected.remove(3);
    expected.push(again);
    assert_eq!(world.client.get("l").await.unwrap().reader_ids(), expected);
}

async fn locks_of_different_names_do_not_concern_one_another<D: LockClient>(world: TestEnv<D>) {
    for (lock, owner) in [("a", "p"), ("a/b", "q"), ("A", "r"), ("a ", "s")] {
        world.client.expect_granted(AcquireRequest::write(lock, owner)).await;
    }
    assert_eq!(world.client.get("a").await.unwrap().writer_id(), "p");
    let mut held = world.held_locks().await;
    held.sort();
    assert_eq!(held, ["A", "a", "a ", "a/b"]);
}

async fn an_instant_is_taken_as_the_end_of_the_hold<D: LockClient>(world: TestEnv<D>) {
    let until = instant_ns(Duration::from_secs(30)) / 1_000_000 * 1_000_000 + 123_456;
    let asked_at = now_ms();
    let taken = world.client.expect_granted(AcquireRequest::write("l", "p").expires_at(until)).await;
    // The instant becomes a duration where it is received, and that is counted from the grant.
    let on_the_way_ms = now_ms() - asked_at;
    let (shown, asked) = (taken.lock.writer.unwrap().expires_at_ms, until / 1_000_000);
    assert!((asked - on_the_way_ms - 5..=asked + on_the_way_ms + 5).contains(&shown), "{shown}, asked for {asked}");
}

async fn of_many_writers_that_ask_at_once_exactly_one_is_let_in<D: LockClient>(world: TestEnv<D>) {
    for round in 0..3 {
        let lock = format!("l{round}");
        let asking = (0..30).map(|number| world.client.acquire(AcquireRequest::write(&lock, &format!("p{number}"))));
        let answers = join_all(asking).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        let let_in: Vec<&str> =
            answers.iter().filter(|answer| answer.success).map(|answer| answer.lock.writer_id()).collect();
        assert_eq!(let_in.len(), 1, "{let_in:?}");
        assert!(answers.iter().all(|answer| answer.lock.writer_id() == let_in[0]));
    }
}

async fn no_two_writers_are_ever_inside_together<D: LockClient>(world: TestEnv<D>) {
    let inside = AtomicU32::new(0);
    let (client, inside) = (&world.client, &inside);
    let work = (0..8).map(async |number| {
        let mut entered = 0;
        while entered < 5 {
            let me = format!("p{number}");
            if !client.acquire(AcquireRequest::write("l", &me)).await.unwrap().success {
                continue;
            }
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{me} is not alone");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            client.release("l", &me).await.unwrap();
            entered += 1;
        }
    });
    join_all(work).await;
    assert_eq!(world.held_locks().await, [""; 0]);
}

async fn a_holder_has_the_metadata_that_it_brought<D: LockClient>(world: TestEnv<D>) {
    let metadata = |text: &str| [("host".to_owned(), text.to_owned()), ("ü".to_owned(), String::new())].into();
    for text in ["first", "second"] {
        let mut ask = AcquireRequest::write("l", "p");
        ask.metadata = metadata(text);
        let taken = world.client.expect_granted(ask).await;
        assert_eq!(taken.lock.writer.unwrap().metadata, Some(metadata(text)));
        assert_eq!(world.client.get("l").await.unwrap().writer.unwrap().metadata, Some(metadata(text)));
    }
}

async fn a_refusal_says_why_and_by_whom<D: LockClient>(world: TestEnv<D>) {
    for reader in ["p", "q"] {
        world.client.expect_granted(AcquireRequest::read("l", reader)).await;
    }
    let refused = world.client.expect_refused(AcquireRequest::write("l", "w")).await;
    assert_eq!((refused.reason.as_deref(), refused.blockers), (Some("HELD"), vec!["p".to_owned(), "q".to_owned()]));
    let refused = world.client.expect_refused(AcquireRequest::write("l", "p")).await;
    assert_eq!(refused.reason.as_deref(), Some("UPGRADE"));
    for number in 0..20 {
        world.client.expect_granted(AcquireRequest::read("l", &format!("more-{number}"))).await;
    }
    assert_eq!(world.client.expect_refused(AcquireRequest::write("l", "w")).await.blockers.len(), 16);
}

async fn tokens_rise_with_every_grant<D: LockClient>(world: TestEnv<D>) {
    let mut last = 0;
    for round in 0..5 {
        let taken = world.client.expect_granted(AcquireRequest::write("l", &format!("p{round}"))).await;
        let token = taken.fencing_token.unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        if round % 2 == 0 {
            world.client.release("l", &format!("p{round}")).await.unwrap();
        } else {
            world.client.delete("l").await.unwrap();
        }
    }
}

async fn a_grant_and_its_token_are_the_revision_of_the_lock<D: LockClient>(world: TestEnv<D>) {
    let taken = world.client.expect_granted(AcquireRequest::read("l", "p")).await;
    assert_eq!(taken.lock.revision, taken.fencing_token);
    let second = world.client.expect_granted(AcquireRequest::read("l", "q")).await;
    assert_eq!(second.lock.revision, second.fencing_token);
    let released = world.client.release("l", "q").await.unwrap();
    assert!(released.lock.revision > second.lock.revision, "the end of a hold has a revision of its own");
    assert!(world.client.get("l").await.unwrap().revision >= released.lock.revision);
}
