//! Ten thousand holds, arrivals and awaits of all kinds that end together: no entry takes more than a slice, and others
//! go on.

use std::time::{Duration, Instant};

use holdfast_core::{
    Acquire, AcquireOutcome, AcquirePermits, ArriveAtBarrier, AwaitCondition, BarrierCommand, BarrierOutcome, Bounds,
    ConfigureBarrier, ConfigurePool, ConfigureSemaphore, Effect, Kind, LocksCommand, MemberSpec, Metadata, OnLoss,
    Owner, Path, PermitCommand, Response, Rules, Wait, Wanted, Woken,
};

use crate::barriers::{arrival, arrive, barrier};
use crate::conditions::await_command;
use crate::cost_table::SESSION;
use crate::primitives::{acquire, permits, semaphore};
use crate::support::{Shard, orders, process};
use crate::wait_requests::{try_request, write};

const LOCKS: usize = 3_002;
const PERMITS: usize = 2_000;
const MEMBERS: usize = 2_000;
const ARRIVALS: usize = 1_998;
const AWAITS: usize = 1_000;
/// All of them.
const ENDS: usize = LOCKS + PERMITS + MEMBERS + ARRIVALS + AWAITS;
/// Members of a pool, and parties of a barrier.
const MAX_MEMBERS: usize = 1_000;
const PARTIES: usize = 1_000;
/// Members that one request takes.
const MAX_TAKEN: u64 = 64;
const A_SLICE: u64 = 4_096;
const ENDS_PER_ENTRY: usize = 256;
/// When all of it ends, unless its session ends before.
const TTL_MS: u64 = 60_000;
/// Of those who go on then.
const LONG_MS: u64 = 600_000;

/// Who has what ends.
#[derive(Clone, Copy)]
enum Owners {
    /// Each a process of its own.
    Processes,
    /// Each a thread of one session.
    Threads,
}

impl Owners {
    fn owner(self, number: usize) -> Owner {
        match self {
            Self::Processes => process(&format!("p{number}")),
            Self::Threads => Owner::Session { session_id: SESSION.to_owned(), holder: Some(format!("t{number}")) },
        }
    }

    fn ttl_ms(self) -> Option<u64> {
        matches!(self, Self::Processes).then_some(TTL_MS)
    }
}

fn named(kind: &str, number: usize, each: usize) -> Path {
    Path::flat(format!("{kind}{}", number / each))
}

fn granted(shard: &mut Shard, request: AcquirePermits) {
    let outcome = acquire(shard, request);
    assert!(matches!(outcome, Ok(AcquireOutcome::Granted { .. })), "{outcome:?}");
}

fn enqueued(shard: &mut Shard, request: AcquirePermits) {
    let outcome = acquire(shard, AcquirePermits { wait: Wait::For(LONG_MS), ..request });
    assert!(matches!(outcome, Ok(AcquireOutcome::Enqueued(_))), "{outcome:?}");
}

fn configured(shard: &mut Shard, command: PermitCommand) {
    let answer = semaphore(shard, command);
    assert!(answer.is_ok(), "{answer:?}");
}

fn lock(owner: Owner, ttl_ms: Option<u64>, path: &str) -> Acquire {
    Acquire { owner, ttl_ms, ..try_request("", &[write(path)]) }
}

/// A request for some of what there is, by an id that its session has once.
fn want(id: &str, owner: Owner, ttl_ms: Option<u64>, path: Path, wanted: Wanted) -> AcquirePermits {
    AcquirePermits { path, wanted, ttl_ms, ..permits(owner, id, 1) }
}

fn of_permits(weight: usize) -> Wanted {
    Wanted::Permits { weight: weight as u64, permits: None }
}

fn of_members(count: u64) -> Wanted {
    Wanted::Members { count, prefer: None }
}

fn take_permits_and_members(shard: &mut Shard, owners: Owners) {
    let (description, metadata) = (String::new(), Metadata::new());
    let (namespace, path, permits) = (orders(), Path::flat("s"), PERMITS as u64);
    configured(shard, PermitCommand::Configure(ConfigureSemaphore { namespace, path, permits, description, metadata }));
    for first in (0..MEMBERS).step_by(MAX_MEMBERS) {
        let spec =
            |number: usize| MemberSpec { name: format!("m{number:04}"), disabled: false, metadata: Metadata::new() };
        let pool = ConfigurePool {
            namespace: orders(),
            path: named("pool", first, MAX_MEMBERS),
            members: (0..MAX_MEMBERS).map(spec).collect(),
            cooldown_ms: 0,
            description: String::new(),
            metadata: Metadata::new(),
        };
        configured(shard, PermitCommand::ConfigurePool(pool));
    }
    for number in 0..PERMITS {
        let id = format!("permit-{number}");
        granted(shard, want(&id, owners.owner(number), owners.ttl_ms(), Path::flat("s"), of_permits(1)));
    }
    for number in 0..MEMBERS {
        let (id, path) = (format!("member-{number}"), named("pool", number, MAX_MEMBERS));
        granted(shard, want(&id, owners.owner(number), owners.ttl_ms(), path, of_members(1)));
    }
}

/// Everything that ends, in as many things of each kind as it takes.
fn take_all(shard: &mut Shard, owners: Owners) {
    for number in 0..LOCKS {
        shard.granted(lock(owners.owner(number), owners.ttl_ms(), &format!("h/{number}")));
    }
    take_permits_and_members(shard, owners);
    for number in 0..ARRIVALS {
        let path = named("b", number, PARTIES - 1);
        if number % (PARTIES - 1) == 0 {
            let configure = ConfigureBarrier {
                namespace: orders(),
                path: path.clone(),
                parties: PARTIES as u32,
                double: false,
                on_loss: OnLoss::Withdraw,
                retain_ms: 0,
                description: String::new(),
                metadata: Metadata::new(),
            };
            assert!(barrier(shard, BarrierCommand::Configure(configure)).is_ok());
        }
        let (owner, ttl_ms) = (owners.owner(number), owners.ttl_ms());
        let arrived = arrive(shard, ArriveAtBarrier { path, ttl_ms, parties: None, ..arrival(owner) });
        assert_eq!(arrived.outcome, BarrierOutcome::Waiting);
    }
    for number in 0..AWAITS {
        // They hold nothing else, so nobody waits for them.
        let owner = owners.owner(LOCKS + number);
        let fencing_token = shard.granted(lock(owner.clone(), owners.ttl_ms(), "l"));
        let awaits = await_command(owner, fencing_token, "");
        let wait = Wait::For(TTL_MS);
        let outcome = shard.try_await(AwaitCondition { wait, relock_ms: Some(LONG_MS), ..awaits });
        assert!(matches!(outcome, Ok((AcquireOutcome::Enqueued(_), None))), "{outcome:?}");
    }
}

/// One waits for a lock, one for all permits, and one for as many members as it may take.
fn wait_for_them(shard: &mut Shard) {
    let next = || process("next");
    let waits = Acquire { wait: Wait::For(LONG_MS), ..lock(next(), Some(LONG_MS), "h") };
    shard.enqueued(waits);
    enqueued(shard, want("permits", next(), Some(LONG_MS), Path::flat("s"), of_permits(PERMITS)));
    enqueued(shard, want("members", next(), Some(LONG_MS), Path::flat("pool0"), of_members(MAX_TAKEN)));
}

/// What a run of entries told.
#[derive(Debug, Default)]
struct Told {
    locks: usize,
    permits: usize,
    members: usize,
    elapsed: usize,
    entries: usize,
    max_units: u64,
    longest: Duration,
}

impl Told {
    fn read(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::WaitResolved { outcome: AcquireOutcome::Granted { .. }, .. } => self.locks += 1,
                Effect::PermitsResolved { outcome: AcquireOutcome::Granted { .. }, view, .. } => match view.kind() {
                    Kind::Pool => self.members += 1,
                    _ => self.permits += 1,
                },
                Effect::AwaitWoken { woken: Woken::Elapsed, .. } => self.elapsed += 1,
                _ => {}
            }
        }
    }
}

/// Does something, and goes on until all is over that it began.
fn end(shard: &mut Shard, act: impl FnOnce(&mut Shard)) -> Told {
    let (mut told, mut act) = (Told::default(), Some(act));
    drop(shard.core.take_effects());
    while told.entries == 0 || shard.core.has_backlog() {
        let (before, began) = (shard.core.units(), Instant::now());
        match act.take() {
            Some(act) => act(shard),
            None => shard.advance_by(0),
        }
        told.longest = told.longest.max(began.elapsed());
        told.max_units = told.max_units.max(shard.core.units() - before);
        told.entries += 1;
        told.read(shard.core.take_effects());
    }
    shard.core.verify();
    told
}

fn shard_with_all(owners: Owners) -> Shard {
    let mut shard = Shard::with_bounds(Bounds::of(Rules::TWO));
    shard.rules = Rules::TWO;
    if matches!(owners, Owners::Threads) {
        shard.open_session(SESSION);
    }
    take_all(&mut shard, owners);
    assert_eq!(shard.core.footprint().holds + AWAITS, ENDS);
    wait_for_them(&mut shard);
    shard
}

/// Every entry was within a slice, and there were no more of them than that takes; whoever waited has it now.
fn assert_slices(told: &Told, what: &str) {
    println!("{ENDS} ends {what}: {told:?}");
    assert!(told.max_units <= A_SLICE, "{what}: {told:?}");
    assert!(told.entries <= ENDS / ENDS_PER_ENTRY + 6, "{what}: {told:?}");
    assert!(told.entries > 1, "it is more than a slice: {told:?}");
    assert_eq!((told.locks, told.permits, told.members), (1, 1, 1), "{what}: {told:?}");
}

#[test]
fn ten_thousand_of_mixed_kinds_that_end_at_one_instant_take_a_slice_each_time() {
    assert_eq!(ENDS, 10_000);
    let mut shard = shard_with_all(Owners::Processes);
    let told = end(&mut shard, |shard| shard.advance_by(TTL_MS));
    assert_slices(&told, "at one instant");
    assert_eq!(told.elapsed, AWAITS);
    // The first of those whose await is over has the lock, and the others wait for it.
    let left = shard.core.footprint();
    assert_eq!((left.holds, left.waits), (4, AWAITS - 1));
}

#[test]
fn ten_thousand_of_mixed_kinds_that_end_with_a_session_take_a_slice_each_time() {
    let mut shard = shard_with_all(Owners::Threads);
    let told = end(&mut shard, |shard| {
        let (namespace, session_id) = (orders(), SESSION.to_owned());
        let closed = shard.run(LocksCommand::CloseSession { namespace, session_id, message: None });
        assert_eq!(closed, Ok(Response::Done));
    });
    assert_slices(&told, "with a session");
    assert_eq!(told.elapsed, 0);
    let left = shard.core.footprint();
    assert_eq!((left.holds, left.waits, left.sessions), (3, 0, 0));
}
