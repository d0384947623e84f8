//! Ends of more permits than a slice ends, and what others see of them meanwhile.

use holdfast_core::{
    AcquireOutcome, AcquirePermits, Bounds, Command, CommandError, ConfigureSemaphore, Effect, JobState, Kind,
    LockInfo, LocksCommand, Metadata, Owner, Path, PermitCommand, PermitHolderView, PermitQuery, Phase, Query, Reason,
    Release, ReleaseTarget, Reply, Reset, Response, Rules, Wait, Wanted,
};

use crate::primitives::{acquire, open_session, permits, semaphore};
use crate::support::{Shard, orders, process, purge};
use crate::wait_requests::{try_request, write};

/// A shard that ends and grants two things in a slice.
fn shard() -> Shard {
    let mut shard = Shard::with_bounds(Bounds { ends_per_slice: 2, grants_per_slice: 2, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard
}

fn at(path: &str, owner: Owner, request_id: &str, weight: u64) -> AcquirePermits {
    AcquirePermits { path: Path::flat(path), ..permits(owner, request_id, weight) }
}

fn waiting(owner: Owner, request_id: &str) -> AcquirePermits {
    let wait = if matches!(owner, Owner::Process(_)) { Wait::For(500) } else { Wait::Unlimited };
    AcquirePermits { wait, ..permits(owner, request_id, 1) }
}

fn granted(shard: &mut Shard, request: AcquirePermits) -> u64 {
    match acquire(shard, request) {
        Ok(AcquireOutcome::Granted { fencing_token }) => fencing_token,
        other => panic!("it should be granted: {other:?}"),
    }
}

fn enqueued(shard: &mut Shard, request: AcquirePermits) {
    let outcome = acquire(shard, request);
    assert!(matches!(outcome, Ok(AcquireOutcome::Enqueued(_))), "{outcome:?}");
}

fn release_all(owner: Owner) -> Command {
    let what = ReleaseTarget::All;
    Command::Locks(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
}

/// The command in the present entry, so that nothing goes on before it.
fn now(shard: &mut Shard, request: AcquirePermits) -> Result<Response, CommandError> {
    shard.apply_now(&Command::Locks(LocksCommand::Permit(PermitCommand::Acquire(request)))).outcome
}

/// As many entries as it takes. Who was told that its wait is over, and how, in order.
fn finish(shard: &mut Shard) -> Vec<(String, Option<Reason>)> {
    let mut told = Vec::new();
    let mut take = |shard: &mut Shard| {
        told.extend(shard.core.take_effects().into_iter().filter_map(|effect| match effect {
            Effect::PermitsResolved { request_id, outcome: AcquireOutcome::Refused(why), .. } => {
                Some((request_id, Some(why.reason)))
            }
            Effect::PermitsResolved { request_id, .. } => Some((request_id, None)),
            _ => None,
        }));
    };
    take(shard);
    for entries in 0.. {
        if !shard.core.has_backlog() {
            break;
        }
        let mut restored = shard.restored();
        shard.advance_by(0);
        restored.advance_by(0);
        assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
        shard.core.verify();
        take(shard);
        assert!(entries < 100, "it comes to an end");
    }
    told
}

fn holders(shard: &Shard, path: &str) -> Vec<PermitHolderView> {
    let (namespace, path) = (orders(), Path::flat(path));
    match shard.query(&Query::Permit(PermitQuery::Get { namespace, path, after: None, limit: 100 })) {
        Ok(Response::SemaphoreHolders { holders, .. }) => holders,
        Err(CommandError::PrimitiveNotFound { .. }) => Vec::new(),
        other => panic!("not its holders: {other:?}"),
    }
}

fn is_current(shard: &Shard, path: &str, fencing_token: u64) -> bool {
    let (namespace, path) = (orders(), Path::flat(path));
    let query =
        Query::Permit(PermitQuery::Check { namespace, kind: Kind::Semaphore, path, fencing_token, member: None });
    match shard.query(&query) {
        Ok(Response::PermitsChecked { current, .. }) => current,
        other => panic!("not a check: {other:?}"),
    }
}

#[test]
fn an_owner_that_releases_all_is_granted_none_of_its_own_waits_in_between() {
    let mut shard = shard();
    // The hold is the first in the order of the search.
    granted(&mut shard, permits(process("p"), "a", 2));
    ["b", "c", "d", "e"].into_iter().for_each(|id| enqueued(&mut shard, waiting(process("p"), id)));
    enqueued(&mut shard, waiting(process("q"), "q"));
    let began = shard.apply(&release_all(process("p"))).awaits.expect("it takes more than a slice");
    let ended = |id: &str| (id.to_owned(), Some(Reason::Ended));
    let told = finish(&mut shard);
    let last = ("q".to_owned(), None);
    assert_eq!(told, [ended("b"), ended("c"), ended("d"), ended("e"), last]);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 1, ended_waits: 4 });
    assert_eq!(holders(&shard, "s").len(), 1);
}

#[test]
fn what_is_being_released_is_over_at_once_and_can_not_be_extended() {
    let mut shard = shard();
    let paths = ["a", "b", "c", "d"];
    let tokens = paths.map(|path| granted(&mut shard, at(path, process("p"), "r", 1)));
    granted(&mut shard, permits(process("q"), "q", 2));
    enqueued(&mut shard, waiting(process("p"), "w"));
    assert!(shard.apply(&release_all(process("p"))).awaits.is_some());
    for (path, token) in paths.into_iter().zip(tokens) {
        assert!(!is_current(&shard, path, token), "{path} is over");
        assert_eq!(holders(&shard, path)[0].phase, Phase::Transition);
        let extended = now(&mut shard, at(path, process("p"), "r", 1));
        assert!(matches!(extended, Err(CommandError::Busy(_))), "{extended:?}");
    }
    let repeated = now(&mut shard, waiting(process("p"), "w"));
    assert!(matches!(repeated, Err(CommandError::Busy(_))), "{repeated:?}");
    assert!(finish(&mut shard).contains(&("w".to_owned(), Some(Reason::Ended))));
    assert!(paths.iter().all(|path| holders(&shard, path).is_empty()));
}

#[test]
fn a_report_ends_what_it_does_not_list_and_grants_what_it_names_as_pending() {
    let mut shard = shard();
    let session = open_session(&mut shard, "se_1");
    granted(&mut shard, permits(session.clone(), "a", 2));
    ["b", "c", "d", "e"].into_iter().for_each(|id| enqueued(&mut shard, waiting(session.clone(), id)));
    let (held, pending) = (vec![], vec!["e".to_owned()]);
    let info = LockInfo { namespace: orders(), session_id: "se_1".into(), message: None, held, pending };
    let reply: Reply = shard.apply(&Command::Locks(LocksCommand::LockInfo(info)));
    let began = reply.awaits.expect("it takes more than a slice");
    let ended = |id: &str| (id.to_owned(), Some(Reason::Ended));
    assert_eq!(finish(&mut shard), [ended("b"), ended("c"), ended("d"), ("e".to_owned(), None)]);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 1, ended_waits: 3 });
    assert_eq!(holders(&shard, "s").len(), 1);
}

#[test]
fn a_reset_of_old_processes_ends_all_that_they_have_however_many_slices_it_takes() {
    let mut shard = shard();
    let before = granted(&mut shard, at("a", process("p"), "r0", 1)) + 1;
    shard.granted(try_request("l", &[write("x")]));
    let before = before.max(shard.core.revision() + 1);
    for number in 1..6 {
        granted(&mut shard, at("b", process("p"), &format!("r{number}"), 1).with_permits(100));
        granted(&mut shard, at("b", process("l"), &format!("r{number}"), 1).with_permits(100));
    }
    let young = granted(&mut shard, at("b", process("q"), "r", 1).with_permits(100));
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(before) };
    let began = shard.apply(&Command::Locks(LocksCommand::Reset(reset))).awaits.expect("it takes more than a slice");
    let grown = now(&mut shard, at("b", process("q"), "r", 2).with_permits(100));
    assert!(matches!(grown, Err(CommandError::Busy(_))), "a reset grants nothing: {grown:?}");
    let extended = now(&mut shard, at("b", process("q"), "r", 1).with_permits(100));
    assert!(matches!(extended, Ok(Response::PermitsAcquired { .. })), "{extended:?}");
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 12, ended_waits: 0 });
    assert!(holders(&shard, "a").is_empty());
    assert_eq!(holders(&shard, "b").iter().map(|hold| hold.fencing_token).collect::<Vec<_>>(), [young]);
}

#[test]
fn a_deletion_that_takes_slices_is_over_when_its_namespace_is() {
    let mut shard = shard();
    for number in 0..5 {
        granted(&mut shard, permits(process(&format!("p{number}")), "r", 1).with_permits(5));
    }
    let delete = PermitCommand::Delete { namespace: orders(), kind: Kind::Semaphore, path: Path::flat("s") };
    let reply = shard.apply(&Command::Locks(LocksCommand::Permit(delete)));
    let began = reply.awaits.expect("it takes more than a slice");
    assert_eq!(shard.core.job_state(began), JobState::Running);
    assert!(shard.apply_now(&purge(2, orders())).outcome.is_ok());
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 0, ended_waits: 0 });
}

#[test]
fn a_deletion_in_one_slice_is_not_remembered() {
    let mut shard = shard();
    granted(&mut shard, permits(process("p"), "r", 1));
    let delete = PermitCommand::Delete { namespace: orders(), kind: Kind::Semaphore, path: Path::flat("s") };
    assert_eq!(semaphore(&mut shard, delete), Ok(Response::Done));
    assert_eq!(shard.core.sweeps_done(), 0);
}

/// Permits for an expired hold were free in time, so they go to who waited, not to who comes with that entry.
#[test]
fn permits_that_a_command_finds_expired_go_to_who_waits_for_them() {
    let mut shard = shard();
    granted(&mut shard, at("a", process("p1"), "r", 1));
    granted(&mut shard, at("b", process("p2"), "r", 1));
    granted(&mut shard, permits(process("p3"), "r", 2));
    let first = AcquirePermits { wait: Wait::For(5_000), ..permits(process("q"), "q", 2) };
    enqueued(&mut shard, first);
    shard.core.take_effects();
    // Both others end first, and are all that the slice ends.
    shard.advance_by(999);
    let entry = |shard: &mut Shard| {
        shard.advance_by(1);
        now(shard, permits(process("p3"), "r", 2))
    };
    let Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. }) = entry(&mut shard) else {
        panic!("it has none any more")
    };
    assert_eq!(refused.reason, Reason::Exhausted);
    assert_eq!(finish(&mut shard), [("q".to_owned(), None)]);
}

#[test]
fn nobody_comes_before_those_who_could_have_been_granted_had_the_slice_sufficed() {
    let mut shard = shard();
    granted(&mut shard, permits(process("p"), "r", 6).with_permits(6));
    for number in 0..6 {
        enqueued(&mut shard, waiting(process("q"), &format!("q{number}")).with_permits(6));
    }
    // It grants two, and the next request two more.
    assert!(shard.apply(&release_all(process("p"))).outcome.is_ok());
    let urgent = AcquirePermits { priority: 1, ..permits(process("x"), "x", 1).with_permits(6) };
    let Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. }) = now(&mut shard, urgent)
    else {
        panic!("others came before")
    };
    assert_eq!(refused.reason, Reason::Queued);
    finish(&mut shard);
    assert!(holders(&shard, "s").iter().all(|hold| hold.owner == process("q")));
    assert_eq!(holders(&shard, "s").len(), 6);
}

#[test]
fn a_repeat_of_what_waits_for_too_much_says_so_as_the_effect_does() {
    let mut shard = shard();
    let configure = |permits| {
        let (namespace, path, metadata) = (orders(), Path::flat("s"), Metadata::new());
        let description = String::new();
        PermitCommand::Configure(ConfigureSemaphore { namespace, path, permits, description, metadata })
    };
    assert!(semaphore(&mut shard, configure(4)).is_ok());
    granted(&mut shard, permits(process("p"), "r", 4));
    let ids = ["a", "b", "c", "d", "e"];
    let call = |id: &str| AcquirePermits {
        wanted: Wanted::Permits { weight: 3, permits: Some(2) },
        ..waiting(process("q"), id)
    };
    ids.into_iter().for_each(|id| enqueued(&mut shard, call(id)));
    shard.core.take_effects();
    // The slice refuses two, from the last on.
    assert!(semaphore(&mut shard, configure(2)).is_ok());
    let Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. }) = now(&mut shard, call("c"))
    else {
        panic!("there are too few")
    };
    assert_eq!(refused.reason, Reason::TooLarge);
    let mut told = finish(&mut shard);
    told.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(told, ids.map(|id| (id.to_owned(), Some(Reason::TooLarge))));
}

trait WithPermits {
    fn with_permits(self, permits: u64) -> Self;
}

impl WithPermits for AcquirePermits {
    fn with_permits(self, permits: u64) -> Self {
        let weight = self.wanted.weight();
        Self { wanted: Wanted::Permits { weight, permits: Some(permits) }, ..self }
    }
}
