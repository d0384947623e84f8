//! The same of other things than locks: their charges are upper bounds of what is allocated, and not far from it.

use holdfast_core::{
    AcquirePermits, ArriveAtBarrier, AwaitCondition, BarrierCommand, ConditionCommand, ConfigureBarrier, ConfigurePool,
    ConfigureSemaphore, CountDown, CreateLatch, Jobs, LatchCommand, LatchIds, LatchRef, LocksCommand, MemberSpec,
    Metadata, OnLoss, Owner, Path, PermitCommand, Response, SignalCondition, Wait, Wanted,
};

use crate::charge::{MOST, check, check_lasting, check_within, mischarged};
use crate::exclusive;
use crate::shard::{LONG_WAIT, Shard, namespace};

/// How many times what is allocated the charge of a short id of a latch may be: it counts with 64 bytes and its length.
const MOST_OF_ID: i64 = 4;
/// And that of an await, which is charged with what its wait for the lock will take, too.
const MOST_OF_AWAIT: i64 = 5;
const CONDITION: &str = "not empty";
const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Ids in one count-down.
const IDS: u64 = 100;
/// Members of a pool.
const MEMBERS: u64 = 1_000;
/// Holders, waiting requests, parties and awaiting owners of one thing.
const OF_ONE: u64 = 900;

fn quiet() -> Shard {
    Shard::with_event_bytes(0)
}

fn process(index: u64) -> Owner {
    Owner::Process(format!("process-{index:06}"))
}

fn numbered(name: &str, index: u64) -> Path {
    Path::flat(format!("{name}-{index:06}"))
}

fn configure_pool(shard: &mut Shard, index: u64) {
    let spec = |number| MemberSpec { name: format!("member-{number:06}"), disabled: false, metadata: Metadata::new() };
    let configure = ConfigurePool {
        namespace: namespace(),
        path: numbered("pool", index),
        members: (0..MEMBERS).map(spec).collect(),
        cooldown_ms: 0,
        description: String::new(),
        metadata: Metadata::new(),
    };
    shard.apply(LocksCommand::Permit(PermitCommand::ConfigurePool(configure)));
}

/// One that nobody gets permits of.
fn configure_paused(shard: &mut Shard, index: u64) {
    let configure = ConfigureSemaphore {
        namespace: namespace(),
        path: numbered("semaphore", index),
        permits: 0,
        description: String::new(),
        metadata: Metadata::new(),
    };
    shard.apply(LocksCommand::Permit(PermitCommand::Configure(configure)));
}

fn permits(owner: Owner, path: Path, wanted: Wanted) -> AcquirePermits {
    AcquirePermits {
        namespace: namespace(),
        path,
        ttl_ms: matches!(owner, Owner::Process(_)).then_some(HOUR_MS),
        owner,
        request_id: "request".to_owned(),
        wanted,
        priority: 0,
        transition_ms: 0,
        wait: Wait::No,
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    }
}

fn acquire(shard: &mut Shard, request: AcquirePermits) {
    let answer = shard.apply(LocksCommand::Permit(PermitCommand::Acquire(request)));
    assert!(matches!(answer, Response::PermitsAcquired { .. }), "{answer:?}");
}

fn one_permit() -> Wanted {
    Wanted::Permits { weight: 1, permits: Some(1_000_000) }
}

#[test]
fn pools_and_semaphores_are_charged_with_what_they_take() {
    let _alone = exclusive();
    check_lasting(MOST, "pools of 1,000 members", 20, quiet(), configure_pool);
    check("holders of permits", 18_000, quiet(), |shard, index| {
        acquire(shard, permits(process(index), numbered("semaphore", index / OF_ONE), one_permit()));
    });
    check("holders of permits of a session", 9_000, quiet(), |shard, index| {
        if index == 0 {
            shard.open_session("se_1");
        }
        let owner = Owner::Session { session_id: "se_1".to_owned(), holder: None };
        let request = permits(owner, numbered("semaphore", index / OF_ONE), one_permit());
        acquire(shard, AcquirePermits { request_id: format!("request-{index:06}"), ..request });
    });
    let mut shard = quiet();
    (0..10).for_each(|index| configure_pool(&mut shard, index));
    check("holders of members", 10 * MEMBERS, shard, |shard, index| {
        let wanted = Wanted::Members { count: 1, prefer: None };
        acquire(shard, permits(process(index), numbered("pool", index / MEMBERS), wanted));
    });
    let mut shard = quiet();
    (0..10).for_each(|index| configure_paused(&mut shard, index));
    check("requests that wait for permits", 10 * OF_ONE, shard, |shard, index| {
        let wanted = Wanted::Permits { weight: 1, permits: None };
        let request = permits(process(index), numbered("semaphore", index / OF_ONE), wanted);
        acquire(shard, AcquirePermits { wait: LONG_WAIT, ..request });
    });
    assert_eq!(mischarged(), [""; 0]);
}

#[test]
fn latches_are_charged_with_what_they_take() {
    let _alone = exclusive();
    let mut shard = quiet();
    let create = CreateLatch {
        namespace: namespace(),
        path: Path::flat("latch"),
        total: 100_000,
        ids: LatchIds::Named,
        expires_in_ms: HOUR_MS,
        retain_ms: HOUR_MS,
        description: String::new(),
        metadata: Metadata::new(),
    };
    shard.apply(LocksCommand::Latch(LatchCommand::Create(create)));
    check_lasting(MOST_OF_ID, "hundreds of ids of a latch", 500, shard, |shard, index| {
        let latch = LatchRef { namespace: namespace(), path: Path::flat("latch"), id: None };
        // In no order, as jobs end.
        let ids = (0..IDS).map(|number| format!("job-{:06}", (index * IDS + number) * 7_919 % 100_000));
        let count = CountDown { latch, jobs: Jobs::Named(ids.collect()) };
        shard.apply(LocksCommand::Latch(LatchCommand::CountDown(count)));
    });
    assert_eq!(mischarged(), [""; 0]);
}

fn awaited_lock(index: u64) -> String {
    format!("lock-{:06}", index / OF_ONE)
}

/// An owner takes a lock and gives it up to await a condition of it.
fn await_condition(shard: &mut Shard, index: u64) {
    let lock = awaited_lock(index);
    let outcome = shard.acquire(&format!("process-{index:06}"), &[&lock], Wait::No);
    let awaits = AwaitCondition {
        namespace: namespace(),
        path: Path::flat(lock),
        owner: process(index),
        fencing_token: outcome.fencing_token().expect("nobody holds it"),
        condition: CONDITION.to_owned(),
        wait: LONG_WAIT,
        relock_ms: Some(600_000),
        ttl_ms: Some(60_000),
        transition_ms: None,
        metadata: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    };
    let answer = shard.apply(LocksCommand::Condition(ConditionCommand::Await(awaits)));
    assert!(matches!(answer, Response::Awaited { .. }), "{answer:?}");
}

/// Lets all who await the condition wait for the lock, which somebody else then holds.
fn wake_all(shard: &mut Shard, lock: &str) {
    shard.hold("signaller", &[lock]);
    let signal = SignalCondition {
        namespace: namespace(),
        path: Path::flat(lock),
        owner: Owner::Process("signaller".to_owned()),
        condition: CONDITION.to_owned(),
        all: true,
        fencing_token: None,
        signal_id: None,
        message: None,
    };
    let answer = shard.apply(LocksCommand::Condition(ConditionCommand::Signal(signal)));
    assert!(matches!(answer, Response::Signalled { .. }), "{answer:?}");
    shard.finish();
}

#[test]
fn arrivals_and_awaits_are_charged_with_what_they_take() {
    let _alone = exclusive();
    let mut shard = quiet();
    for index in 0..10 {
        let configure = ConfigureBarrier {
            namespace: namespace(),
            path: numbered("barrier", index),
            parties: 1_000,
            double: false,
            on_loss: OnLoss::Withdraw,
            retain_ms: HOUR_MS,
            description: String::new(),
            metadata: Metadata::new(),
        };
        shard.apply(LocksCommand::Barrier(BarrierCommand::Configure(configure)));
    }
    check("arrivals", 10 * OF_ONE, shard, |shard, index| {
        let arrive = ArriveAtBarrier {
            namespace: namespace(),
            path: numbered("barrier", index / OF_ONE),
            owner: process(index),
            generation: None,
            parties: None,
            double: None,
            ttl_ms: Some(HOUR_MS),
            metadata: Metadata::new(),
            request_id: None,
            message: None,
        };
        shard.apply(LocksCommand::Barrier(BarrierCommand::Arrive(arrive)));
    });
    check_within(MOST_OF_AWAIT, "awaits", 10 * OF_ONE, quiet(), await_condition);
    check("awaits that were woken", 10 * OF_ONE, quiet(), |shard, index| {
        await_condition(shard, index);
        if index % OF_ONE == OF_ONE - 1 {
            wake_all(shard, &awaited_lock(index));
        }
    });
    assert_eq!(mischarged(), [""; 0]);
}
