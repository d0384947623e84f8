//! Lock tables in the memory of leaders: random leaders, of which those of before go on granting, and sessions that
//! are reported to the next one, end, expire and are resumed. No two sessions ever hold conflicting claims, tokens rise,
//! no session loses what it holds, and nothing ends by force before the log knows of it.

use std::collections::BTreeMap;

use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, Application, Bounds, Claim, Command, CommandError, Durability, Effect, EntryContext, FencingToken,
    Forfeit, ForfeitedHold, Limits, LocksCommand, MessageSeq, Metadata, Mode, NamespaceMessage, OpenSession,
    OpenTableSession, Owner, Path, ReportedHold, ReportedRequest, ReportedWait, RequestId, Response, Rules,
    SessionAcquire, SessionCommand, SessionNumber, SessionRequest, TableCommand, TableEpoch, TableReport, Wait, WaitId,
};

use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
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

/// A session as its client and its gateway see it.
#[derive(Debug)]
struct Client {
    id: String,
    number: SessionNumber,
    epoch: u64,
    seq: u64,
    transition_ms: u64,
    holds: BTreeMap<String, (Claim, FencingToken)>,
    waits: BTreeMap<String, (Claim, Option<WaitId>)>,
    /// The leader that it reported to last: it takes nothing of earlier ones.
    promised: usize,
    /// The shard clock until which its holds count, once it has ended; absent while its client counts its life.
    until_ms: Option<u64>,
}

struct Run {
    bounds: Bounds,
    leaders: Vec<Leader>,
    clients: Vec<Client>,
    /// The latest token of each lock that each client took, and for what.
    last_tokens: BTreeMap<Path, BTreeMap<usize, (FencingToken, Mode)>>,
    /// What is under way to the log, to open locks by force.
    forfeits: Vec<Forfeit>,
    now_ms: u64,
    numbers: u64,
    /// Reports so far, with the leaders that they were for.
    reports: Vec<(usize, TableReport)>,
    /// Grants of leaders that had one before them.
    later_grants: u64,
}

fn paths() -> Vec<Path> {
    let all: [&[&str]; 4] = [&["a"], &["a", "x"], &["a", "y"], &["b"]];
    all.iter().map(|segments| Path(segments.iter().map(|segment| (*segment).to_owned()).collect())).collect()
}

fn any_claim(dice: &mut SeededRng) -> Claim {
    Claim { path: dice.pick(&paths()), mode: dice.pick(&[Mode::Read, Mode::Write]) }
}

fn conflict(one: &Claim, other: &Claim) -> bool {
    let is_read = one.mode == Mode::Read && other.mode == Mode::Read;
    !is_read && (one.path.is_prefix_of(&other.path) || other.path.is_prefix_of(&one.path))
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
        let (holds, waits) = (BTreeMap::new(), BTreeMap::new());
        let client = Client { id, number, epoch, seq: 0, transition_ms, holds, waits, promised: 0, until_ms: None };
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
    fn request(&mut self, to: usize, at: usize, request: SessionRequest) {
        let client = &mut self.clients[at];
        client.seq += 1;
        let message = MessageSeq { epoch: client.epoch, seq: client.seq };
        let account = namespace().account;
        let request_id = match &request {
            SessionRequest::Acquire(acquire) => Some((acquire.request_id.clone(), acquire.claims.clone())),
            _ => None,
        };
        let command = SessionCommand { account, session: client.number, message, request };
        let is_promised = to < client.promised;
        let context = self.context();
        let leader = &mut self.leaders[to];
        let reply = leader.table.apply(&leader.log, &context, &LocksCommand::Session(command));
        let token = match reply.outcome {
            Ok(
                Response::Granted { fencing_token }
                | Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, .. },
            ) => Some(fencing_token),
            // What the leader does not know yet waits, too.
            Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) if !is_promised => {
                let waits =
                    request_id.as_ref().map(|(id, claims)| (id.clone(), (claims[0].clone(), Some(enqueued.wait))));
                self.clients[at].waits.extend(waits);
                None
            }
            Err(CommandError::Busy(_)) => {
                let waits = request_id.as_ref().map(|(id, claims)| (id.clone(), (claims[0].clone(), None)));
                self.clients[at].waits.extend(waits);
                None
            }
            _ => None,
        };
        if let Some(((id, claims), token)) = request_id.zip(token) {
            self.take(to, at, &id, &claims, token);
        }
        self.take_effects(to);
    }

    /// Its gateway takes nothing of earlier leaders any more, and reports what it has.
    fn report(&mut self, to: usize, at: usize) {
        let client = &mut self.clients[at];
        if to < client.promised {
            return;
        }
        client.promised = to;
        let granted = client.holds.iter().map(|(id, (Claim { path, mode }, token))| ReportedRequest {
            request_id: id.clone(),
            holder: None,
            metadata: Metadata::new(),
            claimed: 1,
            claims: vec![ReportedHold { path: path.clone(), mode: *mode, fencing_token: *token }],
        });
        let pending = client.waits.iter().map(|(id, (claim, ticket))| ReportedWait {
            request_id: id.clone(),
            holder: None,
            metadata: Metadata::new(),
            claims: vec![claim.clone()],
            ticket: *ticket,
        });
        let report = TableReport {
            namespace: namespace(),
            session: client.number,
            connection_epoch: client.epoch,
            seq: client.seq,
            table_epoch: self.leaders[to].table.epoch(),
            part: 1,
            parts: 1,
            granted: granted.collect(),
            pending: pending.collect(),
        };
        self.reports.push((to, report.clone()));
        self.send_report(to, report);
    }

    /// A report arrives, perhaps again.
    fn send_report(&mut self, to: usize, report: TableReport) {
        let context = self.context();
        let Leader { log, table } = &mut self.leaders[to];
        let _ = table.apply(log, &context, &LocksCommand::Table(TableCommand::Report(report))).outcome;
        self.take_effects(to);
    }

    fn take_effects(&mut self, from: usize) {
        self.leaders[from].table.verify();
        for effect in self.leaders[from].table.take_effects() {
            if let Effect::Revoked { session_id, path, fencing_token, .. } = &effect {
                let is_lost = |(claim, token): &(Claim, FencingToken)| (&claim.path, token) == (path, fencing_token);
                let loses = |client: &Client| client.holds.values().any(is_lost);
                let lost = self.clients.iter().find(|it| it.id == *session_id && it.until_ms.is_none() && loses(it));
                assert!(lost.is_none_or(|client| from < client.promised), "it loses what it holds: {lost:?}");
            }
            let Effect::WaitResolved { owner, request_id, claims, outcome, .. } = effect else { continue };
            let (Owner::Session { session_id, .. }, Some(id)) = (owner, request_id) else { panic!("a session waits") };
            let at = self.clients.iter().position(|client| client.id == session_id).expect("it was opened");
            // What it asks to release it claims no more.
            let waits = self.clients[at].waits.contains_key(&id);
            if let AcquireOutcome::Granted { fencing_token } = outcome
                && waits
            {
                self.take(from, at, &id, &claims, fencing_token);
            }
        }
    }

    /// A client takes a grant while it counts its life, and checks all that is known of everybody.
    fn take(&mut self, from: usize, at: usize, id: &str, claims: &[Claim], token: FencingToken) {
        let client = &mut self.clients[at];
        if client.until_ms.is_some() || from < client.promised {
            return;
        }
        client.waits.remove(id);
        let [claim] = claims else { panic!("it asked for one lock: {claims:?}") };
        // Another request of it for the same lock extends the hold.
        if self.clients[at].holds.values().any(|known| *known == (claim.clone(), token)) {
            self.clients[at].holds.insert(id.to_owned(), (claim.clone(), token));
            return;
        }
        self.later_grants += u64::from(from > 0);
        for (other, client) in self.clients.iter().enumerate().filter(|(other, _)| *other != at) {
            let counts = client.until_ms.is_none_or(|until_ms| until_ms > self.now_ms);
            let mut held = client.holds.values().filter(|_| counts);
            let found = held.find(|(held, _)| conflict(held, claim));
            assert_eq!(found, None, "client {other} holds it, {at} is granted {claim:?}");
        }
        // A leader that it did not send its release to has the hold as before, beside those of later readers.
        let of_lock = self.last_tokens.entry(claim.path.clone()).or_default();
        let rises = of_lock.iter().all(|(other, (last, mode))| {
            *last < token
                || (*last == token && *other == at)
                || (*other != at && *mode == Mode::Read && claim.mode == Mode::Read)
        });
        assert!(rises, "tokens of {claim:?} rise: {of_lock:?}, then {token} for {at}");
        of_lock.insert(at, (token, claim.mode));
        self.clients[at].holds.insert(id.to_owned(), (claim.clone(), token));
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
        for client in &mut self.clients {
            let session = client.number;
            client.holds.retain(|_, (claim, fencing_token)| {
                let hold = ForfeitedHold { session, fencing_token: *fencing_token };
                claim.path != forfeit.path || !forfeit.holds.contains(&hold)
            });
        }
        let leader = self.leaders.last_mut().expect("there is one");
        leader.table.forfeit(&leader.log, &context, &forfeit);
        self.take_effects(self.leaders.len() - 1);
    }

    fn step(&mut self, dice: &mut SeededRng) {
        let live: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].until_ms.is_none()).collect();
        if live.is_empty() || (dice.one_in(10) && (live.len() as u64) < SESSIONS) {
            return self.open(dice);
        }
        let at = dice.pick(&live);
        let to = if dice.one_in(3) { dice.below(self.leaders.len() as u64) as usize } else { self.leaders.len() - 1 };
        match dice.below(42) {
            0..18 => {
                let asked = self.clients[at].waits.iter().next().map(|(id, (claim, _))| (id.clone(), claim.clone()));
                let again = asked.filter(|_| dice.one_in(4));
                let (id, claim) = again.unwrap_or_else(|| (format!("r{}", self.number()), any_claim(dice)));
                self.request(to, at, acquire(&id, claim));
            }
            18..28 => {
                let client = &mut self.clients[at];
                let requests: Vec<String> = client.holds.keys().chain(client.waits.keys()).cloned().collect();
                let Some(request_id) = requests.first().cloned() else { return };
                client.holds.remove(&request_id);
                client.waits.remove(&request_id);
                let (release, promised) = (SessionRequest::Release { request_id, is_known: true }, client.promised);
                self.request(to, at, release.clone());
                // What an earlier leader did is done again by the one that has the report.
                if to < promised {
                    self.request(promised, at, release);
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

pub(crate) fn acquire(request_id: &str, claim: Claim) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![claim],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: request_id.to_owned(),
    })
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let mut run = Run::new(dice.pick(&[1, 2, 512, 512]));
    (0..STEPS_IN_A_RUN).for_each(|_| run.step(dice));
    // A leader that waits ends its wait.
    run.depose();
    let live: Vec<usize> = (0..run.clients.len()).filter(|at| run.clients[*at].until_ms.is_none()).collect();
    live.into_iter().for_each(|at| run.end(at, true));
    run.pass(5_000);
    run.finish();
    run.open(dice);
    let (last, at, before) = (run.leaders.len() - 1, run.clients.len() - 1, run.later_grants);
    run.request(last, at, acquire("last", Claim { path: Path::flat("a"), mode: Mode::Write }));
    assert_eq!(run.later_grants, before + 1, "all of before have ended");
}

#[test]
fn no_two_sessions_hold_the_same_whoever_leads() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
