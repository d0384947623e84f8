//! Conditions against a model of some plain lines: random commands, clocks, ends of sessions, snapshots and restores.

mod calls;

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, Application, AwaitView, Bounds, Command, ConditionQuery, Effect, FencingToken, JobState, Limits,
    LocksCommand, MessageSeq, Metadata, NamespaceMessage, OpenSession, Path, Query, Release, ReleaseTarget, Reply,
    RequestId, Reset, Response, Revision, Rules, SessionCommand, SessionNumber, SessionRequest, WaitView, Woken,
};

use crate::conditions_model::{Model, Told};
use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
use crate::semaphores::{name_of, owner_of};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 150;
/// So much is done in an entry in half of the runs.
const SMALL_SLICE: usize = 2;

struct Run {
    core: ShardState,
    restored: ShardState,
    bounds: Bounds,
    model: Model,
    now_ms: u64,
    /// The number of each session, and the number of its last message.
    sessions: BTreeMap<String, (SessionNumber, u64)>,
    /// The work that goes on, and the holds and waits that it is to end.
    job: Option<(Revision, (u64, u64))>,
    told: BTreeSet<Told>,
    /// Tokens that were given up, with the owner and the path.
    given_up: Vec<(String, String, FencingToken)>,
    /// The instants at which awaits end.
    ends: BTreeSet<u64>,
    next_signal: u64,
}

fn is_session(name: &str) -> bool {
    name.starts_with("se_")
}

/// Of a session, a lock has one request.
fn request_of(name: &str, path: &str) -> Option<String> {
    is_session(name).then(|| format!("r-{path}"))
}

impl Run {
    fn apply(&mut self, command: LocksCommand) -> Reply {
        let (context, command) = (context(self.now_ms, Rules::TWO), Command::Locks(command));
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply
    }

    fn locks(&mut self, command: LocksCommand) -> Response {
        self.apply(command.clone()).outcome.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// A request of a connected session.
    fn session(&mut self, name: &str, request: SessionRequest) -> Response {
        let (session, seq) = self.sessions.get_mut(name).expect("it is open");
        *seq += 1;
        let (session, message) = (*session, MessageSeq { epoch: *session, seq: *seq });
        self.locks(LocksCommand::Session(SessionCommand { account: namespace().account, session, message, request }))
    }

    fn step(&mut self, dice: &mut SeededRng) {
        // Or signals would hardly ever be handed on.
        if let Some(woken) = self.model.woken_before_others().filter(|_| dice.one_in(4)) {
            return self.release_all(&woken);
        }
        let names: Vec<String> =
            ["p0", "p1", "p2", "p3"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let (name, path) = (dice.pick(&names), dice.pick(&["a", "b"]));
        // Whoever holds the lock acts most.
        let holder = self.model.locks.get(path).and_then(|lock| lock.holder.as_ref()).map(|hold| hold.owner.clone());
        let name = holder.filter(|_| dice.one_in(2)).unwrap_or(name);
        match dice.below(26) {
            0..=5 => self.acquire(dice, &name, path),
            6 | 7 => self.release(&name, path),
            8..=13 => self.await_condition(dice, &name, path),
            14..=17 => self.signal(dice, &name, path),
            18 => self.repeat_signal(&name, path),
            19 | 20 => self.repeat(dice),
            21 => self.cancel(dice),
            22 => self.open(dice),
            23 => self.end_session(dice),
            24 if dice.one_in(2) => self.release_all(&name),
            25 if dice.one_in(4) => self.reset(),
            _ => self.delete(dice, path),
        }
    }

    fn open(&mut self, dice: &mut SeededRng) {
        let session_id = format!("se_{}", dice.below(1 << 40));
        if self.sessions.len() >= 3 {
            return;
        }
        let response = self.locks(LocksCommand::OpenSession(OpenSession {
            namespace: namespace(),
            session_id: session_id.clone(),
            resume: false,
            request_id: RequestId([7; 16]),
            process_id: "worker".into(),
            ttl_ms: 1_000,
            metadata: Metadata::new(),
        }));
        let Response::SessionOpened { session, .. } = response else { panic!("it is opened") };
        self.sessions.insert(session_id, (session.number, 0));
    }

    /// One session is closed, or several expire in one step.
    fn end_session(&mut self, dice: &mut SeededRng) {
        let Some(session_id) = self.sessions.keys().next().cloned() else { return };
        if dice.one_in(2) {
            self.close_session(session_id);
            return;
        }
        let ids = self.sessions.values().map(|(number, _)| *number).collect();
        for session_id in std::mem::take(&mut self.sessions).into_keys() {
            self.model.end_all_of(&session_id);
        }
        self.model.settle();
        self.locks(LocksCommand::ExpireSessions { ids, known_revision: self.core.revision() });
    }

    fn close_session(&mut self, session_id: String) {
        self.sessions.remove(&session_id);
        self.model.end_all_of(&session_id);
        self.model.settle();
        self.locks(LocksCommand::CloseSession { namespace: namespace(), session_id, message: None });
    }

    fn release_all(&mut self, name: &str) {
        let expected = self.model.end_all_of(name);
        self.model.settle();
        let (owner, what) = (owner_of(name), ReleaseTarget::All);
        let release = Release { namespace: namespace(), owner, what, message: None };
        let reply = self.apply(LocksCommand::Release(release));
        match (reply.awaits, reply.outcome) {
            (Some(began), _) => self.job = Some((began, expected)),
            (None, Ok(Response::Released { released, .. })) => assert_eq!(released, expected != (0, 0)),
            other => panic!("{other:?}"),
        }
    }

    fn reset(&mut self) {
        let mut expected = (0, 0);
        for name in ["p0", "p1", "p2", "p3"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()) {
            let (holds, waits) = self.model.end_all_of(&name);
            expected = (expected.0 + holds, expected.1 + waits);
        }
        self.sessions.clear();
        self.model.settle();
        let reset = Reset { namespace: namespace(), live_owners: vec![], before_revision: None };
        let reply = self.apply(LocksCommand::Reset(reset));
        match (reply.awaits, reply.outcome) {
            (Some(began), _) => self.job = Some((began, expected)),
            (None, Ok(Response::Reset { removed_holds, removed_waiters })) => {
                assert_eq!((removed_holds, removed_waiters), expected);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Awaits stay: they hold nothing.
    fn delete(&mut self, dice: &mut SeededRng, path: &str) {
        if dice.one_in(8) {
            self.model.lock(path).holder = None;
            self.model.settle();
            self.locks(LocksCommand::Delete { namespace: namespace(), path: Path::flat(path) });
        }
    }

    fn take_effects(&mut self) {
        for effect in self.core.take_effects() {
            let told = match effect {
                Effect::AwaitWoken { owner, woken, .. } => Told::Woken(name_of(&owner), woken.name()),
                Effect::AwaitResolved { owner, fencing_token, outcome, woken, .. } => match (outcome, woken) {
                    (AcquireOutcome::Granted { .. }, woken) => {
                        Told::Granted(name_of(&owner), fencing_token, woken.map_or("", Woken::name))
                    }
                    (AcquireOutcome::Refused(refused), _) => {
                        Told::Ended(name_of(&owner), fencing_token, refused.reason.name())
                    }
                    (outcome, _) => panic!("{outcome:?}"),
                },
                _ => continue,
            };
            self.told.insert(told);
        }
    }

    /// Ends the work that takes several entries, and compares everything that can be seen.
    fn compare(&mut self) {
        while self.core.has_backlog() {
            self.take_effects();
            // Another replica takes over in the middle.
            if self.core.revision() & 3 == 0 {
                self.restore();
            }
            self.advance(0);
        }
        self.take_effects();
        if let Some((began, (ended_holds, ended_waits))) = self.job.take() {
            assert_eq!(self.core.job_state(began), JobState::Done { ended_holds, ended_waits });
        }
        assert_eq!(std::mem::take(&mut self.told), std::mem::take(&mut self.model.told), "who was told");
        let mut waits = self.waits();
        for path in ["a", "b"] {
            let Response::Lock(view) = self.query(Query::Lock { namespace: namespace(), path: Path::flat(path) })
            else {
                panic!("a lock")
            };
            let known = self.model.locks.entry(path.to_owned()).or_default();
            let holder = view.write_lock_holder.as_ref().map(|holder| name_of(&holder.owner));
            assert_eq!(holder, known.holder.as_ref().map(|hold| hold.owner.clone()), "who holds {path}");
            if let (Some(hold), Some(view)) = (&mut known.holder, view.write_lock_holder) {
                assert!(view.fencing_token >= hold.token, "tokens rise");
                assert_eq!(view.deadline_ms, hold.deadline_ms);
                hold.token = view.fencing_token;
            }
            let queue = waits.remove(path).unwrap_or_default();
            let order = queue.iter().map(|wait| (name_of(&wait.owner), wait.ends_at_ms)).collect::<Vec<_>>();
            let known_order = known.queue.iter().map(|it| (it.owner.clone(), it.ends_at_ms)).collect::<Vec<_>>();
            assert_eq!(order, known_order, "the queue of {path}");
            self.compare_conditions(path);
        }
        self.model.settle();
        self.core.verify();
    }

    fn waits(&self) -> BTreeMap<String, Vec<WaitView>> {
        let query = Query::Waits { namespace: namespace(), after: None, limit: 100 };
        let Response::Waits { waits, .. } = self.query(query) else { panic!("a page of waits") };
        let mut by_path: BTreeMap<String, Vec<WaitView>> = BTreeMap::new();
        for wait in waits {
            by_path.entry(wait.claims[0].path.0[0].clone()).or_default().push(wait);
        }
        by_path
    }

    fn compare_conditions(&self, path: &str) {
        let lock = self.model.locks.get(path).cloned().unwrap_or_default();
        let (namespace, limit) = (namespace(), 100);
        let prefix = Path::flat(path);
        let list = ConditionQuery::List { namespace: namespace.clone(), prefix, after: None, limit };
        let Response::Conditions { conditions, .. } = self.query(Query::Condition(list)) else { panic!("a page") };
        let shown: Vec<_> = conditions.into_iter().map(|it| (it.condition, it.awaiting)).collect();
        let known: Vec<_> = lock.conditions.iter().map(|(name, queue)| (name.clone(), queue.len() as u64)).collect();
        assert_eq!(shown, known, "the conditions of {path}");
        let waits = ConditionQuery::Waits { namespace, path: Some(Path::flat(path)), after: None, limit };
        let Response::Awaits { waits, .. } = self.query(Query::Condition(waits)) else { panic!("a page") };
        for (name, queue) in &lock.conditions {
            let of_it: Vec<&AwaitView> = waits.iter().filter(|it| it.condition == *name).collect();
            assert_eq!(of_it.len(), queue.len());
            for (position, (view, known)) in of_it.into_iter().zip(queue).enumerate() {
                let shown = (name_of(&view.owner), view.fencing_token, view.ends_at_ms);
                assert_eq!(shown, (known.owner.clone(), known.token, known.ends_at_ms), "who awaits {path}");
                assert_eq!(view.queue_position, (position as u64).min(self.bounds.max_queue_position));
            }
        }
    }

    fn query(&self, query: Query) -> Response {
        self.core.query(0, &query).outcome.unwrap_or_else(|error| panic!("{query:?}: {error}"))
    }

    fn advance(&mut self, passed_ms: u64) {
        self.now_ms += passed_ms;
        self.core.advance(&context(self.now_ms, Rules::TWO));
        self.restored.advance(&context(self.now_ms, Rules::TWO));
    }

    fn restore(&mut self) {
        let chunks = self.core.snapshot();
        let restored = ShardState::restore_with_bounds(Application::Locks, "locks_00", &chunks, self.bounds.clone());
        self.restored = restored.expect("it can be restored");
        assert_eq!(self.restored.snapshot(), chunks);
        self.restored.verify();
    }

    fn finish(&mut self) {
        while let Some(session_id) = self.sessions.keys().next().cloned() {
            self.close_session(session_id);
            self.compare();
        }
        self.reset();
        self.compare();
        assert_eq!(self.core.footprint(), Default::default());
    }
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let bounds = match dice.one_in(2) {
        true => Bounds::of(Rules::TWO),
        false => Bounds {
            ends_per_slice: SMALL_SLICE,
            grants_per_slice: SMALL_SLICE,
            max_queue_position: 1,
            ..Bounds::of(Rules::TWO)
        },
    };
    let core = ShardState::with_bounds(Application::Locks, "locks_00", bounds.clone());
    let mut run = Run {
        restored: core.clone(),
        core,
        bounds,
        model: Model::default(),
        now_ms: 1_000,
        sessions: BTreeMap::new(),
        job: None,
        told: BTreeSet::new(),
        given_up: Vec::new(),
        ends: BTreeSet::new(),
        next_signal: 0,
    };
    let message = NamespaceMessage::open(namespace(), Limits::default());
    run.advance(0);
    run.locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
    for _ in 0..STEPS_IN_A_RUN {
        run.advance(dice.pick(&[0, 0, 1, 3, 20]));
        run.model.advance(run.now_ms);
        run.compare();
        run.step(dice);
        run.compare();
        if dice.one_in(8) {
            run.restore();
        }
    }
    run.finish();
}

#[test]
fn conditions_do_what_their_model_does() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
