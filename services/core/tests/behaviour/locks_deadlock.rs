//! Cycles of waits are refused at once and named; what only looks like one is not.

use holdfast_core::{Acquire, CycleStep, Owner, Reason, Refused};

use crate::support::{Shard, process};
use crate::wait_requests::{read, session_wait_request, try_request, wait_request, write};

fn deadlock(shard: &mut Shard, request: Acquire) -> Refused {
    let why = shard.refused(request);
    assert_eq!(why.reason, Reason::Deadlock);
    why
}

fn owners(cycle: &[CycleStep]) -> Vec<&str> {
    cycle.iter().map(|step| step.process_id.as_str()).collect()
}

#[test]
fn two_that_want_what_the_other_holds() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a")]));
    shard.granted(try_request("p2", &[write("b")]));
    shard.queued(wait_request("p1", &[write("b")]), Reason::Held);
    let why = deadlock(&mut shard, wait_request("p2", &[write("a")]));
    assert_eq!(owners(&why.cycle), ["p1", "p2"]);
    assert_eq!(why.cycle[0].owner, process("p1"));
    assert!(why.cycle.iter().all(|step| !step.waiting), "both hold what is wanted");
    assert_eq!(shard.waiting_owners(), ["p1"], "everybody else keeps waiting");
    shard.release_paths("p2", &["b"]);
    assert_eq!(shard.granted_owners(), ["p1"]);
}

#[test]
fn without_a_wait_it_is_only_held() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a")]));
    shard.granted(try_request("p2", &[write("b")]));
    shard.queued(wait_request("p1", &[write("b")]), Reason::Held);
    assert_eq!(shard.refused(try_request("p2", &[write("a")])).reason, Reason::Held);
}

#[test]
fn three_through_a_tree_and_a_set() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a/x")]));
    shard.granted(try_request("p2", &[write("b"), read("c")]));
    shard.granted(try_request("p3", &[write("d/1/2")]));
    shard.queued(wait_request("p1", &[write("e"), write("c")]), Reason::Held);
    shard.queued(wait_request("p2", &[read("d")]), Reason::Descendant);
    let why = deadlock(&mut shard, wait_request("p3", &[write("f"), read("a")]));
    assert_eq!(owners(&why.cycle), ["p1", "p2", "p3"]);
    let paths: Vec<String> = why.cycle.iter().map(|step| step.path.0.join("/")).collect();
    assert_eq!(paths, ["a/x", "c", "d/1/2"]);
}

/// Replicas number their paths in the order in which they came, one that was restored in another one.
#[test]
fn a_restored_replica_names_the_same_cycle() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("z")]));
    shard.granted(try_request("p1", &[write("a")]));
    shard.granted(try_request("p2", &[write("b")]));
    shard.queued(wait_request("p2", &[write("a"), write("z")]), Reason::Held);
    let mut restored = shard.restored();
    let why = deadlock(&mut shard, wait_request("p1", &[write("b")]));
    assert_eq!(why.cycle[1].path.0, ["a"]);
    assert_eq!(deadlock(&mut restored, wait_request("p1", &[write("b")])), why);
}

#[test]
fn a_hundred_in_a_ring() {
    let mut shard = Shard::new();
    let lock = |index: u64| format!("ring/{index}");
    for index in 0..100 {
        shard.granted(try_request(&format!("p{index:02}"), &[write(&lock(index))]));
    }
    for index in 0..99 {
        shard.queued(wait_request(&format!("p{index:02}"), &[write(&lock(index + 1))]), Reason::Held);
    }
    let why = deadlock(&mut shard, wait_request("p99", &[write(&lock(0))]));
    let expected: Vec<String> = (0..100).map(|index| format!("p{index:02}")).collect();
    assert_eq!(owners(&why.cycle), expected);
    shard.granted(wait_request("p99", &[write("elsewhere")]));
    shard.release_paths("p99", &["ring/99"]);
    assert_eq!(shard.granted_owners(), ["p98"]);
}

#[test]
fn a_place_in_the_queue_closes_no_cycle_but_lets_overtake_whoever_is_waited_for() {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("x")]));
    shard.granted(try_request("behind", &[write("z")]));
    shard.queued(wait_request("front", &[write("x"), write("y")]), Reason::Held);
    shard.queued(wait_request("behind", &[write("y")]), Reason::Queued);
    // From now on the front waits for the one behind it, who therefore need not wait for the front.
    shard.queued(wait_request("front", &[write("z")]), Reason::Held);
    assert_eq!(shard.granted_owners(), ["behind"]);
    shard.release_paths("behind", &["z"]);
    assert_eq!(shard.granted_owners(), ["front"]);
}

#[test]
fn the_order_of_two_waits_that_close_no_cycle_does_not_matter() {
    for a_comes_first in [true, false] {
        let mut shard = Shard::new();
        shard.granted(try_request("a", &[write("a")]));
        shard.granted(try_request("b", &[write("c")]));
        shard.queued(wait_request("s", &[write("a"), write("b")]), Reason::Held);
        if a_comes_first {
            shard.queued(wait_request("a", &[write("c")]), Reason::Held);
            shard.granted(wait_request("b", &[write("b")]));
        } else {
            shard.queued(wait_request("b", &[write("b")]), Reason::Queued);
            shard.queued(wait_request("a", &[write("c")]), Reason::Held);
            assert_eq!(shard.granted_owners(), ["b"]);
        }
        assert_eq!(shard.waiting_owners(), ["s", "a"]);
    }
}

#[test]
fn a_holder_of_an_ancestor_and_one_of_a_descendant() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[read("a")]));
    shard.granted(try_request("p2", &[read("b/x")]));
    shard.queued(wait_request("p1", &[write("b")]), Reason::Descendant);
    assert_eq!(owners(&deadlock(&mut shard, wait_request("p2", &[write("a/y")])).cycle), ["p1", "p2"]);
    assert_eq!(owners(&deadlock(&mut shard, wait_request("p2", &[write("")])).cycle), ["p1", "p2"]);
}

#[test]
fn threads_of_one_session_can_wait_for_one_another_in_a_circle_too() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let by = |holder: &str, name: &str, path: &str| {
        let owner = Owner::Session { session_id: "se_1".into(), holder: Some(holder.into()) };
        Acquire { owner, ..session_wait_request("se_1", name, &[write(path)]) }
    };
    shard.granted(by("t1", "1", "a"));
    shard.granted(by("t2", "2", "b"));
    shard.queued(by("t1", "3", "b"), Reason::Held);
    assert_eq!(deadlock(&mut shard, by("t2", "4", "a")).cycle.len(), 2);
}

#[test]
fn a_diamond_is_no_cycle() {
    let mut shard = Shard::new();
    shard.granted(try_request("bottom", &[write("a")]));
    shard.granted(try_request("left", &[write("l")]));
    shard.granted(try_request("right", &[write("r")]));
    shard.granted(try_request("top", &[write("t")]));
    shard.queued(wait_request("left", &[write("a")]), Reason::Held);
    shard.queued(wait_request("right", &[read("a")]), Reason::Held);
    shard.queued(wait_request("top", &[write("l"), write("r")]), Reason::Held);
    assert_eq!(shard.waiting_owners(), ["left", "right", "top"]);
    shard.release_paths("bottom", &["a"]);
    assert_eq!(shard.granted_owners(), ["left"]);
}

#[test]
fn many_that_wait_for_one_are_no_cycle() {
    let mut shard = Shard::new();
    shard.granted(try_request("p0", &[write("hot")]));
    for index in 1..50 {
        let owner = format!("p{index}");
        shard.granted(try_request(&owner, &[write(&format!("own/{index}"))]));
        shard.queued(wait_request(&owner, &[write("hot")]), Reason::Held);
    }
    shard.granted(try_request("q", &[write("cold")]));
    shard.queued(wait_request("p0", &[write("cold")]), Reason::Held);
    assert_eq!(deadlock(&mut shard, wait_request("q", &[write("own/17")])).cycle.len(), 3);
    shard.release_paths("q", &["cold"]);
    assert_eq!(shard.granted_owners(), ["p0"]);
}
