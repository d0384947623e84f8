//! Semaphores against a model of some plain lines: random commands, clocks, ends of sessions, snapshots and restores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, AcquirePermits, Application, AskRelease, Bounds, CancelPermits, Command, CommandError,
    ConfigureSemaphore, Effect, JobState, Kind, Limits, LockInfo, LocksCommand, Metadata, NamespaceMessage,
    OpenSession, Owner, Path, PermitCommand, PermitQuery, PermitsReport, PermitsView, Phase, Query, Release,
    ReleasePermits, ReleaseTarget, Reply, ReportedPermits, RequestId, Reset, Response, Revision, Rules, SessionNumber,
    Wait, Wanted,
};

use crate::mutations::enable_mutation_from_env;
use crate::permits_model::{Key, Model, Semaphore};
use crate::random::{SeededRng, namespace};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 150;

struct Run {
    core: ShardState,
    restored: ShardState,
    bounds: Bounds,
    model: Model,
    now_ms: u64,
    sessions: BTreeMap<String, SessionNumber>,
    /// Of all sessions that there were.
    numbers: BTreeMap<String, SessionNumber>,
    /// The revision at the last comparison.
    compared: Revision,
    /// The work that goes on, and the holds and waits that it is to end.
    job: Option<(Revision, (u64, u64))>,
    /// Whoever was told since the last comparison.
    resolved: BTreeSet<(Key, bool)>,
}

pub(crate) fn owner_of(name: &str) -> Owner {
    match name.starts_with("se_") {
        true => Owner::Session { session_id: name.to_owned(), holder: None },
        false => Owner::Process(name.to_owned()),
    }
}

pub(crate) fn name_of(owner: &Owner) -> String {
    match owner {
        Owner::Process(name) => name.clone(),
        Owner::Session { session_id, .. } => session_id.clone(),
    }
}

impl Run {
    fn apply(&mut self, command: LocksCommand) -> Reply {
        let (context, command) = (context(self.now_ms, Rules::TWO), Command::Locks(command));
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply
    }

    fn locks(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        self.apply(command).outcome
    }

    /// Ends many holds and waits, now or in later entries.
    fn end_many(&mut self, command: LocksCommand, expected: (u64, u64)) {
        let Reply { outcome, awaits, .. } = self.apply(command);
        match (awaits, outcome) {
            (Some(began), Ok(_)) => self.job = Some((began, expected)),
            (None, Ok(Response::Reconciled { ended_holds, ended_waits, .. })) => {
                assert_eq!((ended_holds, ended_waits), expected);
            }
            (None, Ok(Response::Reset { removed_holds, removed_waiters })) => {
                assert_eq!((removed_holds, removed_waiters), expected);
            }
            (None, Ok(Response::Released { released, .. })) => assert_eq!(released, expected != (0, 0)),
            other => panic!("it ends: {other:?}"),
        }
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let names: Vec<String> =
            ["p0", "p1", "p2"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let (name, path) = (dice.pick(&names), Path::flat(dice.pick(&["a", "b"])));
        // An id is unique in a session. In the order of ids, those of the two paths are mixed.
        let key = (name.clone(), dice.pick(&["x", "y", "z"]).to_owned() + &path.0[0] + &name);
        self.model.revision = self.core.revision();
        match dice.below(26) {
            0..=9 => self.acquire(dice, path, key),
            10..=12 => self.release(path, key),
            13 | 14 => self.configure(dice, path),
            15 if dice.one_in(3) => self.delete(path),
            16 => self.open(dice),
            17 => self.end_session(dice),
            18 if dice.one_in(2) => self.release_all(&name),
            19 if dice.one_in(3) => self.reset(dice, &name),
            20 if name.starts_with("se_") => self.report(dice, &name),
            21..=23 => self.cancel(dice, path, key),
            24 => self.ask_release(dice, path),
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
            wanted: Wanted::Permits {
                weight: 1 + dice.below(4),
                permits: dice.pick(&[None, Some(3), Some(3), Some(figure)]),
            },
            priority: dice.pick(&[0, 0, 1]),
            ttl_ms: is_process.then(|| 1 + dice.below(50)),
            transition_ms: dice.pick(&[0, 5]),
            wait: dice.pick(&[Wait::No, waits, waits]),
            metadata: Metadata::new(),
            fencing_token: held.filter(|_| dice.one_in(4)),
            attempt: dice.below(7),
            abandoned: vec![],
            message: None,
        };
        let expected = self.model.acquire(&request, key);
        let outcome = self.locks(LocksCommand::Permit(PermitCommand::Acquire(request.clone())));
        match (&expected, &outcome) {
            (Ok(expected), Ok(Response::PermitsAcquired { outcome, view: PermitsView::Semaphore(semaphore), .. })) => {
                let fits = match (expected, outcome) {
                    (Ok(true), AcquireOutcome::Granted { .. }) | (Ok(false), AcquireOutcome::Enqueued(_)) => true,
                    (Err(reason), AcquireOutcome::Refused(refused)) => refused.reason == *reason,
                    _ => false,
                };
                assert!(fits, "{request:?}: {expected:?} {outcome:?}");
                let known = self.model.semaphores.get(&request.path).map(Semaphore::in_use);
                // Grants that exceed the slice follow.
                let is_settled = !self.core.has_backlog();
                assert!(!is_settled || semaphore.in_use == known.unwrap_or_default(), "{semaphore:?}");
            }
            (Err(()), Err(CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_))) => {}
            _ => panic!("{request:?}: {expected:?} {outcome:?}"),
        }
    }

    fn release(&mut self, path: Path, key: Key) {
        let request = ReleasePermits {
            namespace: namespace(),
            kind: Kind::Semaphore,
            path: path.clone(),
            owner: owner_of(&key.0),
            request_id: Some(key.1.clone()),
            fencing_token: None,
            members: vec![],
            message: None,
        };
        let expected = self.model.end_hold(&path, &key) || self.model.end_wait(&path, &key);
        self.model.promote(&path);
        let outcome = self.locks(LocksCommand::Permit(PermitCommand::Release(request)));
        assert!(
            matches!(outcome, Ok(Response::PermitsReleased { released, .. }) if released == expected),
            "{outcome:?}"
        );
    }

    fn cancel(&mut self, dice: &mut SeededRng, path: Path, key: Key) {
        let attempt = 1 + dice.below(6);
        let (left_queue, grant_released) = self.model.cancel(&path, &key, attempt);
        let (namespace, owner, attempts) = (namespace(), owner_of(&key.0), vec![attempt]);
        let kind = Kind::Semaphore;
        let cancel = CancelPermits { namespace, kind, path, owner, request_id: key.1, attempts };
        let outcome = self.locks(LocksCommand::Permit(PermitCommand::Cancel(cancel)));
        assert_eq!(outcome, Ok(Response::Cancelled { left_queue, grant_released }));
    }

    fn ask_release(&mut self, dice: &mut SeededRng, path: Path) {
        let (id, force, within_ms) = (dice.pick(&[1, 2, 3]), dice.one_in(2), 1 + dice.below(40));
        let ask = AskRelease {
            namespace: namespace(),
            kind: Kind::Semaphore,
            path: path.clone(),
            member: None,
            request_id: RequestId([id; 16]),
            by: "key".into(),
            reason: String::new(),
            within_ms: Some(within_ms),
            force,
        };
        let expected = self.model.ask_release(&path, id, force.then_some(within_ms));
        match (expected, self.locks(LocksCommand::AskRelease(ask))) {
            (Some(expected), Ok(Response::ReleaseAsked { asked, truncated: false, .. })) => assert_eq!(asked, expected),
            (None, Err(CommandError::PrimitiveNotFound { .. })) => {}
            other => panic!("{other:?}"),
        }
    }

    fn configure(&mut self, dice: &mut SeededRng, path: Path) {
        let permits = dice.below(5);
        let (description, metadata) = (String::new(), Metadata::new());
        let configure =
            ConfigureSemaphore { namespace: namespace(), path: path.clone(), permits, description, metadata };
        self.locks(LocksCommand::Permit(PermitCommand::Configure(configure))).expect("it is configured");
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
            self.numbers.insert(session_id.clone(), session.number);
            self.sessions.insert(session_id, session.number);
        }
    }

    fn end_session(&mut self, dice: &mut SeededRng) {
        let Some((session_id, number)) = self.sessions.pop_first() else { return };
        let now_ms = self.now_ms;
        if dice.one_in(2) {
            self.close_session(session_id);
        } else {
            let known_revision = self.core.revision();
            self.locks(LocksCommand::ExpireSessions { ids: vec![number], known_revision }).expect("it is open");
            self.model.end_all(|key, _| key.0 == session_id, |model, path, key| model.end_phase(path, key, now_ms));
        }
    }

    fn close_session(&mut self, session_id: String) {
        let is_its = |key: &Key, _| key.0 == session_id;
        self.model.end_all(is_its, |model, path, key| _ = model.end_hold(path, key));
        let close = LocksCommand::CloseSession { namespace: namespace(), session_id, message: None };
        self.locks(close).expect("it is open");
    }

    fn delete(&mut self, path: Path) {
        if let Some(gone) = self.model.semaphores.remove(&path) {
            self.model.resolved.extend(gone.queue.into_iter().map(|it| (it.key, false)));
        }
        let delete = PermitCommand::Delete { namespace: namespace(), kind: Kind::Semaphore, path };
        assert_eq!(self.locks(LocksCommand::Permit(delete)), Ok(Response::Done));
    }

    fn release_all(&mut self, name: &str) {
        let expected = self.model.end_all(|key, _| key.0 == name, |model, path, key| _ = model.end_hold(path, key));
        let (owner, what) = (owner_of(name), ReleaseTarget::All);
        self.end_many(LocksCommand::Release(Release { namespace: namespace(), owner, what, message: None }), expected);
    }

    /// Given a revision, only what is older goes: a process by its oldest hold or wait, a session by its number.
    fn reset(&mut self, dice: &mut SeededRng, live: &str) {
        let before_revision = dice.one_in(2).then(|| 1 + dice.below(self.core.revision() + 1));
        let (model, numbers) = (self.model.clone(), self.numbers.clone());
        let goes = |owner: &str| {
            let since = numbers.get(owner).copied().or_else(|| model.oldest(owner));
            owner != live && before_revision.is_none_or(|before| since.is_some_and(|since| since < before))
        };
        let end = |model: &mut Model, path: &Path, key: &Key| _ = model.end_hold(path, key);
        let expected = self.model.end_all(|key, _| goes(&key.0), end);
        self.sessions.retain(|session_id, _| !goes(session_id));
        let live_owners = vec![live.to_owned()];
        self.end_many(LocksCommand::Reset(Reset { namespace: namespace(), live_owners, before_revision }), expected);
    }

    /// The client of a session lists some of its holds, and names some of its requests as pending.
    fn report(&mut self, dice: &mut SeededRng, session_id: &str) {
        let (mut held, mut pending) = (Vec::new(), Vec::new());
        for (path, semaphore) in &self.model.semaphores {
            let its = semaphore.holds.iter().filter(|(key, _)| key.0 == session_id);
            held.extend(its.map(|(key, hold)| (path.clone(), key.1.clone(), hold.token, hold.is_asked())));
            pending.extend(semaphore.holds.keys().chain(semaphore.queue.iter().map(|it| &it.key)).cloned());
        }
        held.retain(|_| dice.one_in(2));
        pending.retain(|key| key.0 == session_id && dice.one_in(3));
        let stays = |key: &Key, token: Option<u64>| {
            pending.contains(key) || token.is_some_and(|token| held.iter().any(|(_, _, listed, _)| *listed == token))
        };
        let goes = |key: &Key, token: Option<u64>| key.0 == session_id && !stays(key, token);
        let expected = self.model.end_all(goes, |model, path, key| _ = model.end_hold(path, key));
        let pending = pending.into_iter().map(|(_, request_id)| request_id).collect();
        let asked_before: Vec<u64> =
            held.iter().filter(|(.., is_asked)| *is_asked).map(|(_, _, token, _)| *token).collect();
        let held = held.into_iter();
        let held = held.map(|(path, request_id, fencing_token, _)| ReportedPermits {
            kind: Kind::Semaphore,
            path,
            request_id,
            fencing_token,
        });
        let (session_id, message) = (session_id.to_owned(), None);
        let (namespace, held) = (namespace(), held.collect());
        let report = PermitsReport { namespace: namespace.clone(), session_id: session_id.clone(), message, held };
        let listed = self.locks(LocksCommand::ReportPermits(report));
        let Ok(Response::PermitsReconciled { lost, asked }) = listed else { panic!("{listed:?}") };
        let asked: Vec<u64> = asked.iter().flat_map(|it| &it.holds).map(|hold| hold.fencing_token).collect();
        assert_eq!((lost, asked), (vec![], asked_before));
        let info = LockInfo { namespace, session_id, message, held: vec![], pending };
        self.end_many(LocksCommand::LockInfo(info), expected);
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
        assert_eq!(std::mem::take(&mut self.resolved), std::mem::take(&mut self.model.resolved), "who was told");
        let list = PermitQuery::List {
            namespace: namespace(),
            kind: Kind::Semaphore,
            prefix: Path::default(),
            after: None,
            limit: 100,
        };
        let Ok(Response::Semaphores { semaphores, .. }) = self.core.query(0, &Query::Permit(list)).outcome else {
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
        self.compared = self.core.revision();
    }

    fn compare_holds(&mut self, path: &Path) {
        let (namespace, path, limit) = (namespace(), path.clone(), 100);
        let known = self.model.semaphores.get_mut(&path).expect("it is known");
        let get = PermitQuery::Get { namespace: namespace.clone(), path: path.clone(), after: None, limit };
        let Ok(Response::SemaphoreHolders { holders, .. }) = self.core.query(0, &Query::Permit(get)).outcome else {
            panic!("its holders")
        };
        assert_eq!(holders.len(), known.holds.len(), "{holders:?} {:?}", known.holds);
        for view in holders {
            let hold = known.holds.get_mut(&(name_of(&view.owner), view.request_id)).expect("it is held");
            assert_eq!((hold.weight, hold.phase, hold.ends_at_ms()), (view.weight, view.phase, view.deadline_ms));
            // How many ends come before a grant depends on the slices.
            assert!(view.fencing_token >= hold.token.min(self.compared + 1), "tokens rise");
            hold.token = view.fencing_token;
            let (namespace, path, fencing_token) = (namespace.clone(), path.clone(), view.fencing_token);
            let check = Query::Permit(PermitQuery::Check {
                namespace,
                kind: Kind::Semaphore,
                path,
                fencing_token,
                member: None,
            });
            let checked = self.core.query(0, &check).outcome;
            let is_held = view.phase == Phase::Held;
            assert!(matches!(checked, Ok(Response::PermitsChecked { current, .. }) if current == is_held));
        }
    }

    fn compare_waits(&mut self) {
        let query = PermitQuery::Waits { namespace: namespace(), after: None, limit: 100 };
        let Ok(Response::PermitWaits { waits, .. }) = self.core.query(0, &Query::Permit(query)).outcome else {
            panic!("a page of waits")
        };
        for view in &waits {
            let queue = &mut self.model.semaphores.get_mut(&view.path).expect("it is known").queue;
            let key = (name_of(&view.owner), view.request_id.clone());
            let (position, queued) = queue.iter_mut().enumerate().find(|(_, it)| it.key == key).expect("it waits");
            let shown = (position as u64).min(self.bounds.max_queue_position);
            assert_eq!(shown, view.queue_position, "the order of the queue");
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
    let (numbers, restored) = (BTreeMap::new(), core.clone());
    let mut run =
        Run { restored, core, bounds, model, now_ms: 1_000, sessions, numbers, compared: 0, job: None, resolved };
    let message = NamespaceMessage::open(namespace(), Limits::default());
    run.advance(0);
    run.locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }).expect("it is opened");
    for _ in 0..STEPS_IN_A_RUN {
        run.advance(dice.pick(&[0, 0, 1, 3, 20]));
        run.model.advance(run.now_ms, &run.bounds);
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
            self.model.revision = self.core.revision();
            self.close_session(session_id);
            self.compare();
        }
        for name in ["a", "b"] {
            self.delete(Path::flat(name));
            self.compare();
        }
    }
}

#[test]
fn semaphores_do_what_their_model_does() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
