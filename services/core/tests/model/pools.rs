//! Pools against a model of some plain lines: random commands, clocks, ends of sessions, snapshots and restores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, AcquirePermits, Application, Bounds, ChangePool, Command, CommandError, ConfigurePool, Effect,
    Kind, Limits, LocksCommand, MemberSpec, MemberView, Metadata, NamespaceMessage, OpenSession, Path, PermitCommand,
    PermitQuery, Query, Release, ReleasePermits, ReleaseTarget, RequestId, Response, Rules, SessionNumber, Wait,
    Wanted,
};

use crate::mutations::enable_mutation_from_env;
use crate::pools_model::{Key, Model};
use crate::random::{SeededRng, namespace};
use crate::semaphores::{name_of, owner_of};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 150;
const NAMES: [&str; 5] = ["m0", "m1", "m2", "m3", "m4"];

struct Run {
    core: ShardState,
    restored: ShardState,
    model: Model,
    now_ms: u64,
    sessions: BTreeMap<String, SessionNumber>,
    /// Whoever was told since the last comparison.
    resolved: BTreeSet<(Key, bool)>,
}

fn path() -> Path {
    Path::flat("p")
}

fn spec(name: &str, disabled: bool) -> MemberSpec {
    MemberSpec { name: name.to_owned(), disabled, metadata: Metadata::new() }
}

impl Run {
    fn locks(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        let (context, command) = (context(self.now_ms, Rules::TWO), Command::Locks(command));
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply.outcome
    }

    fn permits(&mut self, command: PermitCommand) -> Result<Response, CommandError> {
        self.locks(LocksCommand::Permit(command))
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let names: Vec<String> =
            ["p0", "p1", "p2"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let name = dice.pick(&names);
        let key = (name.clone(), dice.pick(&["x", "y", "z"]).to_owned());
        match dice.below(24) {
            0..=10 => self.take(dice, key),
            11..=14 => self.release(dice, key),
            15 => self.configure(dice),
            16 | 17 => self.change(dice),
            18 => self.open(dice),
            19 => self.end_session(dice),
            20 if dice.one_in(2) => {
                let expected = self.model.end_all(&name, |model, key| _ = model.end_hold(key));
                let (namespace, owner, what) = (namespace(), owner_of(&name), ReleaseTarget::All);
                let release = Release { namespace, owner, what, message: None };
                let outcome = self.locks(LocksCommand::Release(release));
                assert!(matches!(outcome, Ok(Response::Released { released, .. }) if released == expected));
            }
            _ => {}
        }
    }

    fn take(&mut self, dice: &mut SeededRng, key: Key) {
        let is_process = key.0.starts_with('p');
        let held = self.model.holds.get(&key).map(|hold| hold.token);
        let waits = if is_process { Wait::For(1 + dice.below(40)) } else { Wait::Unlimited };
        let prefer = dice.one_in(3).then(|| dice.pick(&NAMES).to_owned());
        let wanted = match dice.one_in(3) {
            true => Wanted::Member(dice.pick(&NAMES).to_owned()),
            false => Wanted::Members { count: 1 + dice.below(4), prefer },
        };
        let request = AcquirePermits {
            namespace: namespace(),
            path: path(),
            owner: owner_of(&key.0),
            request_id: key.1.clone(),
            wanted,
            priority: dice.pick(&[0, 0, 1]),
            ttl_ms: is_process.then(|| 1 + dice.below(50)),
            transition_ms: dice.pick(&[0, 5]),
            wait: dice.pick(&[Wait::No, waits, waits]),
            metadata: Metadata::new(),
            fencing_token: held.filter(|_| dice.one_in(4)),
            attempt: 0,
            abandoned: vec![],
            message: None,
        };
        let expected = self.model.take(&request, key.clone());
        let outcome = self.permits(PermitCommand::Acquire(request.clone()));
        match (&expected, outcome) {
            (Ok(Ok(true)), Ok(Response::PermitsAcquired { outcome, members, .. })) => {
                let hold = &self.model.holds[&key];
                assert_eq!((outcome.fencing_token(), &members), (Some(hold.token), &hold.members), "{request:?}");
            }
            (Ok(Ok(false)), Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Enqueued(_), .. }))
            | (Err(()), Err(CommandError::InvalidArgument(_))) => {}
            (Ok(Err(reason)), Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Refused(refused), .. })) => {
                assert_eq!(*reason, refused.reason, "{request:?}");
            }
            (expected, outcome) => panic!("{request:?}: {expected:?} {outcome:?}"),
        }
    }

    fn release(&mut self, dice: &mut SeededRng, key: Key) {
        let members: Vec<String> = match dice.one_in(3) {
            true => NAMES.iter().filter(|_| dice.one_in(2)).map(|name| (*name).to_owned()).collect(),
            false => vec![],
        };
        let expected = match members.is_empty() {
            true => self.model.end_hold(&key) || self.model.end_wait(&key),
            false => self.model.return_some(&key, &members),
        };
        self.model.promote();
        let request = ReleasePermits {
            namespace: namespace(),
            kind: Kind::Pool,
            path: path(),
            owner: owner_of(&key.0),
            request_id: Some(key.1),
            fencing_token: None,
            members,
            message: None,
        };
        let outcome = self.permits(PermitCommand::Release(request));
        assert!(matches!(outcome, Ok(Response::PermitsReleased { released, .. }) if released == expected));
    }

    fn configure(&mut self, dice: &mut SeededRng) {
        let names = NAMES.iter().filter(|_| !dice.one_in(5)).map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let members: BTreeMap<String, bool> = names.into_iter().map(|name| (name, dice.one_in(6))).collect();
        let cooldown_ms = dice.pick(&[0, 0, 9]);
        self.model.configure(&members, cooldown_ms);
        let configure = ConfigurePool {
            namespace: namespace(),
            path: path(),
            members: members.iter().map(|(name, disabled)| spec(name, *disabled)).collect(),
            cooldown_ms,
            description: "d".into(),
            metadata: Metadata::new(),
        };
        self.permits(PermitCommand::ConfigurePool(configure)).expect("it is configured");
    }

    fn change(&mut self, dice: &mut SeededRng) {
        let name = dice.pick(&NAMES).to_owned();
        let is_known = self.model.members.contains_key(&name);
        let (mut add, mut remove, mut disable, mut enable) = (vec![], vec![], vec![], vec![]);
        let revision = self.model.revision + 1;
        match dice.below(4) {
            0 => {
                add.push(spec(&name, false));
                self.model.add(&name, revision);
            }
            1 => {
                remove.push(name.clone());
                self.model.remove(&name);
            }
            2 => {
                disable.push(name.clone());
                self.model.members.get_mut(&name).into_iter().for_each(|member| member.is_disabled = true);
            }
            _ => {
                enable.push(name.clone());
                self.model.enable(&name, revision);
            }
        }
        let fits = is_known || (disable.is_empty() && enable.is_empty());
        let before = self.core.revision();
        let change = ChangePool { namespace: namespace(), path: path(), add, remove, disable, enable };
        let outcome = self.permits(PermitCommand::ChangePool(change));
        assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        // A change that changes nothing has no event.
        self.model.revision += u64::from(self.core.revision() > before);
        self.model.promote();
    }

    fn open(&mut self, dice: &mut SeededRng) {
        let session_id = format!("se_{}", dice.below(1 << 40));
        let open = OpenSession {
            namespace: namespace(),
            session_id: session_id.clone(),
            resume: false,
            request_id: RequestId([7; 16]),
            process_id: "worker".into(),
            ttl_ms: 1_000,
            metadata: Metadata::new(),
        };
        if self.sessions.len() < 3
            && let Ok(Response::SessionOpened { session, .. }) = self.locks(LocksCommand::OpenSession(open))
        {
            self.sessions.insert(session_id, session.number);
        }
    }

    fn end_session(&mut self, dice: &mut SeededRng) {
        let Some((session_id, number)) = self.sessions.pop_first() else { return };
        let now_ms = self.now_ms;
        if dice.one_in(2) {
            let close =
                LocksCommand::CloseSession { namespace: namespace(), session_id: session_id.clone(), message: None };
            self.model.end_session(&session_id, |model, key| _ = model.end_hold(key));
            self.locks(close).expect("it is open");
        } else {
            let known_revision = self.core.revision();
            self.model.end_session(&session_id, |model, key| model.end_phase(key, now_ms));
            self.locks(LocksCommand::ExpireSessions { ids: vec![number], known_revision }).expect("it is open");
        }
    }

    fn compare(&mut self) {
        self.core.verify();
        let (ours, theirs) = (self.core.take_effects(), self.restored.take_effects());
        assert_eq!(ours, theirs, "effects");
        self.resolved.extend(ours.into_iter().filter_map(|effect| match effect {
            Effect::PermitsResolved { owner, request_id, outcome, members, .. } => {
                assert_eq!(outcome.fencing_token().is_some(), !members.is_empty());
                Some(((name_of(&owner), request_id), outcome.fencing_token().is_some()))
            }
            _ => None,
        }));
        assert_eq!(std::mem::take(&mut self.resolved), std::mem::take(&mut self.model.resolved), "who was told");
        let query = PermitQuery::Members { namespace: namespace(), path: path(), after: None, limit: 100 };
        let Ok(Response::PoolMembers { pool, members, .. }) = self.core.query(0, &Query::Permit(query)).outcome else {
            panic!("its members")
        };
        assert_eq!((pool.free, pool.members_total), (self.model.free().len() as u64, members.len() as u64));
        assert!(members.iter().map(|it| &it.name).eq(self.model.members.keys()), "{members:?}");
        members.iter().for_each(|view| self.compare_member(view));
        let query = PermitQuery::Waits { namespace: namespace(), after: None, limit: 100 };
        let Ok(Response::PermitWaits { mut waits, .. }) = self.core.query(0, &Query::Permit(query)).outcome else {
            panic!("a page of waits")
        };
        waits.sort_by_key(|view| view.queue_position);
        let shown: Vec<_> =
            waits.into_iter().map(|it| (name_of(&it.owner), it.request_id, it.weight, it.ends_at_ms)).collect();
        let known = self.model.queue.iter();
        let known: Vec<_> =
            known.map(|it| (it.key.0.clone(), it.key.1.clone(), it.wanted.weight(), it.ends_at_ms)).collect();
        assert_eq!(shown, known, "the queue");
    }

    fn compare_member(&self, view: &MemberView) {
        let known = &self.model.members[&view.name];
        assert_eq!((view.disabled, view.leaving), (known.is_disabled, known.is_leaving), "{view:?}");
        assert_eq!((view.free_since, view.resting_until_ms), (known.free_since, known.rests_until_ms), "{view:?}");
        let hold = self.model.holds.iter().find(|(_, hold)| hold.members.contains(&view.name));
        match (&view.holder, hold) {
            (None, None) => {}
            (Some(holder), Some((key, hold))) => {
                assert_eq!((name_of(&holder.owner), &holder.request_id), (key.0.clone(), &key.1));
                assert_eq!(
                    (holder.fencing_token, holder.phase, holder.deadline_ms, holder.weight),
                    (hold.token, hold.phase, hold.deadline_ms, hold.members.len() as u64)
                );
            }
            other => panic!("who holds {}: {other:?}", view.name),
        }
    }

    fn restore(&mut self) {
        let chunks = self.core.snapshot();
        let bounds = Bounds::of(Rules::TWO);
        let restored = ShardState::restore_with_bounds(Application::Locks, "locks_00", &chunks, bounds);
        self.restored = restored.expect("it can be restored");
        assert_eq!(self.restored.snapshot(), chunks);
        self.restored.verify();
    }
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let core = ShardState::with_bounds(Application::Locks, "locks_00", Bounds::of(Rules::TWO));
    let (model, sessions, resolved, restored) = (Model::default(), BTreeMap::new(), BTreeSet::new(), core.clone());
    let mut run = Run { core, restored, model, now_ms: 1_000, sessions, resolved };
    let message = NamespaceMessage::open(namespace(), Limits::default());
    run.core.advance(&context(run.now_ms, Rules::TWO));
    run.restored.advance(&context(run.now_ms, Rules::TWO));
    run.locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }).expect("it is opened");
    run.model.revision = run.core.revision();
    run.configure(dice);
    for _ in 0..STEPS_IN_A_RUN {
        run.now_ms += dice.pick(&[0, 0, 1, 3, 20]);
        run.model.revision = run.core.revision();
        run.core.advance(&context(run.now_ms, Rules::TWO));
        run.restored.advance(&context(run.now_ms, Rules::TWO));
        run.model.advance(run.now_ms);
        run.compare();
        run.model.revision = run.core.revision();
        run.step(dice);
        run.compare();
        if dice.one_in(8) {
            run.restore();
        }
    }
    let delete = PermitCommand::Delete { namespace: namespace(), kind: Kind::Pool, path: path() };
    assert_eq!(run.permits(delete), Ok(Response::Done));
    run.core.verify();
}

#[test]
fn pools_do_what_their_model_does() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
