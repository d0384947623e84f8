//! Semaphores against a model of some plain lines: random commands, clocks, ends of sessions, snapshots and restores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, AcquirePermits, Application, Bounds, Command, CommandError, ConfigureSemaphore, Effect, Limits,
    LocksCommand, Metadata, NamespaceMessage, OpenSession, Owner, Path, Phase, Query, Reason, Release, ReleasePermits,
    ReleaseTarget, RequestId, Reset, Response, Rules, SemaphoreCommand, SemaphoreQuery, SessionNumber, Wait,
};

use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
use crate::{context, env_setting};

const STEPS_IN_A_RUN: u64 = 150;

/// An owner's name and a request id.
type Key = (String, String);

#[derive(Clone, Debug, PartialEq)]
struct Hold {
    weight: u64,
    token: u64,
    phase: Phase,
    deadline_ms: Option<u64>,
    transition_ms: u64,
}

#[derive(Clone, Debug)]
struct Queued {
    key: Key,
    priority: u8,
    arrival: u64,
    weight: u64,
    ends_at_ms: Option<u64>,
    ttl_ms: Option<u64>,
    transition_ms: u64,
}

#[derive(Clone, Debug, Default)]
struct Semaphore {
    permits: u64,
    is_configured: bool,
    holds: BTreeMap<Key, Hold>,
    /// By priority, then by arrival.
    queue: Vec<Queued>,
}

#[derive(Clone, Default)]
struct Model {
    semaphores: BTreeMap<Path, Semaphore>,
    clock_ms: u64,
    revision: u64,
    /// Waits that ended, and whether they were granted.
    resolved: BTreeSet<(Key, bool)>,
}

impl Semaphore {
    fn in_use(&self) -> u64 {
        self.holds.values().map(|hold| hold.weight).sum()
    }

    fn fits(&self, weight: u64) -> bool {
        self.permits > 0 && self.in_use() + weight <= self.permits
    }
}

impl Model {
    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn promote(&mut self, path: &Path) {
        while let Some(semaphore) = self.semaphores.get_mut(path) {
            if let Some(index) =
                semaphore.queue.iter().position(|it| semaphore.permits > 0 && it.weight > semaphore.permits)
            {
                let refused = semaphore.queue.remove(index);
                self.resolved.insert((refused.key, false));
                continue;
            }
            let Some(first) = semaphore.queue.first().filter(|first| semaphore.fits(first.weight)).cloned() else {
                break;
            };
            semaphore.queue.remove(0);
            let token = self.next_revision();
            self.resolved.insert((first.key.clone(), true));
            self.insert(path, first.key, first.weight, token, (first.ttl_ms, first.transition_ms));
        }
        let is_unused = |it: &Semaphore| !it.is_configured && it.holds.is_empty() && it.queue.is_empty();
        if self.semaphores.get(path).is_some_and(is_unused) {
            self.semaphores.remove(path);
        }
    }

    fn insert(&mut self, path: &Path, key: Key, weight: u64, token: u64, (ttl_ms, transition_ms): (Option<u64>, u64)) {
        let deadline_ms = ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms);
        let hold = Hold { weight, token, phase: Phase::Held, deadline_ms, transition_ms };
        self.semaphores.get_mut(path).expect("it is there").holds.insert(key, hold);
    }

    /// What is due, in order of time; at one time holds end before waits.
    fn advance(&mut self, now_ms: u64) {
        self.clock_ms = now_ms;
        loop {
            let holds = self.semaphores.iter().flat_map(|(path, it)| {
                it.holds.iter().filter_map(move |(key, hold)| Some((hold.deadline_ms?, false, hold.token, path, key)))
            });
            let waits = self.semaphores.iter().flat_map(|(path, it)| {
                it.queue.iter().filter_map(move |it| Some((it.ends_at_ms?, true, it.arrival, path, &it.key)))
            });
            let Some((at_ms, is_wait, _, path, key)) = holds.chain(waits).min().filter(|due| due.0 <= now_ms) else {
                return;
            };
            let (path, key) = (path.clone(), key.clone());
            match is_wait {
                true => _ = self.end_wait(&path, &key),
                false => self.end_phase(&path, &key, at_ms),
            }
            self.promote(&path);
        }
    }

    fn end_phase(&mut self, path: &Path, key: &Key, at_ms: u64) {
        let hold = self.semaphores.get_mut(path).and_then(|it| it.holds.get_mut(key)).expect("it is held");
        if hold.phase == Phase::Held && hold.transition_ms > 0 {
            (hold.phase, hold.deadline_ms) = (Phase::Transition, Some(at_ms + hold.transition_ms));
        } else {
            self.end_hold(path, key);
        }
    }

    fn end_hold(&mut self, path: &Path, key: &Key) -> bool {
        let ended = self.semaphores.get_mut(path).and_then(|it| it.holds.remove(key)).is_some();
        self.revision += u64::from(ended);
        ended
    }

    fn end_wait(&mut self, path: &Path, key: &Key) -> bool {
        let Some(semaphore) = self.semaphores.get_mut(path) else { return false };
        let before = semaphore.queue.len();
        semaphore.queue.retain(|it| it.key != *key);
        let ended = semaphore.queue.len() < before;
        self.resolved.extend(ended.then(|| (key.clone(), false)));
        ended
    }

    /// Everything of some owners: first the waits, then the holds.
    fn end_owners(&mut self, goes: impl Fn(&str) -> bool, mut end: impl FnMut(&mut Self, &Path, &Key)) {
        let (mut waits, mut holds, mut paths) = (vec![], vec![], BTreeSet::new());
        for (path, semaphore) in &self.semaphores {
            let its = semaphore.queue.iter().filter(|it| goes(&it.key.0));
            waits.extend(its.map(|it| (it.arrival, path.clone(), it.key.clone())));
            let its = semaphore.holds.iter().filter(|(key, _)| goes(&key.0));
            holds.extend(its.map(|(key, hold)| (hold.token, path.clone(), key.clone())));
        }
        waits.sort();
        holds.sort();
        for (_, path, key) in waits {
            self.end_wait(&path, &key);
            paths.insert(path);
        }
        for (_, path, key) in holds {
            end(self, &path, &key);
            paths.insert(path);
        }
        paths.iter().for_each(|path| self.promote(path));
    }

    fn acquire(&mut self, request: &AcquirePermits, key: Key) -> Result<Result<bool, Reason>, ()> {
        let path = &request.path;
        let is_known = self.semaphores.get(path).is_some();
        if !is_known && request.permits.is_none() && request.fencing_token.is_none() {
            return Err(());
        }
        let made = Semaphore { permits: request.permits.unwrap_or_default(), ..Semaphore::default() };
        let semaphore = self.semaphores.get(path).unwrap_or(&made).clone();
        if let Some(hold) = semaphore.holds.get(&key) {
            if request.fencing_token.is_some_and(|token| token != hold.token) {
                return Ok(Err(Reason::NotHeld));
            }
            let weight = if request.fencing_token.is_some() { hold.weight } else { request.weight };
            if weight > hold.weight && !(semaphore.fits(weight - hold.weight) && semaphore.queue.is_empty()) {
                let is_large = semaphore.permits > 0 && weight > semaphore.permits;
                let fits = semaphore.fits(weight - hold.weight);
                return Ok(Err(if is_large {
                    Reason::TooLarge
                } else if fits {
                    Reason::Queued
                } else {
                    Reason::Exhausted
                }));
            }
            let token = if weight == hold.weight { hold.token } else { self.next_revision() };
            let token = if weight > hold.weight { token } else { hold.token };
            self.insert(path, key, weight, token, (request.ttl_ms, request.transition_ms));
            self.promote(path);
            return Ok(Ok(true));
        }
        if request.fencing_token.is_some() {
            return Ok(Err(Reason::NotHeld));
        }
        let waits = !matches!(request.wait, Wait::No | Wait::For(0));
        let ends_at_ms = if let Wait::For(ms) = request.wait { Some(self.clock_ms + ms) } else { None };
        if let Some(index) = semaphore.queue.iter().position(|it| it.key == key) {
            if request.weight > semaphore.queue[index].weight {
                return Ok(Err(Reason::Queued));
            }
            let queued = &mut self.semaphores.get_mut(path).expect("it is there").queue[index];
            queued.weight = request.weight;
            (queued.ttl_ms, queued.transition_ms) = (request.ttl_ms, request.transition_ms);
            if waits {
                queued.ends_at_ms = ends_at_ms;
            }
            self.promote(path);
            let is_held = self.semaphores.get(path).is_some_and(|it| it.holds.contains_key(&key));
            return Ok(if is_held {
                Ok(true)
            } else if waits {
                Ok(false)
            } else {
                Err(Reason::Queued)
            });
        }
        if !semaphore.is_configured && request.permits.is_some_and(|permits| permits != semaphore.permits) {
            return Err(());
        }
        if semaphore.permits > 0 && request.weight > semaphore.permits {
            return Ok(Err(Reason::TooLarge));
        }
        let (fits, is_first) =
            (semaphore.fits(request.weight), semaphore.queue.iter().all(|it| it.priority < request.priority));
        if !(fits && is_first) && !waits {
            return Ok(Err(if fits { Reason::Queued } else { Reason::Exhausted }));
        }
        let arrival = self.next_revision();
        let terms = (request.ttl_ms, request.transition_ms);
        let there = self.semaphores.entry(path.clone()).or_insert(made);
        if fits && is_first {
            self.insert(path, key, request.weight, arrival, terms);
            return Ok(Ok(true));
        }
        let (priority, weight) = (request.priority, request.weight);
        let (ttl_ms, transition_ms) = terms;
        there.queue.push(Queued { key, priority, arrival, weight, ends_at_ms, ttl_ms, transition_ms });
        there.queue.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.arrival));
        Ok(Ok(false))
    }
}

struct Run {
    core: ShardState,
    restored: ShardState,
    bounds: Bounds,
    model: Model,
    now_ms: u64,
    sessions: BTreeMap<String, SessionNumber>,
    /// Whoever was told since the last comparison.
    resolved: BTreeSet<(Key, bool)>,
}

fn owner_of(name: &str) -> Owner {
    match name.starts_with("se_") {
        true => Owner::Session { session_id: name.to_owned(), holder: None },
        false => Owner::Process(name.to_owned()),
    }
}

fn name_of(owner: &Owner) -> String {
    match owner {
        Owner::Process(name) => name.clone(),
        Owner::Session { session_id, .. } => session_id.clone(),
    }
}

impl Run {
    fn apply(&mut self, command: Command) -> Result<Response, CommandError> {
        let context = context(self.now_ms, Rules::TWO);
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply.outcome
    }

    fn locks(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        self.apply(Command::Locks(command))
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let names: Vec<String> =
            ["p0", "p1", "p2"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let (name, path) = (dice.pick(&names), Path::flat(dice.pick(&["a", "b"])));
        let key = (name.clone(), format!("{}{name}", path.0[0]) + dice.pick(&["x", "y"]));
        self.model.revision = self.core.revision();
        match dice.below(20) {
            0..=9 => self.acquire(dice, path, key),
            10..=12 => self.release(path, key),
            13 | 14 => self.configure(dice, path),
            15 if dice.one_in(3) => {
                let delete = SemaphoreCommand::Delete { namespace: namespace(), path: path.clone() };
                assert_eq!(self.locks(LocksCommand::Semaphore(delete)), Ok(Response::Done));
                if let Some(gone) = self.model.semaphores.remove(&path) {
                    self.model.resolved.extend(gone.queue.into_iter().map(|it| (it.key, false)));
                }
            }
            16 => self.open(dice),
            17 => self.end_session(dice),
            18 if dice.one_in(2) => self.release_all(&name),
            19 if dice.one_in(4) => self.reset(&name),
            _ => {}
        }
    }

    fn acquire(&mut self, dice: &mut SeededRng, path: Path, key: Key) {
        let is_process = key.0.starts_with('p');
        let held = self.model.semaphores.get(&path).and_then(|it| it.holds.get(&key)).map(|hold| hold.token);
        let waits = if is_process { Wait::For(1 + dice.below(40)) } else { Wait::Unlimited };
        let figure = 1 + dice.below(4);
        let request = AcquirePermits {
            namespace: namespace(),
            path,
            owner: owner_of(&key.0),
            request_id: key.1.clone(),
            weight: 1 + dice.below(4),
            permits: dice.pick(&[None, Some(3), Some(3), Some(figure)]),
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
        let expected = self.model.acquire(&request, key);
        let outcome = self.locks(LocksCommand::Semaphore(SemaphoreCommand::Acquire(request.clone())));
        match (&expected, &outcome) {
            (Ok(expected), Ok(Response::PermitsAcquired { outcome, semaphore, .. })) => {
                let fits = match (expected, outcome) {
                    (Ok(true), AcquireOutcome::Granted { .. }) | (Ok(false), AcquireOutcome::Enqueued(_)) => true,
                    (Err(reason), AcquireOutcome::Refused(refused)) => refused.reason == *reason,
                    _ => false,
                };
                assert!(fits, "{request:?}: {expected:?} {outcome:?}");
                let known = self.model.semaphores.get(&request.path).map(Semaphore::in_use);
                assert_eq!(semaphore.in_use, known.unwrap_or_default());
            }
            (Err(()), Err(CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_))) => {}
            _ => panic!("{request:?}: {expected:?} {outcome:?}"),
        }
    }

    fn release(&mut self, path: Path, key: Key) {
        let request = ReleasePermits {
            namespace: namespace(),
            path: path.clone(),
            owner: owner_of(&key.0),
            request_id: Some(key.1.clone()),
            fencing_token: None,
            message: None,
        };
        let expected = self.model.end_hold(&path, &key) || self.model.end_wait(&path, &key);
        self.model.promote(&path);
        let outcome = self.locks(LocksCommand::Semaphore(SemaphoreCommand::Release(request)));
        assert!(
            matches!(outcome, Ok(Response::PermitsReleased { released, .. }) if released == expected),
            "{outcome:?}"
        );
    }

    fn configure(&mut self, dice: &mut SeededRng, path: Path) {
        let permits = dice.below(5);
        let (description, metadata) = (String::new(), Metadata::new());
        let configure =
            ConfigureSemaphore { namespace: namespace(), path: path.clone(), permits, description, metadata };
        self.locks(LocksCommand::Semaphore(SemaphoreCommand::Configure(configure))).expect("it is configured");
        let semaphore = self.model.semaphores.entry(path.clone()).or_default();
        self.model.revision += u64::from(!semaphore.is_configured || semaphore.permits != permits);
        (semaphore.permits, semaphore.is_configured) = (permits, true);
        self.model.promote(&path);
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
            self.locks(close).expect("it is open");
            self.model.end_owners(|owner| owner == session_id, |model, path, key| _ = model.end_hold(path, key));
        } else {
            let known_revision = self.core.revision();
            self.locks(LocksCommand::ExpireSessions { ids: vec![number], known_revision }).expect("it is open");
            self.model.end_owners(|owner| owner == session_id, |model, path, key| model.end_phase(path, key, now_ms));
        }
    }

    fn release_all(&mut self, name: &str) {
        let (owner, what) = (owner_of(name), ReleaseTarget::All);
        let release = Release { namespace: namespace(), owner, what, message: None };
        self.locks(LocksCommand::Release(release)).expect("all is released");
        self.model.end_owners(|owner| owner == name, |model, path, key| _ = model.end_hold(path, key));
    }

    fn reset(&mut self, live: &str) {
        let live_owners = vec![live.to_owned()];
        let reset = Reset { namespace: namespace(), live_owners, before_revision: None };
        self.locks(LocksCommand::Reset(reset)).expect("it is reset");
        self.sessions.retain(|session_id, _| session_id == live);
        self.model.end_owners(|owner| owner != live, |model, path, key| _ = model.end_hold(path, key));
    }

    /// Takes the effects of an entry.
    fn take_effects(&mut self) {
        self.core.verify();
        let (ours, theirs) = (self.core.take_effects(), self.restored.take_effects());
        assert_eq!(ours, theirs, "effects");
        self.resolved.extend(ours.into_iter().filter_map(|effect| match effect {
            Effect::PermitsResolved { owner, request_id, outcome, .. } => {
                Some(((name_of(&owner), request_id), outcome.fencing_token().is_some()))
            }
            _ => None,
        }));
    }

    /// Ends the work that takes several entries, and compares everything that can be seen.
    fn compare(&mut self) {
        while self.core.has_backlog() {
            self.take_effects();
            self.advance(0);
        }
        self.take_effects();
        assert_eq!(std::mem::take(&mut self.resolved), std::mem::take(&mut self.model.resolved), "who was told");
        let list = SemaphoreQuery::List { namespace: namespace(), prefix: Path::default(), after: None, limit: 100 };
        let Ok(Response::Semaphores { semaphores, .. }) = self.core.query(0, &Query::Semaphore(list)).outcome else {
            panic!("a page of semaphores")
        };
        assert!(semaphores.iter().map(|it| &it.path).eq(self.model.semaphores.keys()), "{semaphores:?}");
        for view in &semaphores {
            let known = &self.model.semaphores[&view.path];
            assert_eq!(
                (view.permits, view.configured, view.in_use),
                (known.permits, known.is_configured, known.in_use())
            );
            self.compare_holds(&view.path);
        }
        self.compare_waits();
    }

    fn compare_holds(&mut self, path: &Path) {
        let (namespace, path, limit) = (namespace(), path.clone(), 100);
        let known = self.model.semaphores.get_mut(&path).expect("it is known");
        let get = SemaphoreQuery::Get { namespace: namespace.clone(), path: path.clone(), after: None, limit };
        let Ok(Response::SemaphoreHolders { holders, .. }) = self.core.query(0, &Query::Semaphore(get)).outcome else {
            panic!("its holders")
        };
        assert_eq!(holders.len(), known.holds.len(), "{holders:?} {:?}", known.holds);
        for view in holders {
            let hold = known.holds.get_mut(&(name_of(&view.owner), view.request_id)).expect("it is held");
            assert_eq!((hold.weight, hold.phase, hold.deadline_ms), (view.weight, view.phase, view.deadline_ms));
            assert!(view.fencing_token >= hold.token, "tokens rise");
            hold.token = view.fencing_token;
            let (namespace, path, fencing_token) = (namespace.clone(), path.clone(), view.fencing_token);
            let check = Query::Semaphore(SemaphoreQuery::Check { namespace, path, fencing_token });
            let checked = self.core.query(0, &check).outcome;
            let is_held = view.phase == Phase::Held;
            assert!(matches!(checked, Ok(Response::SemaphoreChecked { current, .. }) if current == is_held));
        }
    }

    fn compare_waits(&mut self) {
        let query = SemaphoreQuery::Waits { namespace: namespace(), after: None, limit: 100 };
        let Ok(Response::PermitWaits { waits, .. }) = self.core.query(0, &Query::Semaphore(query)).outcome else {
            panic!("a page of waits")
        };
        for view in &waits {
            let queue = &mut self.model.semaphores.get_mut(&view.path).expect("it is known").queue;
            let queued = queue.get_mut(view.queue_position as usize).expect("it waits");
            assert_eq!(queued.key, (name_of(&view.owner), view.request_id.clone()), "the order of the queue");
            assert_eq!((queued.weight, queued.ends_at_ms), (view.weight, view.ends_at_ms));
            queued.arrival = view.wait.0;
        }
        assert_eq!(waits.len(), self.model.semaphores.values().map(|it| it.queue.len()).sum::<usize>());
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
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let bounds = if dice.one_in(2) { Bounds::of(Rules::TWO) } else { Bounds::tiny() };
    let core = ShardState::with_bounds(Application::Locks, "locks_00", bounds.clone());
    let (model, sessions, resolved) = (Model::default(), BTreeMap::new(), BTreeSet::new());
    let mut run = Run { restored: core.clone(), core, bounds, model, now_ms: 1_000, sessions, resolved };
    let message = NamespaceMessage::open(namespace(), Limits::default());
    run.advance(0);
    run.locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }).expect("it is opened");
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

impl Run {
    fn finish(&mut self) {
        while let Some((session_id, _)) = self.sessions.pop_first() {
            self.locks(LocksCommand::CloseSession { namespace: namespace(), session_id, message: None }).expect("open");
        }
        for name in ["a", "b"] {
            let delete = SemaphoreCommand::Delete { namespace: namespace(), path: Path::flat(name) };
            self.locks(LocksCommand::Semaphore(delete)).expect("it is deleted");
        }
        for (_, gone) in std::mem::take(&mut self.model.semaphores) {
            self.model.resolved.extend(gone.queue.into_iter().map(|it| (it.key, false)));
        }
        self.compare();
    }
}

#[test]
fn semaphores_do_what_their_model_does() {
    enable_mutation_from_env();
    let steps = env_setting("HOLDFAST_MODEL_STEPS", if cfg!(debug_assertions) { 30_000 } else { 300_000 });
    let first = env_setting("HOLDFAST_MODEL_SEED", 1);
    for seed in first..first + steps.div_ceil(STEPS_IN_A_RUN) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("HOLDFAST_MODEL_STEPS=1 HOLDFAST_MODEL_SEED={seed} reproduces it");
            std::panic::resume_unwind(panic);
        }
    }
}
