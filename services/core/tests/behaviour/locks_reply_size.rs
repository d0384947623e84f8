//! What answers show: no more than fits, and nothing to nobody.

use holdfast_core::{
    Acquire, AcquireOutcome, Claim, Command, EntryContext, Limits, LocksCommand, Metadata, Mode, Reason, Refused,
    Release, ReleaseTarget, Reply, Response, Rules, Wait, codec,
};

use crate::support::{Shard, orders, process};
use crate::wait_requests::{read, try_request, wait_request, write};

const MAX_BYTES: usize = 64 * 1024;
const CLAIMS: usize = 64;

fn note_of_bytes(bytes: usize) -> Metadata {
    Metadata::from([("note".to_owned(), "x".repeat(bytes))])
}

/// So many locks, each with as many readers as an answer shows, of whom each has a KiB of metadata.
fn full_shard() -> (Shard, Vec<Claim>) {
    let mut shard = Shard::new();
    let claims: Vec<Claim> = (0..CLAIMS).map(|number| read(&number.to_string())).collect();
    for reader in 0..15 {
        shard.granted(Acquire { metadata: note_of_bytes(1_000), ..try_request(&format!("r{reader}"), &claims) });
    }
    (shard, claims)
}

fn apply(shard: &mut Shard, command: LocksCommand) -> (Response, usize) {
    let reply = shard.apply(&Command::Locks(command));
    let bytes = codec::encode(&reply).len();
    (reply.outcome.unwrap(), bytes)
}

#[test]
fn a_grant_of_many_locks_with_many_readers_shows_as_many_as_fit() {
    let (mut shard, claims) = full_shard();
    let last = Acquire { metadata: note_of_bytes(1_000), ..try_request("last", &claims) };
    let (answer, bytes) = apply(&mut shard, LocksCommand::Acquire(last));
    let Response::Acquired { outcome: AcquireOutcome::Granted { .. }, locks } = answer else { panic!("{answer:?}") };
    assert!(bytes <= MAX_BYTES && bytes > MAX_BYTES / 2, "{bytes} bytes");
    assert!(locks.len() == CLAIMS && locks.iter().all(|lock| lock.holders_total == 16));
    assert!(locks[0].read_lock_holders.len() == 16 && locks[CLAIMS - 1].read_lock_holders.is_empty());

    let what =
        ReleaseTarget::Paths { paths: claims.iter().map(|claim| claim.path.clone()).collect(), fencing_token: None };
    let release = Release { namespace: orders(), owner: process("last"), what, message: None };
    let (answer, bytes) = apply(&mut shard, LocksCommand::Release(release));
    let Response::Released { released: true, locks } = answer else { panic!("{answer:?}") };
    assert!(bytes <= MAX_BYTES && locks.iter().all(|lock| lock.holders_total == 15), "{bytes} bytes");
}

#[test]
fn a_writer_of_many_locks_is_shown_at_each_without_metadata_where_that_is_too_much() {
    let mut shard = Shard::new();
    let claims: Vec<Claim> = (0..CLAIMS).map(|number| write(&number.to_string())).collect();
    let (answer, bytes) = apply(
        &mut shard,
        LocksCommand::Acquire(Acquire { metadata: note_of_bytes(2_000), ..try_request("w", &claims) }),
    );
    let Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, locks } = answer else {
        panic!("{answer:?}")
    };
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
    let writers: Vec<_> = locks.iter().filter_map(|lock| lock.write_lock_holder.as_ref()).collect();
    assert!(writers.len() == CLAIMS && writers.iter().all(|writer| writer.fencing_token == fencing_token));
    assert!(writers[0].metadata == note_of_bytes(2_000) && writers[CLAIMS - 1].metadata.is_empty());
    assert_eq!(shard.get("63").write_lock_holder.unwrap().metadata, note_of_bytes(2_000), "a get shows it");
}

#[test]
fn a_refusal_names_as_many_who_are_in_the_way_as_fit() {
    let mut shard = Shard::new();
    for reader in 0..16 {
        shard.granted(Acquire { metadata: note_of_bytes(5_000), ..try_request(&format!("r{reader}"), &[read("l")]) });
    }
    for request in [try_request("w", &[write("l")]), wait_request("w", &[write("l")])] {
        let (answer, bytes) = apply(&mut shard, LocksCommand::Acquire(request.clone()));
        let not_granted = not_granted(answer);
        assert!(bytes <= MAX_BYTES && not_granted.blockers.len() == 4, "{bytes} bytes");
    }
    // Somebody asks again for the place.
    let (answer, bytes) = apply(&mut shard, LocksCommand::Acquire(wait_request("w", &[write("l")])));
    assert!(bytes <= MAX_BYTES && not_granted(answer).queue_position == Some(0), "{bytes} bytes");
}

#[test]
fn a_cycle_of_long_paths_is_shown_as_far_as_it_fits() {
    let mut shard = Shard::new();
    let lock = |number: usize| write(&format!("{number}{}", "x".repeat(1_000)));
    for number in 0..100 {
        shard.granted(try_request(&format!("p{number}"), &[lock(number)]));
    }
    for number in 0..99 {
        shard.enqueued(wait_request(&format!("p{number}"), &[lock(number + 1)]));
    }
    let (answer, bytes) = apply(&mut shard, LocksCommand::Acquire(wait_request("p99", &[lock(0)])));
    let refusal = not_granted(answer);
    assert_eq!(refusal.reason, Reason::Deadlock);
    assert!(bytes <= MAX_BYTES && (10..=16).contains(&refusal.cycle.len()), "{bytes} bytes");
}

fn not_granted(answer: Response) -> Refused {
    match answer {
        Response::Acquired { outcome: AcquireOutcome::Refused(refusal), .. } => *refusal,
        Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. } => enqueued.not_granted,
        other => panic!("granted: {other:?}"),
    }
}

#[test]
fn whoever_waited_is_told_of_as_many_holders_as_fit() {
    let (mut shard, claims) = full_shard();
    let writes: Vec<Claim> = claims.iter().map(|claim| Claim { mode: Mode::Write, ..claim.clone() }).collect();
    shard.enqueued(Acquire { metadata: note_of_bytes(2_000), ..wait_request("w", &writes) });
    shard.core.take_effects();
    for reader in 0..15 {
        let release = Release {
            namespace: orders(),
            owner: process(&format!("r{reader}")),
            what: ReleaseTarget::All,
            message: None,
        };
        shard.run(LocksCommand::Release(release)).unwrap();
    }
    let effects = shard.core.take_effects();
    let settled = effects.iter().map(|effect| codec::encode(effect).len()).max();
    assert!(settled.is_some_and(|bytes| bytes > MAX_BYTES / 2 && bytes <= MAX_BYTES), "{settled:?}");
}

#[test]
fn a_get_shows_a_thousand_readers() {
    let mut shard = Shard::with_limits(Limits { max_readers_per_lock: 2_000, ..Default::default() });
    for reader in 0..1_200 {
        shard.granted(try_request(&format!("r{reader}"), &[read("l")]));
    }
    let lock = shard.get("l");
    assert_eq!((lock.read_lock_holders.len(), lock.holders_total), (1_000, 1_200));
}

#[test]
fn whoever_owes_no_reply_shows_nothing_and_comes_to_the_same_state() {
    let (mut seen, mut unseen) = (Shard::new(), Shard::new());
    let context = |shard: &Shard| EntryContext { now_ms: shard.core.clock_ms(), wall_ms: 5, rules: Rules::ONE };
    let commands = [
        try_request("a", &[write("l"), read("m")]),
        try_request("b", &[write("l")]),
        wait_request("b", &[write("l")]),
        wait_request("b", &[write("l")]),
        Acquire { wait: Wait::No, ..wait_request("b", &[write("l")]) },
        wait_request("a", &[write("m")]),
    ];
    let release = Release { namespace: orders(), owner: process("a"), what: ReleaseTarget::All, message: None };
    let commands = commands.into_iter().map(LocksCommand::Acquire).chain([LocksCommand::Release(release)]);
    for command in commands.map(Command::Locks) {
        let (with, without) = (context(&seen), context(&unseen));
        let owed = seen.core.apply(&with, &command);
        let reply = unseen.core.apply_without_views(&without, &command);
        assert_eq!(without_views(&owed), without_views(&reply), "{command:?}");
        assert_eq!(view_count(&reply), 0, "{reply:?}");
        assert!(view_count(&owed) > 0 && seen.core.snapshot() == unseen.core.snapshot());
        assert_eq!(seen.core.take_effects(), unseen.core.take_effects());
    }
    assert!(seen.core.views_built() >= 7);
    assert_eq!(unseen.core.views_built(), 0);
}

/// What a reply says when nothing is shown.
fn without_views(reply: &Reply) -> String {
    match &reply.outcome {
        Ok(Response::Acquired { outcome: AcquireOutcome::Refused(refusal), .. }) => format!("{:?}", refusal.reason),
        Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) => {
            format!("{:?} {} {:?}", enqueued.wait, enqueued.attempt, enqueued.not_granted.reason)
        }
        Ok(Response::Acquired { outcome, .. }) => format!("{outcome:?}"),
        Ok(Response::Released { released, .. }) => format!("{released}"),
        other => panic!("{other:?}"),
    }
}

/// How many locks and people a reply shows.
fn view_count(reply: &Reply) -> usize {
    let of_refusal = |refusal: &Refused| {
        refusal.blockers.len() + refusal.cycle.len() + usize::from(refusal.queue_position.is_some())
    };
    match &reply.outcome {
        Ok(Response::Acquired { outcome: AcquireOutcome::Refused(refusal), locks }) => {
            of_refusal(refusal) + locks.len()
        }
        Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), locks }) => {
            of_refusal(&enqueued.not_granted) + locks.len()
        }
        Ok(Response::Acquired { locks, .. } | Response::Released { locks, .. }) => locks.len(),
        other => panic!("{other:?}"),
    }
}
