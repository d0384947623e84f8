//! Barriers against a model of some plain lines: random commands, clocks, ends of sessions, snapshots and restores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    Application, ArriveAtBarrier, BarrierAnswer, BarrierCommand, BarrierOutcome, BarrierQuery, Bounds, Command,
    CommandError, ConfigureBarrier, Effect, JobState, Kind, LeaveBarrier, Limits, LockInfo, LocksCommand, Metadata,
    NamespaceMessage, OnLoss, OpenSession, Owner, Path, PermitsReport, Query, Release, ReleaseTarget, Reply,
    ReportedPermits, RequestId, Reset, Response, Revision, Rules, SessionNumber, WaitAtBarrier,
};

use crate::barriers_model::{How, Model, Told};
use crate::mutations::enable_mutation_from_env;
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
    /// The work that goes on, and the arrivals that it is to end.
    job: Option<(Revision, u64)>,
    told: BTreeSet<(String, BarrierOutcome)>,
    settled: BTreeSet<Path>,
}

/// A session and a holder have a slash between them.
fn owner_of(party: &str) -> Owner {
    match (party.starts_with("se_"), party.split_once('/')) {
        (true, Some((session_id, holder))) => {
            Owner::Session { session_id: session_id.to_owned(), holder: Some(holder.to_owned()) }
        }
        (true, None) => Owner::Session { session_id: party.to_owned(), holder: None },
        (false, _) => Owner::Process(party.to_owned()),
    }
}

fn party_of(owner: &Owner) -> String {
    match owner {
        Owner::Process(name) => name.clone(),
        Owner::Session { session_id, holder: Some(holder) } => format!("{session_id}/{holder}"),
        Owner::Session { session_id, holder: None } => session_id.clone(),
    }
}

/// The process, or the session.
fn scope_of(party: &str) -> &str {
    party.split_once('/').map_or(party, |(session_id, _)| session_id)
}

fn answer_of(answer: &BarrierAnswer) -> Told {
    Told { outcome: answer.outcome, index: answer.index, lost: answer.lost, ended: answer.ended }
}

impl Run {
    fn apply(&mut self, command: LocksCommand) -> Reply {
        let (context, command) = (context(self.now_ms, Rules::TWO), Command::Locks(command));
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply
    }

    fn barrier(&mut self, command: BarrierCommand) -> Result<Response, CommandError> {
        self.apply(LocksCommand::Barrier(command)).outcome
    }

    /// Ends many arrivals, now or in later entries.
    fn end_many(&mut self, command: LocksCommand, expected: u64) {
        let Reply { outcome, awaits, .. } = self.apply(command);
        match (awaits, outcome) {
            (Some(began), Ok(_)) => self.job = Some((began, expected)),
            (None, Ok(Response::Reconciled { ended_holds, .. })) => assert_eq!(ended_holds, expected),
            (None, Ok(Response::Reset { removed_holds, .. })) => assert_eq!(removed_holds, expected),
            (None, Ok(Response::Released { released, .. })) => assert_eq!(released, expected > 0),
            other => panic!("it ends: {other:?}"),
        }
    }

    /// The order in which arrivals end: of processes by name, then of sessions by number and holder.
    fn rank(numbers: &BTreeMap<String, SessionNumber>, party: &str) -> (SessionNumber, String) {
        (numbers.get(scope_of(party)).copied().unwrap_or_default(), party.to_owned())
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let names: Vec<String> =
            ["p0", "p1", "p2"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let (name, path) = (dice.pick(&names), Path::flat(dice.pick(&["a", "b"])));
        let is_session = name.starts_with("se_");
        let party = if is_session && dice.one_in(2) { format!("{name}/h") } else { name.clone() };
        match dice.below(24) {
            0..=10 => self.arrive(dice, path, &party),
            11..=14 => self.leave(dice, path, &party),
            15 => self.configure(dice, path),
            16 if dice.one_in(3) => self.delete(path),
            17 => self.open(dice),
            18 => self.end_session(dice),
            19 if dice.one_in(2) => self.release_all(&party),
            20 if dice.one_in(3) => self.reset(dice, &name),
            21 if is_session => self.report(dice, &name),
            22 if is_session => self.release(dice, &name),
            _ => {}
        }
    }

    /// A generation that somebody may name.
    fn generation(&self, dice: &mut SeededRng, path: &Path) -> u64 {
        let barrier = self.model.barriers.get(path);
        let present = barrier.map_or(1, |barrier| barrier.generation);
        let inside = barrier.and_then(|barrier| barrier.inside.as_ref()).map(|inside| inside.generation);
        let past: Vec<u64> = self.model.numbers.get(path).into_iter().flatten().copied().rev().take(4).collect();
        let past = if past.is_empty() { 1 } else { dice.pick(&past) };
        let later = self.core.revision() + 1_000;
        let rare = dice.pick(&[past, later]);
        dice.pick(&[present, present, present, inside.unwrap_or(past), past, past, rare])
    }

    fn arrive(&mut self, dice: &mut SeededRng, path: Path, party: &str) {
        let is_process = !party.starts_with("se_");
        let generation = self.generation(dice, &path);
        let id = dice.pick(&["x", "y"]).to_owned() + &path.0[0] + "@" + party;
        let arrive = ArriveAtBarrier {
            namespace: namespace(),
            path: path.clone(),
            owner: owner_of(party),
            generation: dice.pick(&[None, None, Some(generation)]),
            parties: dice.pick(&[None, None, Some(2), Some(3), Some(3), Some(1)]),
            double: dice.pick(&[None, None, None, Some(false), Some(true)]),
            ttl_ms: is_process.then(|| 1 + dice.below(60)),
            metadata: Metadata::new(),
            request_id: Some(id).filter(|_| !is_process && dice.below(4) > 0),
            message: None,
        };
        let is_new = self.model.barriers.get(&path).is_none_or(|barrier| barrier.is_deleted);
        let since = self.core.revision() + 1 + u64::from(is_new);
        let outcome = self.barrier(BarrierCommand::Arrive(arrive.clone()));
        let shown = if let Ok(Response::AtBarrier { answer, .. }) = &outcome { answer.generation } else { 0 };
        match (self.model.arrive(&arrive, party, (since, shown)), outcome) {
            (Some((generation, expected)), Ok(Response::AtBarrier { answer, .. })) => {
                assert_eq!((generation, expected), (answer.generation, answer_of(&answer)), "{arrive:?}");
            }
            (None, Err(CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_))) => {}
            other => panic!("{arrive:?}: {other:?}"),
        }
    }

    fn leave(&mut self, dice: &mut SeededRng, path: Path, party: &str) {
        let (namespace, owner, generation) = (namespace(), owner_of(party), self.generation(dice, &path));
        let leave = LeaveBarrier { namespace, path: path.clone(), owner, generation, message: None };
        let expected = self.model.leave(&path, party, generation);
        match (expected, self.barrier(BarrierCommand::Leave(leave.clone()))) {
            (Some(expected), Ok(Response::AtBarrier { answer, .. })) => {
                assert_eq!((generation, expected), (answer.generation, answer_of(&answer)), "{leave:?}");
            }
            (None, Err(CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_))) => {}
            other => panic!("{leave:?}: {other:?}"),
        }
    }

    fn configure(&mut self, dice: &mut SeededRng, path: Path) {
        let configure = ConfigureBarrier {
            namespace: namespace(),
            path,
            parties: 1 + dice.below(3) as u32,
            double: dice.one_in(2),
            on_loss: dice.pick(&[OnLoss::Break, OnLoss::Withdraw]),
            retain_ms: dice.pick(&[0, 60_000]),
            description: String::new(),
            metadata: Metadata::new(),
        };
        self.model.configure(&configure);
        assert!(matches!(self.barrier(BarrierCommand::Configure(configure)), Ok(Response::Barrier(_))));
    }

    fn delete(&mut self, path: Path) {
        let delete = BarrierCommand::Delete { namespace: namespace(), path: path.clone() };
        assert_eq!(self.barrier(delete), Ok(Response::Done));
        self.model.delete(&path, self.core.revision());
    }

    fn open(&mut self, dice: &mut SeededRng) {
        let session_id = format!("se_{}", self.numbers.len());
        let open = OpenSession {
            namespace: namespace(),
            session_id: session_id.clone(),
            resume: false,
            request_id: RequestId([dice.below(256) as u8; 16]),
            process_id: "p".into(),
            ttl_ms: 10_000,
            metadata: Metadata::new(),
        };
        if self.sessions.len() < 3
            && let Ok(Response::SessionOpened { session, .. }) = self.apply(LocksCommand::OpenSession(open)).outcome
        {
            self.numbers.insert(session_id.clone(), session.number);
            self.sessions.insert(session_id, session.number);
        }
    }

    fn end_session(&mut self, dice: &mut SeededRng) {
        let Some((session_id, number)) = self.sessions.pop_first() else { return };
        let numbers = &self.numbers;
        self.model.end_all(|it| Self::rank(numbers, it), |it| scope_of(&it.party) == session_id, How::Lost);
        let command = match dice.one_in(2) {
            true => LocksCommand::CloseSession { namespace: namespace(), session_id, message: None },
            false => LocksCommand::ExpireSessions { ids: vec![number], known_revision: self.core.revision() },
        };
        self.apply(command).outcome.expect("it is open");
    }

    fn release_all(&mut self, party: &str) {
        let (numbers, is_whole) = (&self.numbers, !party.contains('/'));
        let goes = |it: &str| it == party || (is_whole && scope_of(it) == party);
        let expected = self.model.end_all(|it| Self::rank(numbers, it), |it| goes(&it.party), How::Releases);
        let (owner, what) = (owner_of(party), ReleaseTarget::All);
        self.end_many(LocksCommand::Release(Release { namespace: namespace(), owner, what, message: None }), expected);
    }

    fn release(&mut self, dice: &mut SeededRng, session_id: &str) {
        let all = self.model.barriers.iter().flat_map(|(path, barrier)| {
            let inside = barrier.inside.iter().flat_map(|inside| &inside.present);
            let its = barrier.gathered.iter().chain(inside).filter(|it| scope_of(&it.party) == session_id);
            its.filter_map(|it| Some((path.clone(), it.party.clone(), it.request_id.clone()?)))
        });
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            return;
        }
        let (path, party, request_id) = dice.pick(&all);
        self.model.end(&path, &party, How::Releases);
        let (owner, what) = (owner_of(session_id), ReleaseTarget::Request { request_id });
        self.end_many(LocksCommand::Release(Release { namespace: namespace(), owner, what, message: None }), 1);
    }

    /// Given a revision, only what is older goes: a process by its oldest arrival, a session by its number.
    fn reset(&mut self, dice: &mut SeededRng, live: &str) {
        let before_revision = dice.one_in(2).then(|| 1 + dice.below(self.core.revision() + 1));
        let (model, numbers) = (self.model.clone(), self.numbers.clone());
        let goes = |owner: &str| {
            let since = numbers.get(owner).copied().or_else(|| model.oldest(owner));
            owner != live && before_revision.is_none_or(|before| since.is_some_and(|since| since < before))
        };
        let expected = self.model.end_all(|it| Self::rank(&numbers, it), |it| goes(scope_of(&it.party)), How::Lost);
        self.sessions.retain(|session_id, _| !goes(session_id));
        let live_owners = vec![live.to_owned()];
        self.end_many(LocksCommand::Reset(Reset { namespace: namespace(), live_owners, before_revision }), expected);
    }

    /// The client of a session lists some of its arrivals, and names some as pending.
    fn report(&mut self, dice: &mut SeededRng, session_id: &str) {
        let (mut held, mut pending) = (Vec::new(), Vec::new());
        for (path, barrier) in &self.model.barriers {
            let inside = barrier.inside.iter().flat_map(|it| it.present.iter().map(|arrival| (it.generation, arrival)));
            let all = barrier.gathered.iter().map(|arrival| (barrier.generation, arrival)).chain(inside);
            for (generation, arrival) in all.filter(|(_, arrival)| scope_of(&arrival.party) == session_id) {
                let Some(request_id) = arrival.request_id.clone() else { continue };
                pending.extend(dice.one_in(4).then(|| request_id.clone()));
                let (kind, path, fencing_token) = (Kind::Barrier, path.clone(), generation);
                held.extend(dice.one_in(2).then_some(ReportedPermits { kind, path, request_id, fencing_token }));
            }
        }
        let is_listed = |id: &String| pending.contains(id) || held.iter().any(|it| it.request_id == *id);
        let numbers = &self.numbers;
        let goes = |party: &str, id: Option<&String>| scope_of(party) == session_id && !id.is_some_and(is_listed);
        let expected = self.model.end_all(
            |it| Self::rank(numbers, it),
            |it| goes(&it.party, it.request_id.as_ref()),
            How::Releases,
        );
        let (namespace, session_id, message) = (namespace(), session_id.to_owned(), None);
        let report = PermitsReport { namespace: namespace.clone(), session_id: session_id.clone(), message, held };
        let listed = self.apply(LocksCommand::ReportPermits(report)).outcome;
        assert_eq!(listed, Ok(Response::PermitsReconciled { lost: vec![], asked: vec![] }));
        self.end_many(
            LocksCommand::LockInfo(LockInfo { namespace, session_id, message, held: vec![], pending }),
            expected,
        );
    }

    /// Takes the effects of an entry.
    fn take_effects(&mut self) {
        self.core.verify();
        let (ours, theirs) = (self.core.take_effects(), self.restored.take_effects());
        assert_eq!(ours, theirs, "effects");
        for effect in ours {
            match effect {
                Effect::BarrierSettled { path, .. } => _ = self.settled.insert(path),
                Effect::MetAtBarrier { request_id, answer, .. } => _ = self.told.insert((request_id, answer.outcome)),
                _ => {}
            }
        }
    }

    /// Ends the work that takes several entries, and compares everything that can be seen.
    fn compare(&mut self, dice: &mut SeededRng) {
        while self.core.has_backlog() {
            self.take_effects();
            // Another replica takes over in the middle.
            if self.core.revision() & 3 == 0 {
                self.restore();
            }
            self.advance(0);
        }
        self.take_effects();
        if let Some((began, ended_holds)) = self.job.take() {
            assert_eq!(self.core.job_state(began), JobState::Done { ended_holds, ended_waits: 0 });
        }
        assert_eq!(std::mem::take(&mut self.settled), std::mem::take(&mut self.model.settled), "what is settled");
        // Whose session has ended may be told, or not.
        let of_open = |told: BTreeSet<(String, BarrierOutcome)>| -> BTreeSet<(String, BarrierOutcome)> {
            let party = |id: &str| id.split_once('@').map_or(String::new(), |(_, party)| scope_of(party).to_owned());
            told.into_iter().filter(|(id, _)| self.sessions.contains_key(&party(id))).collect()
        };
        let ours = of_open(std::mem::take(&mut self.told));
        let expected = of_open(std::mem::take(&mut self.model.told));
        assert_eq!(ours, expected, "who was told");
        let (prefix, after, limit) = (Path::default(), None, 100);
        let list = Query::Barrier(BarrierQuery::List { namespace: namespace(), prefix, after, limit });
        let Ok(Response::Barriers { barriers, .. }) = self.core.query(0, &list).outcome else { panic!("a page") };
        let present = self.model.barriers.iter().filter(|(_, it)| !it.is_deleted).map(|(path, _)| path);
        assert!(barriers.iter().map(|view| &view.path).eq(present), "{barriers:?}");
        for view in &barriers {
            self.model.number(&view.path, view.generation);
            let known = &self.model.barriers[&view.path];
            let figures = (known.parties, known.double, known.on_loss, known.retain_ms, known.is_configured);
            assert_eq!((view.parties, view.double, view.on_loss, view.retain_ms, view.configured), figures);
            assert_eq!(view.gone_at_ms, known.gone_at_ms());
            self.compare_arrivals(&view.path);
        }
        for path in ["a", "b"] {
            self.compare_answer(dice, Path::flat(path));
        }
    }

    fn compare_arrivals(&self, path: &Path) {
        let get = Query::Barrier(BarrierQuery::Get { namespace: namespace(), path: path.clone() });
        let Ok(Response::BarrierArrivals { barrier, arrivals, outcomes }) = self.core.query(0, &get).outcome else {
            panic!("its arrivals")
        };
        let known = &self.model.barriers[path];
        let gathered = known.gathered.iter().map(|it| (false, it));
        let inside = known.inside.iter().flat_map(|inside| inside.present.iter().map(|it| (true, it)));
        let expected: Vec<_> = gathered.chain(inside).collect();
        assert_eq!(arrivals.len(), expected.len(), "{arrivals:?} {expected:?}");
        for (view, (inside, arrival)) in arrivals.iter().zip(expected) {
            let shown = (view.inside, party_of(&view.owner), view.deadline_ms, view.request_id.clone());
            assert_eq!(shown, (inside, arrival.party.clone(), arrival.deadline_ms, arrival.request_id.clone()));
        }
        assert_eq!(barrier.inside_generation, known.inside.as_ref().map(|inside| inside.generation));
        let shown = outcomes.iter().rev().map(|it| (it.generation, it.end, it.parties as usize, it.lost));
        assert!(shown.eq(known.ended.iter().map(|(number, it)| (*number, it.end, it.parties.len(), it.left))));
    }

    /// What somebody is told who asks again, or did not arrive.
    fn compare_answer(&self, dice: &mut SeededRng, path: Path) {
        let names: Vec<String> =
            ["p0", "p1"].map(str::to_owned).into_iter().chain(self.sessions.keys().cloned()).collect();
        let party = Some(dice.pick(&names)).filter(|_| !dice.one_in(4));
        let (generation, leaves) = (self.generation(dice, &path), dice.one_in(2));
        let known = self.model.known(&path, generation);
        let expected = known.map(|barrier| barrier.answer(party.as_deref(), generation, leaves));
        let (namespace, owner, wait_ms) = (namespace(), party.as_deref().map(owner_of), 0);
        let wait = WaitAtBarrier { namespace, path, generation, owner, leaves, wait_ms };
        match (expected, self.core.query(0, &Query::Barrier(BarrierQuery::Wait(wait.clone()))).outcome) {
            (Some(expected), Ok(Response::AtBarrier { answer, .. })) => {
                assert_eq!(expected, answer_of(&answer), "{wait:?}");
            }
            (None, Err(CommandError::PrimitiveNotFound { .. } | CommandError::InvalidArgument(_))) => {}
            other => panic!("{wait:?}: {other:?}"),
        }
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
    let (sessions, numbers, restored) = (BTreeMap::new(), BTreeMap::new(), core.clone());
    let (told, settled) = (BTreeSet::new(), BTreeSet::new());
    let model = Model::default();
    let mut run = Run { core, restored, bounds, model, now_ms: 1_000, sessions, numbers, job: None, told, settled };
    let message = NamespaceMessage::open(namespace(), Limits::default());
    run.advance(0);
    let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
    run.apply(open).outcome.expect("it is opened");
    for _ in 0..STEPS_IN_A_RUN {
        run.advance(dice.pick(&[0, 0, 0, 1, 10, 40, 40_000]));
        run.model.advance(run.now_ms);
        run.compare(dice);
        run.step(dice);
        run.compare(dice);
        if dice.one_in(8) {
            run.restore();
        }
    }
    run.finish(dice);
}

impl Run {
    /// Nothing is left when all are gone and the time of each barrier is over.
    fn finish(&mut self, dice: &mut SeededRng) {
        while !self.sessions.is_empty() {
            self.end_session(dice);
            self.compare(dice);
        }
        for path in ["a", "b"] {
            self.delete(Path::flat(path));
            self.compare(dice);
        }
        self.advance(10 * 60 * 1_000);
        self.model.advance(self.now_ms);
        self.compare(dice);
        assert!(self.model.barriers.is_empty());
        assert_eq!(self.core.footprint(), Default::default());
    }
}

#[test]
fn barriers_do_what_their_model_does() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
