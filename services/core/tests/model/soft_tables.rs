//! Lock tables in the memory of leaders: random leaders, of which those of before go on granting, and sessions that
//! are reported to the next one, end, expire and are resumed. No two sessions ever hold conflicting claims, tokens rise,
//! no session loses what it holds, and nothing ends by force before the log knows of it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, Application, Bounds, Claim, Command, CommandError, Durability, Effect, EntryContext, FencingToken,
    Forfeit, ForfeitedHold, JobState, Limits, LockView, LocksCommand, Metadata, Mode, NamespaceMessage, OpenSession,
    OpenTableSession, Owner, Path, RequestId, Response, Rules, SessionCommand, SessionNumber, SessionRequest,
    TableCommand, TableEpoch, TableReport,
};

use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
use crate::soft_clients::{Client, Held, LockRequest, State, conflict, paths};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 200;
const SESSIONS: u64 = 4;
/// Steps after which a leader that has still something to do has got stuck.
const MAX_STEPS: u64 = 10_000;
const TRANSITIONS_MS: [u64; 3] = [0, 500, 5_000];

/// A leader, and the log as it knows it. All but the last one are deposed, and don't know it.
struct Leader {
    log: ShardState,
    table: SoftTable,
}

/// A client, and which thread of it if not the session itself.
type Thread = (usize, Option<String>);

struct Run {
    bounds: Bounds,
    leaders: Vec<Leader>,
    clients: Vec<Client>,
    /// The latest token of each lock that each thread of a client took, and for what.
    last_tokens: BTreeMap<Path, BTreeMap<Thread, (FencingToken, Mode)>>,
    /// What is under way to the log, to open locks by force.
    forfeits: Vec<Forfeit>,
    /// What was ended by force, as the log knows.
    forfeited: BTreeSet<(SessionNumber, Path, FencingToken)>,
    now_ms: u64,
    numbers: u64,
    /// Reports so far, with the leaders that they were for.
    reports: Vec<(usize, TableReport)>,
    /// Grants of leaders that had one before them.
    later_grants: u64,
}

impl Run {
    /// Leaders whose steps end and enter this much.
    fn new(units: usize) -> Self {
        let bounds = Bounds { ends_per_slice: units, grants_per_slice: units, ..Bounds::of(Rules::TWO) };
        let mut log = ShardState::with_bounds(Application::Locks, "locks_00", bounds.clone());
        let message = NamespaceMessage::open_durable(namespace(), Limits::default(), Durability::Session);
        let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
        let context = context(1_000, Rules::TWO);
        log.advance(&context);
        log.apply(&context, &Command::Locks(open)).outcome.expect("it is opened");
        let epoch = begun(&mut log, &context, 1);
        let table = SoftTable::begin(&log, &epoch).expect("it has begun");
        let (leaders, clients, last_tokens) = (vec![Leader { log, table }], Vec::new(), BTreeMap::new());
        Self {
            bounds,
            leaders,
            clients,
            last_tokens,
            forfeits: Vec::new(),
            forfeited: BTreeSet::new(),
            now_ms: 1_000,
            numbers: 0,
            reports: Vec::new(),
            later_grants: 0,
        }
    }

    fn context(&self) -> EntryContext {
        context(self.now_ms, Rules::TWO)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// An entry of the log, which only its last leader applies.
    fn log(&mut self, command: LocksCommand) -> Result<Response, CommandError> {
        let context = self.context();
        let leader = self.leaders.last_mut().expect("there is one");
        leader.log.advance(&context);
        let outcome = leader.log.apply(&context, &Command::Locks(command)).outcome;
        for effect in leader.log.take_effects() {
            leader.table.follow(&effect);
        }
        leader.table.advance(&context);
        leader.table.copy_events(&leader.log);
        leader.log.verify();
        outcome
    }

    /// Time passes for all, and the last leader writes an entry.
    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let context = self.context();
        let last = self.leaders.len() - 1;
        self.leaders[last].log.advance(&context);
        for number in 0..=last {
            let Leader { log, table } = &mut self.leaders[number];
            table.advance(&context);
            table.rebuild_all(log, &context);
            self.take_effects(number);
        }
    }

    /// The last leader does all that is due now, in the log and in its table.
    fn finish(&mut self) {
        let (context, last) = (self.context(), self.leaders.len() - 1);
        for _ in 0..MAX_STEPS {
            let Leader { log, table } = &mut self.leaders[last];
            log.advance(&context);
            for effect in log.take_effects() {
                table.follow(&effect);
            }
            table.rebuild_all(log, &context);
            table.advance(&context);
            let due_ms = log.next_deadline_ms().into_iter().chain(table.next_deadline_ms()).min();
            self.take_effects(last);
            if due_ms.is_none_or(|due_ms| due_ms > context.now_ms) {
                return;
            }
        }
        panic!("it does not end");
    }

    fn open(&mut self, dice: &mut SeededRng) {
        let (number, transition_ms) = (self.number(), dice.pick(&TRANSITIONS_MS));
        let id = format!("se_{number}");
        let Ok(Response::TableSessionOpened { session, .. }) = self.log(opening(&id, false, number, transition_ms))
        else {
            panic!("it is not opened")
        };
        let (number, epoch) = (session.number, session.epoch);
        let (holds, requests) = (BTreeMap::new(), BTreeMap::new());
        let client = Client {
            id,
            number,
            epoch,
            seq: 0,
            transition_ms,
            requests,
            holds,
            promised: 0,
            compares: None,
            until_ms: None,
        };
        self.clients.push(client);
    }

    fn resume(&mut self, at: usize) {
        let (id, call) = (self.clients[at].id.clone(), self.number());
        let Leader { log, table } = self.leaders.last().expect("there is one");
        let LocksCommand::Table(TableCommand::OpenSession(resumed)) = opening(&id, true, call, 0) else { return };
        if table.unreported_resume(log, &resumed.open).is_some() {
            return;
        }
        if let Ok(Response::TableSessionOpened { session, .. }) = self.log(opening(&id, true, call, 0)) {
            (self.clients[at].epoch, self.clients[at].seq) = (session.epoch, 0);
            self.compare(at);
        }
    }

    /// Its client stops counting on it before its end is written.
    fn end(&mut self, at: usize, expires: bool) {
        let (number, session_id, transition_ms) =
            (self.clients[at].number, self.clients[at].id.clone(), self.clients[at].transition_ms);
        self.clients[at].until_ms = Some(if expires { self.now_ms.saturating_add(transition_ms) } else { 0 });
        let ended = if expires {
            self.log(LocksCommand::ExpireSessions { ids: vec![number], known_revision: u64::MAX })
        } else {
            self.log(LocksCommand::CloseSession { namespace: namespace(), session_id, message: None })
        };
        ended.expect("it is open");
    }

    /// The next leader has applied all of the log.
    fn depose(&mut self) {
        let attempt = self.leaders.len() as u64 + 1;
        let context = self.context();
        let mut log = self.leaders.last().expect("there is one").log.clone();
        log.advance(&context);
        let epoch = begun(&mut log, &context, attempt);
        let table = SoftTable::begin(&log, &epoch).expect("it has begun");
        // What the deposed one was about to write is refused.
        self.forfeits.clear();
        self.leaders.push(Leader { log, table });
    }

    /// A client asks a leader, of which it may not know that it is deposed.
    fn send(&mut self, to: usize, at: usize, request: SessionRequest) -> Result<Response, CommandError> {
        let (session, message) = (self.clients[at].number, self.clients[at].next_message());
        let command = SessionCommand { account: namespace().account, session, message, request };
        self.apply(to, &LocksCommand::Session(command))
    }

    fn apply(&mut self, to: usize, command: &LocksCommand) -> Result<Response, CommandError> {
        let context = self.context();
        let Leader { log, table } = &mut self.leaders[to];
        table.apply(log, &context, command).outcome
    }

    fn acquire(&mut self, to: usize, at: usize, id: &str, asked: LockRequest) {
        let outcome = self.send(to, at, asked.request(id));
        let is_promised = to < self.clients[at].promised;
        match outcome {
            Ok(Response::Granted { fencing_token }) => self.take(to, at, (id, &asked), fencing_token, &[]),
            Ok(Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, locks }) => {
                self.take(to, at, (id, &asked), fencing_token, &locks);
            }
            // What the leader does not know yet waits, too.
            Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) if !is_promised => {
                self.clients[at].requests.insert(id.to_owned(), (asked, State::Waits(Some(enqueued.wait))));
            }
            Err(CommandError::Busy(_)) => {
                let known = self.clients[at].requests.get(id).map(|(_, state)| *state);
                let state = known.unwrap_or(State::Waits(None));
                self.clients[at].requests.insert(id.to_owned(), (asked, state));
            }
            _ => {}
        }
        self.take_effects(to);
    }

    fn release(&mut self, to: usize, at: usize, request_id: String) {
        self.clients[at].release(&request_id);
        let (release, promised) = (SessionRequest::Release { request_id, is_known: true }, self.clients[at].promised);
        let _ = self.send(to, at, release.clone());
        self.take_effects(to);
        // What an earlier leader did is done again by the one that has the report.
        if to < promised {
            let _ = self.send(promised, at, release);
            self.take_effects(promised);
        }
    }

    /// Its gateway takes nothing of earlier leaders any more, and reports what it has.
    fn report(&mut self, to: usize, at: usize) {
        let client = &mut self.clients[at];
        if to < client.promised {
            return;
        }
        client.promised = to;
        let report = client.report(self.leaders[to].table.epoch());
        self.reports.push((to, report.clone()));
        self.send_report(to, report);
    }

    /// A report arrives, perhaps again.
    fn send_report(&mut self, to: usize, report: TableReport) {
        let _ = self.apply(to, &LocksCommand::Table(TableCommand::Report(report)));
        self.take_effects(to);
    }

    /// A resumed client lists what it has: it has lost nothing of it.
    fn compare(&mut self, at: usize) {
        let (to, list, context) = (self.leaders.len() - 1, self.clients[at].list(), self.context());
        let Leader { log, table } = &mut self.leaders[to];
        let reply = table.apply(log, &context, &LocksCommand::LockInfo(list));
        if let Ok(Response::Reconciled { lost, .. }) = reply.outcome {
            assert!(lost.is_empty(), "{:?} has lost {lost:?}", self.clients[at]);
        }
        self.clients[at].compares = reply.awaits.map(|began| (to, began));
        self.take_effects(to);
    }

    fn take_effects(&mut self, from: usize) {
        self.leaders[from].table.verify();
        for effect in self.leaders[from].table.take_effects() {
            if let Effect::Revoked { session_id, path, fencing_token, .. } = &effect {
                self.revoked(from, session_id, path, *fencing_token);
            }
            let Effect::WaitResolved { owner, request_id, outcome, locks, .. } = effect else { continue };
            let (Owner::Session { session_id, .. }, Some(id)) = (owner, request_id) else { panic!("a session waits") };
            let at = self.clients.iter().position(|client| client.id == session_id).expect("it was opened");
            // What it asks to release it claims no more.
            let Some((asked, State::Waits(_))) = self.clients[at].requests.get(&id).cloned() else { continue };
            match outcome {
                AcquireOutcome::Granted { fencing_token } => {
                    self.take(from, at, (&id, &asked), fencing_token, &locks);
                }
                _ if from >= self.clients[at].promised => _ = self.clients[at].requests.remove(&id),
                _ => {}
            }
        }
    }

    /// A leader tells a session of a lost hold. The session has it no more, unless that leader is deposed, or the hold was
    /// extended between the entry that ended it by force and its end in the table.
    fn revoked(&mut self, from: usize, session_id: &str, path: &Path, token: FencingToken) {
        let has_it = |it: &&mut Client| it.id == *session_id && it.lives() && it.has_hold(path, token);
        let Some(client) = self.clients.iter_mut().find(has_it).filter(|it| from >= it.promised) else { return };
        let was_forced = self.forfeited.contains(&(client.number, path.clone(), token));
        assert!(was_forced, "it loses {path:?} with {token}, which it holds: {client:?}");
        client.lose(path, token);
    }

    /// A client takes a grant while it counts its life, and checks all that is known of everybody.
    fn take(
        &mut self,
        from: usize,
        at: usize,
        (id, asked): (&str, &LockRequest),
        token: FencingToken,
        locks: &[LockView],
    ) {
        let client = &mut self.clients[at];
        if !client.lives() || from < client.promised {
            return;
        }
        client.requests.insert(id.to_owned(), (asked.clone(), State::Granted));
        let granted = client.granted(asked, token, locks);
        // Another request of it for the same lock extends the hold.
        let is_new = |(held, hold): &(Held, (Mode, FencingToken))| client.holds.get(held) != Some(hold);
        let new: Vec<_> = granted.into_iter().filter(is_new).collect();
        self.later_grants += u64::from(from > 0 && !new.is_empty());
        for (held, hold) in new {
            self.check(at, &held, hold);
            self.clients[at].holds.insert(held, hold);
        }
    }

    /// Nobody else has what conflicts with a new hold, and its token is higher than all before, except those of readers
    /// beside it.
    fn check(&mut self, at: usize, held: &Held, (mode, token): (Mode, FencingToken)) {
        let (holder, path) = held;
        for (other, client) in self.clients.iter().enumerate().filter(|(_, client)| client.counts(self.now_ms)) {
            let others = client.holds.iter().filter(|((thread, _), _)| (other, thread) != (at, holder));
            let mut found = others.filter(|((_, other), (other_mode, _))| conflict((other, *other_mode), (path, mode)));
            assert_eq!(found.next(), None, "client {other} holds it, {at} is granted {mode:?} of {held:?}");
        }
        // A leader that it did not send its release to has the hold as before, beside those of later readers.
        let of_lock = self.last_tokens.entry(path.clone()).or_default();
        let this = (at, holder.clone());
        let rises = of_lock.iter().all(|(other, (last, last_mode))| {
            let is_own = *other == this;
            let are_readers = *last_mode == Mode::Read && mode == Mode::Read;
            *last < token || (is_own && *last == token) || (!is_own && are_readers)
        });
        assert!(rises, "tokens of {path:?} rise: {of_lock:?}, then {token} for {this:?}");
        of_lock.insert(this, (token, mode));
    }

    /// The last leader is told to open a lock. Nothing ends before the log has been told.
    fn force_open(&mut self, path: &Path) {
        let context = self.context();
        let leader = self.leaders.last_mut().expect("there is one");
        let opened = leader.table.force_open(&leader.log, &context, (&namespace(), path));
        // If it is refused, the leader waits for sessions of before.
        self.forfeits.extend(opened.expect("its table is here").ok());
        self.take_effects(self.leaders.len() - 1);
    }

    /// The log is told of the first lock that is being opened. Who held it is not told.
    fn write_forfeit(&mut self) {
        if self.forfeits.is_empty() {
            return;
        }
        let (forfeit, context) = (self.forfeits.remove(0), self.context());
        self.log(LocksCommand::Table(TableCommand::Forfeit(forfeit.clone()))).expect("there are few");
        for ForfeitedHold { session, fencing_token } in &forfeit.holds {
            self.forfeited.insert((*session, forfeit.path.clone(), *fencing_token));
            let of_session = self.clients.iter_mut().filter(|client| client.number == *session);
            of_session.for_each(|client| client.lose(&forfeit.path, *fencing_token));
        }
        let leader = self.leaders.last_mut().expect("there is one");
        leader.table.forfeit(&leader.log, &context, &forfeit);
        self.take_effects(self.leaders.len() - 1);
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let live: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].lives()).collect();
        if live.is_empty() || (dice.one_in(10) && (live.len() as u64) < SESSIONS) {
            return self.open(dice);
        }
        let at = dice.pick(&live);
        let to = if dice.one_in(3) { dice.below(self.leaders.len() as u64) as usize } else { self.leaders.len() - 1 };
        let leader = &self.leaders[to];
        let is_compared = |began| leader.table.job_state(began) != JobState::Running;
        if self.clients[at].compares.is_some_and(|(other, began)| other == to && !is_compared(began)) {
            // Its gateway waits for the answer, and sends nothing else before.
            return self.pass(0);
        }
        match dice.below(42) {
            0..18 => {
                let requests = self.clients[at].requests.iter();
                let mut waiting = requests.filter(|(_, (_, state))| matches!(state, State::Waits(_)));
                let first = waiting.next().map(|(id, (asked, _))| (id.clone(), asked.clone()));
                let again = first.filter(|_| dice.one_in(4));
                let (id, asked) = again.unwrap_or_else(|| (format!("r{}", self.number()), LockRequest::any(dice)));
                self.acquire(to, at, &id, asked);
            }
            18..28 => {
                let requests: Vec<String> = self.clients[at].requests.keys().cloned().collect();
                if !requests.is_empty() {
                    self.release(to, at, dice.pick(&requests));
                }
            }
            28 => self.resume(at),
            29..31 => self.report(to, at),
            // After a change of leader, nearly all report at once.
            31 => live.iter().for_each(|at| self.report(self.leaders.len() - 1, *at)),
            32 => self.end(at, dice.one_in(2)),
            33 => self.depose(),
            34 => self.restore(),
            35 => {
                if let Some((for_leader, report)) = self.reports.get(dice.below(1 + self.reports.len() as u64) as usize)
                {
                    let (to, report) = (if dice.one_in(2) { *for_leader } else { to }, report.clone());
                    self.send_report(to, report);
                }
            }
            40 => self.force_open(&dice.pick(&paths())),
            41 => self.write_forfeit(),
            _ => self.pass(dice.pick(&[0, 1, 300, 600, 6_000])),
        }
    }

    /// The log is the same after a restore; the leader's memory stays.
    fn restore(&mut self) {
        let leader = self.leaders.last_mut().expect("there is one");
        let chunks = leader.log.snapshot();
        let bounds = self.bounds.clone();
        leader.log =
            ShardState::restore_with_bounds(Application::Locks, "locks_00", &chunks, bounds).expect("it is whole");
        assert_eq!(leader.log.snapshot(), chunks);
    }
}

pub(crate) fn begun(log: &mut ShardState, context: &EntryContext, attempt: u64) -> TableEpoch {
    let begin = Command::Locks(LocksCommand::Table(TableCommand::BeginEpoch { attempt }));
    match log.apply(context, &begin).outcome {
        Ok(Response::TableEpoch(epoch)) => epoch,
        other => panic!("no epoch: {other:?}"),
    }
}

pub(crate) fn opening(id: &str, resume: bool, call: u64, transition_ms: u64) -> LocksCommand {
    let open = OpenSession {
        namespace: namespace(),
        session_id: id.to_owned(),
        resume,
        request_id: RequestId(u128::from(call).to_be_bytes()),
        process_id: format!("host of {id}"),
        ttl_ms: 10_000,
        metadata: Metadata::new(),
    };
    LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, transition_ms }))
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let mut run = Run::new(dice.pick(&[1, 2, 512, 512]));
    (0..STEPS_IN_A_RUN).for_each(|_| run.step(dice));
    // A leader that waits ends its wait.
    run.depose();
    let live: Vec<usize> = (0..run.clients.len()).filter(|at| run.clients[*at].lives()).collect();
    live.into_iter().for_each(|at| run.end(at, true));
    run.pass(5_000);
    run.finish();
    run.open(dice);
    let (last, at, before) = (run.leaders.len() - 1, run.clients.len() - 1, run.later_grants);
    let claims = vec![Claim { path: Path::flat("a"), mode: Mode::Write }];
    run.acquire(last, at, "last", LockRequest { holder: None, claims, lost: BTreeSet::new() });
    assert_eq!(run.later_grants, before + 1, "all of before have ended");
}

#[test]
fn no_two_sessions_hold_the_same_whoever_leads() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
