//! What barriers and conditions count against the limit of bytes of their namespace's tables, as documented.

use holdfast_core::{
    Acquire, ArriveAtBarrier, BarrierCommand, BarrierOutcome, CommandError, Limits, Metadata, OnLoss, Owner, Response,
    Rules,
};

use crate::barriers::{arrival, arrive, barrier, configure};
use crate::conditions::await_command;
use crate::primitives::{limit_of, limited};
use crate::support::{Shard, process};
use crate::wait_requests::{try_request, write};

const BARRIER: u64 = 256;
const PARTY: u64 = 160;
const AWAIT: u64 = 320;

fn within(max: u64) -> Shard {
    let mut shard = limited(Limits { max_primitive_bytes: max, ..Limits::default() });
    shard.rules = Rules::TWO;
    shard
}

/// An arrival at the barrier `b`.
fn of_three(owner: &str) -> ArriveAtBarrier {
    ArriveAtBarrier { parties: Some(3), ..arrival(process(owner)) }
}

fn try_to_arrive(shard: &mut Shard, request: ArriveAtBarrier) -> Result<Response, CommandError> {
    barrier(shard, BarrierCommand::Arrive(request))
}

#[test]
fn a_barrier_counts_with_its_name_and_each_party_with_its_own() {
    let bytes = (BARRIER + 1) + 2 * (PARTY + 2);
    for (max, fits) in [(bytes, true), (bytes - 1, false)] {
        let shard = &mut within(max);
        assert_eq!(arrive(shard, of_three("p1")).outcome, BarrierOutcome::Waiting);
        assert_eq!(try_to_arrive(shard, of_three("p2")).is_ok(), fits, "within {max}");
        assert_eq!(limit_of(try_to_arrive(shard, of_three("p3"))), Some("max_primitive_bytes"));
        shard.core.verify();
        shard.restored().core.verify();
    }
    let metadata: Metadata = [("k".to_owned(), "x".repeat(100))].into();
    let described = ArriveAtBarrier { metadata, ..of_three("p1") };
    assert_eq!(limit_of(try_to_arrive(&mut within(bytes), described.clone())), None);
    let too_few = BARRIER + 1 + PARTY + 2 + 100;
    assert_eq!(
        limit_of(try_to_arrive(&mut within(too_few), described)),
        Some("max_primitive_bytes"),
        "metadata counts"
    );
    assert_eq!(limit_of(try_to_arrive(&mut within(BARRIER), of_three("p1"))), Some("max_primitive_bytes"));
}

#[test]
fn no_trip_needs_more_bytes_and_those_inside_count_on() {
    let shard = &mut within((BARRIER + 1) + 3 * (PARTY + 2));
    configure(shard, 2, true, OnLoss::Break);
    arrive(shard, arrival(process("p1")));
    assert_eq!(arrive(shard, arrival(process("p2"))).outcome, BarrierOutcome::Tripped);
    shard.core.verify();
    assert_eq!(arrive(shard, arrival(process("p3"))).outcome, BarrierOutcome::Waiting);
    assert_eq!(limit_of(try_to_arrive(shard, arrival(process("p4")))), Some("max_primitive_bytes"));
    shard.restored().core.verify();
}

#[test]
fn an_await_counts_with_its_owner_and_the_name_of_its_condition() {
    let bytes = AWAIT + 2 + 4;
    let awaits = |shard: &mut Shard, owner: &str| {
        let token = shard.granted(try_request(owner, &[write("l")]));
        let outcome = shard.try_await(await_command(process(owner), token, "full"));
        shard.core.verify();
        shard.restored().core.verify();
        limit_of(outcome)
    };
    for (max, refused) in [(2 * bytes, None), (2 * bytes - 1, Some("max_primitive_bytes"))] {
        let shard = &mut within(max);
        assert_eq!(awaits(shard, "p1"), None);
        assert_eq!(awaits(shard, "p2"), refused, "within {max}");
    }
    assert_eq!(awaits(&mut within(bytes - 1), "p1"), Some("max_primitive_bytes"));
}

#[test]
fn an_await_of_a_session_counts_the_names_of_session_and_holder() {
    let owner = Owner::Session { session_id: "se_1".into(), holder: Some("t1".into()) };
    for (max, refused) in [(AWAIT + 6 + 4, None), (AWAIT + 6 + 3, Some("max_primitive_bytes"))] {
        let shard = &mut within(max);
        shard.open_session("se_1");
        let token = shard.granted(Acquire { owner: owner.clone(), ttl_ms: None, ..try_request("", &[write("l")]) });
        let awaits = await_command(owner.clone(), token, "full");
        assert_eq!(limit_of(shard.try_await(awaits)), refused, "within {max}");
    }
}
