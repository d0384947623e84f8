//! First come, first served; and whom that does not hold up.

use holdfast_core::{Acquire, Reason, Wait};

use crate::support::{Shard, assert_nothing_is_left};
use crate::wait_requests::{cancel_command, read, try_request, wait_request, write};

#[test]
fn three_readers_behind_a_writer_are_let_in_together() {
    let mut shard = Shard::new();
    shard.granted(try_request("w", &[write("l")]));
    for (index, reader) in ["r1", "r2", "r3"].into_iter().enumerate() {
        let place = shard.enqueued(wait_request(reader, &[read("l")]));
        assert_eq!(place.not_granted.queue_position, Some(index as u64));
    }
    shard.release_paths("w", &["l"]);
    assert_eq!(shard.granted_owners(), ["r1", "r2", "r3"]);
    assert_eq!((shard.holders("l"), shard.waiting_owners()), (vec!["r1".into(), "r2".into(), "r3".into()], vec![]));
}

#[test]
fn a_reader_that_comes_behind_a_waiting_writer_waits() {
    let mut shard = Shard::new();
    shard.granted(try_request("r1", &[read("l")]));
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    let why = shard.refused(try_request("r2", &[read("l")]));
    assert_eq!((why.reason, why.blockers[0].waiting, &*why.blockers[0].holder.process_id), (Reason::Queued, true, "w"));
    shard.queued(wait_request("r2", &[read("l")]), Reason::Queued);
    shard.queued(wait_request("r3", &[read("l/child")]), Reason::Queued);
    shard.release_paths("r1", &["l"]);
    assert_eq!(shard.granted_owners(), ["w"]);
    shard.release_paths("w", &["l"]);
    assert_eq!(shard.granted_owners(), ["r2", "r3"]);
}

#[test]
fn writers_are_granted_in_order_of_arrival() {
    let mut shard = Shard::new();
    shard.granted(try_request("w0", &[write("l")]));
    for index in 1..=20 {
        shard.enqueued(wait_request(&format!("w{index}"), &[write("l")]));
    }
    for index in 0..20 {
        shard.release_paths(&format!("w{index}"), &["l"]);
        assert_eq!(shard.granted_owners(), [format!("w{}", index + 1)]);
    }
    shard.release_paths("w20", &["l"]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn siblings_never_wait_for_one_another() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a/x")]));
    shard.queued(wait_request("p2", &[write("a/x")]), Reason::Held);
    shard.granted(wait_request("p3", &[write("a/y")]));
    shard.granted(wait_request("p4", &[write("a/z"), read("b")]));
    assert_eq!(shard.waiting_owners(), ["p2"]);
}

#[test]
fn what_is_awaited_above_holds_up_what_comes_below_and_the_other_way_round() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[read("a/x")]));
    shard.queued(wait_request("above", &[write("a")]), Reason::Descendant);
    assert_eq!(shard.refused(try_request("below", &[read("a/y")])).reason, Reason::Queued);
    shard.release_paths("p1", &["a/x"]);
    assert_eq!(shard.granted_owners(), ["above"]);
    shard.release_paths("above", &["a"]);
    shard.granted(try_request("p1", &[read("a")]));
    shard.queued(wait_request("below", &[write("a/y")]), Reason::Ancestor);
    assert_eq!(shard.refused(try_request("other", &[read("a")])).reason, Reason::Queued);
    shard.granted(try_request("other", &[read("a/z")]));
}

#[test]
fn the_end_of_the_wait_in_front_lets_the_next_in() {
    let mut shard = Shard::new();
    shard.granted(try_request("r1", &[read("l")]));
    shard.enqueued(Acquire { wait: Wait::For(100), ..wait_request("w", &[write("l")]) });
    shard.queued(wait_request("r2", &[read("l")]), Reason::Queued);
    shard.advance_by(99);
    assert_eq!(shard.resolved_waits(), []);
    shard.advance_by(1);
    let settled = shard.resolved_waits();
    assert_eq!(settled.len(), 2);
    assert_eq!(settled[0], ("w".into(), Err(Reason::TimedOut)));
    assert!(settled[1].0 == "r2" && settled[1].1.is_ok());
}

#[test]
fn a_cancel_of_the_wait_in_front_lets_the_next_in() {
    let mut shard = Shard::new();
    shard.granted(try_request("r1", &[read("l")]));
    let writer = Acquire { attempt: 7, ..wait_request("w", &[write("l")]) };
    shard.enqueued(writer.clone());
    shard.queued(wait_request("r2", &[read("l")]), Reason::Queued);
    shard.run(cancel_command(&writer)).unwrap();
    assert_eq!(shard.granted_owners(), ["r2"]);
}

#[test]
fn a_holder_that_becomes_a_reader_lets_readers_in() {
    let mut shard = Shard::new();
    let token = shard.granted(try_request("w", &[write("l")]));
    shard.queued(wait_request("r", &[read("l")]), Reason::Held);
    let weaker = Acquire { allow_upgrade: true, ..try_request("w", &[read("l")]) };
    assert_eq!(shard.granted(weaker), token, "a weaker mode keeps its token");
    assert_eq!(shard.granted_owners(), ["r"]);
    assert_eq!(shard.holders("l"), ["w", "r"]);
}

#[test]
fn one_in_front_that_waits_for_one_behind_it_is_overtaken_however_far_the_way() {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("x")]));
    shard.granted(try_request("behind", &[write("z")]));
    shard.queued(wait_request("h", &[write("z")]), Reason::Held);
    shard.queued(wait_request("front", &[write("x"), write("y")]), Reason::Held);
    assert_eq!(shard.refused(try_request("other", &[write("y")])).reason, Reason::Queued);
    shard.granted(try_request("behind", &[write("y")]));
}

#[test]
fn one_that_overtook_stands_behind_again_when_nobody_in_front_waits_for_it_any_more() {
    let mut shard = Shard::new();
    shard.granted(try_request("p", &[write("x")]));
    shard.granted(try_request("h", &[write("z")]));
    shard.queued(wait_request("front", &[write("x"), write("y")]), Reason::Held);
    // `p` overtakes `front`, which waits for it, but not the holder of z.
    shard.queued(wait_request("p", &[write("y"), write("z")]), Reason::Held);
    shard.queued(wait_request("late", &[write("z")]), Reason::Held);
    shard.release_paths("p", &["x"]);
    assert_eq!(shard.granted_owners(), ["front"], "it comes first again");
    shard.release_paths("h", &["z"]);
    assert_eq!(shard.granted_owners(), [""; 0], "p waits for y, and late came after p");
    shard.release_paths("front", &["y"]);
    assert_eq!(shard.granted_owners(), ["p"]);
}

#[test]
fn an_owner_gets_at_once_what_others_wait_for_because_of_it() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a")]));
    shard.queued(wait_request("p2", &[write("a"), write("b")]), Reason::Held);
    shard.granted(try_request("p1", &[write("b")]));
    shard.granted(try_request("p1", &[write("a/x")]));
    assert_eq!(shard.refused(try_request("p3", &[write("b")])).reason, Reason::Held);
}
