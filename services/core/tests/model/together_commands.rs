//! Random commands of all kinds, about few things and few owners, so that they meet.

use holdfast_core::{
    Acquire, AcquirePermits, ArriveAtBarrier, AwaitCondition, BarrierCommand, ChangePool, Claim, ConditionCommand,
    ConfigureBarrier, ConfigurePool, ConfigureSemaphore, CountDown, CreateLatch, Jobs, Kind, LatchCommand, LatchIds,
    LatchRef, LeaveBarrier, LocksCommand, MemberSpec, Metadata, Mode, OnLoss, OpenSession, Owner, Path, PermitCommand,
    Release, ReleasePermits, ReleaseTarget, RequestId, Revision, SignalCondition, Wait, Wanted,
};

use crate::random::{SeededRng, namespace, paths};
use crate::semaphores::owner_of;

/// The same of every kind: each has a table of its own.
const NAMES: [&str; 2] = ["a", "b"];
const MEMBERS: [&str; 3] = ["m0", "m1", "m2"];
/// Stands for the generation of those inside a barrier. Each shard has other numbers.
pub(crate) const INSIDE: Revision = Revision::MAX;
/// The same for the generation that gathers.
const GATHERING: Revision = 0;

/// What is done next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Of one kind.
    Of(Kind, LocksCommand),
    /// For sessions and owners, whatever they have.
    ForAll(LocksCommand),
    /// A session is over.
    Expire(String),
}

/// Returns the next step, with these open sessions, of which there may be more, and these holders of paths.
pub(crate) fn step(dice: &mut SeededRng, sessions: &[String], holders: &[(Owner, Path)], may_open: bool) -> Step {
    let processes = ["p0", "p1", "p2"].map(str::to_owned);
    let names: Vec<String> = processes.into_iter().chain(sessions.iter().cloned()).collect();
    let name = dice.pick(&names);
    match dice.below(32) {
        0..=5 => Step::Of(Kind::Lock, locks(dice, &name)),
        24..=27 => Step::Of(Kind::Lock, LocksCommand::Condition(conditions(dice, &name, holders))),
        28..=31 => Step::Of(Kind::Barrier, LocksCommand::Barrier(barriers(dice, &name))),
        6..=11 => Step::Of(Kind::Semaphore, LocksCommand::Permit(semaphores(dice, &name))),
        12..=17 => Step::Of(Kind::Pool, LocksCommand::Permit(pools(dice, &name))),
        18..=20 => Step::Of(Kind::Latch, LocksCommand::Latch(latches(dice))),
        21 if dice.one_in(3) => {
            let release =
                Release { namespace: namespace(), owner: owner_of(&name), what: ReleaseTarget::All, message: None };
            Step::ForAll(LocksCommand::Release(release))
        }
        22 if !sessions.is_empty() && dice.one_in(2) => {
            let session_id = dice.pick(sessions);
            match dice.one_in(2) {
                true => Step::Expire(session_id),
                false => Step::ForAll(LocksCommand::CloseSession { namespace: namespace(), session_id, message: None }),
            }
        }
        _ if may_open => Step::ForAll(LocksCommand::OpenSession(OpenSession {
            namespace: namespace(),
            session_id: format!("se_{}", dice.below(1 << 40)),
            resume: false,
            request_id: RequestId([7; 16]),
            process_id: "worker".into(),
            ttl_ms: 1_000,
            metadata: Metadata::new(),
        })),
        _ => Step::Of(Kind::Lock, locks(dice, &name)),
    }
}

/// How long it is held, in which transition, and how long it waits.
fn terms(dice: &mut SeededRng, owner: &Owner) -> (Option<u64>, u64, Wait) {
    let is_process = matches!(owner, Owner::Process(_));
    let waits = if is_process { Wait::For(1 + dice.below(40)) } else { Wait::Unlimited };
    let ttl_ms = is_process.then(|| 1 + dice.below(50));
    (ttl_ms, dice.pick(&[0, 0, 5]), dice.pick(&[Wait::No, waits, waits]))
}

fn locks(dice: &mut SeededRng, name: &str) -> LocksCommand {
    let (namespace, owner, all) = (namespace(), owner_of(name), paths());
    let path = dice.pick(&all[1..]);
    match dice.below(8) {
        0..=4 => {
            let (ttl_ms, transition_ms, wait) = terms(dice, &owner);
            let mut claims = vec![Claim { path, mode: dice.pick(&[Mode::Read, Mode::Write]) }];
            if dice.one_in(4) {
                claims.push(Claim { path: dice.pick(&all), mode: Mode::Write });
            }
            LocksCommand::Acquire(Acquire {
                namespace,
                owner,
                allow_upgrade: claims.len() == 1 && dice.one_in(4),
                claims,
                ttl_ms,
                transition_ms,
                metadata: Metadata::new(),
                fencing_token: None,
                requested_expires_at_ns: None,
                wait,
                request_id: None,
                attempt: 0,
                message: None,
            })
        }
        5 | 6 => {
            let what = ReleaseTarget::Paths { paths: vec![path], fencing_token: None };
            LocksCommand::Release(Release { namespace, owner, what, message: None })
        }
        _ => LocksCommand::Delete { namespace, path },
    }
}

fn acquire(dice: &mut SeededRng, name: &str, (path, request_id, wanted): (Path, String, Wanted)) -> PermitCommand {
    let owner = owner_of(name);
    let (ttl_ms, transition_ms, wait) = terms(dice, &owner);
    PermitCommand::Acquire(AcquirePermits {
        namespace: namespace(),
        path,
        owner,
        request_id,
        wanted,
        priority: dice.pick(&[0, 0, 1]),
        ttl_ms,
        transition_ms,
        wait,
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    })
}

fn release(name: &str, kind: Kind, path: Path, request_id: String, members: Vec<String>) -> PermitCommand {
    PermitCommand::Release(ReleasePermits {
        namespace: namespace(),
        kind,
        path,
        owner: owner_of(name),
        request_id: Some(request_id),
        fencing_token: None,
        members,
        message: None,
    })
}

fn semaphores(dice: &mut SeededRng, name: &str) -> PermitCommand {
    let thing = dice.pick(&NAMES);
    // An id is unique in a session, whatever it is of.
    let (path, request_id) = (Path::flat(thing), format!("sem-{thing}-{}", dice.below(2)));
    match dice.below(12) {
        0..=6 => {
            let wanted = Wanted::Permits { weight: 1 + dice.below(3), permits: Some(3) };
            acquire(dice, name, (path, request_id, wanted))
        }
        7..=9 => release(name, Kind::Semaphore, path, request_id, vec![]),
        10 => PermitCommand::Configure(ConfigureSemaphore {
            namespace: namespace(),
            path,
            permits: dice.below(5),
            description: String::new(),
            metadata: Metadata::new(),
        }),
        _ => PermitCommand::Delete { namespace: namespace(), kind: Kind::Semaphore, path },
    }
}

fn pools(dice: &mut SeededRng, name: &str) -> PermitCommand {
    let thing = dice.pick(&NAMES);
    let (path, member) = (Path::flat(thing), dice.pick(&MEMBERS).to_owned());
    let spec = |name: &str| MemberSpec { name: name.to_owned(), disabled: false, metadata: Metadata::new() };
    // A repeat wants the same.
    let number = dice.below(3);
    let request_id = format!("pool-{thing}-{number}");
    match dice.below(14) {
        0..=5 => {
            let prefer = dice.one_in(3).then_some(member);
            let wanted = match number {
                0 => Wanted::Member(MEMBERS[0].to_owned()),
                count => Wanted::Members { count, prefer },
            };
            acquire(dice, name, (path, request_id, wanted))
        }
        6..=8 => release(name, Kind::Pool, path, request_id, if dice.one_in(3) { vec![member] } else { vec![] }),
        9..=11 => PermitCommand::ConfigurePool(ConfigurePool {
            namespace: namespace(),
            path,
            members: MEMBERS.iter().filter(|_| !dice.one_in(5)).map(|name| spec(name)).collect(),
            cooldown_ms: dice.pick(&[0, 9]),
            description: String::new(),
            metadata: Metadata::new(),
        }),
        12 => {
            let names = vec![member.clone()];
            let (remove, disable) = if dice.one_in(2) { (names, vec![]) } else { (vec![], names) };
            let add = if remove.is_empty() { vec![spec(&member)] } else { vec![] };
            PermitCommand::ChangePool(ChangePool { namespace: namespace(), path, add, remove, disable, enable: vec![] })
        }
        _ => PermitCommand::Delete { namespace: namespace(), kind: Kind::Pool, path },
    }
}

fn latches(dice: &mut SeededRng) -> LatchCommand {
    let (namespace, path) = (namespace(), Path::flat(dice.pick(&NAMES)));
    // Each shard has other ids.
    let latch = LatchRef { namespace: namespace.clone(), path: path.clone(), id: None };
    match dice.below(8) {
        0..=2 => LatchCommand::Create(CreateLatch {
            namespace,
            path,
            total: dice.below(4),
            ids: LatchIds::Named,
            expires_in_ms: 1_000,
            retain_ms: 60_000,
            description: String::new(),
            metadata: Metadata::new(),
        }),
        3..=5 => LatchCommand::CountDown(CountDown { latch, jobs: Jobs::Named(vec![dice.below(5).to_string()]) }),
        6 => LatchCommand::SetTotal { latch, total: 4 + dice.below(2), if_total: None },
        _ => LatchCommand::Delete(latch),
    }
}

/// Mostly of somebody who holds the lock: anybody else is refused.
fn conditions(dice: &mut SeededRng, name: &str, holders: &[(Owner, Path)]) -> ConditionCommand {
    let (namespace, all) = (namespace(), paths());
    let (owner, path) = match holders.is_empty() || dice.one_in(4) {
        true => (owner_of(name), dice.pick(&all[1..])),
        false => dice.pick(holders),
    };
    let condition = dice.pick(&["", "full"]).to_owned();
    if dice.one_in(3) {
        let (all, signal_id) = (dice.one_in(3), dice.one_in(2).then(|| dice.below(3).to_string()));
        let (fencing_token, message) = (None, None);
        let signal = SignalCondition { namespace, path, owner, condition, all, fencing_token, signal_id, message };
        return ConditionCommand::Signal(signal);
    }
    let ttl_ms = matches!(owner, Owner::Process(_)).then(|| 1 + dice.below(50));
    ConditionCommand::Await(AwaitCondition {
        namespace,
        path,
        owner,
        // Each shard has other tokens.
        fencing_token: 0,
        condition,
        wait: Wait::For(1 + dice.below(40)),
        relock_ms: Some(1 + dice.below(40)),
        ttl_ms,
        transition_ms: None,
        metadata: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    })
}

fn barriers(dice: &mut SeededRng, name: &str) -> BarrierCommand {
    let (namespace, path, owner) = (namespace(), Path::flat(dice.pick(&NAMES)), owner_of(name));
    match dice.below(10) {
        0..=5 => {
            let (parties, is_process) = (2 + dice.below(2) as u32, matches!(owner, Owner::Process(_)));
            BarrierCommand::Arrive(ArriveAtBarrier {
                namespace,
                path,
                owner,
                generation: None,
                parties: dice.pick(&[None, Some(parties)]),
                double: None,
                ttl_ms: is_process.then(|| 1 + dice.below(50)),
                metadata: Metadata::new(),
                request_id: None,
                message: None,
            })
        }
        6 | 7 => {
            let generation = dice.pick(&[GATHERING, INSIDE]);
            BarrierCommand::Leave(LeaveBarrier { namespace, path, owner, generation, message: None })
        }
        8 => BarrierCommand::Configure(ConfigureBarrier {
            namespace,
            path,
            parties: 2 + dice.below(2) as u32,
            double: dice.one_in(2),
            on_loss: dice.pick(&[OnLoss::Break, OnLoss::Withdraw]),
            retain_ms: dice.pick(&[0, 60_000]),
            description: String::new(),
            metadata: Metadata::new(),
        }),
        _ => BarrierCommand::Delete { namespace, path },
    }
}
