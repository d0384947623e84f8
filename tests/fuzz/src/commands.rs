//! Bytes as what happens to a shard of locks: commands, clocks and restores, over few owners, paths and namespaces and
//! within tiny bounds, so that they meet.
//!
//! A replica that applies everything, one that is restored on the way, and one that is restored with other numbers
//! answer, tell and keep the same; all that is counted agrees; nothing panics.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, AskRelease, Bounds, Cancel, Claim, Command, EntryContext, Incarnation, Kind, Limits, LockInfo,
    LocksCommand, MessageSeq, Metadata, Mode, NamespaceMessage, NamespaceRef, OpenSession, Owner, Path, Release,
    ReleaseTarget, Reply, ReportedHold, RequestId, Reset, Response, Rules, SessionAcquire, SessionCommand,
    SessionNumber, SessionRequest, SessionTerms, Wait,
};

const SHARD: &str = "locks_00";
/// One input makes no more commands than this.
const MAX_COMMANDS: usize = 200;
/// The least byte that stands for a request of a connected session.
const FIRST_SESSION_COMMAND: u8 = 192;
/// The least byte that stands for a hold that is kept from others at least so long, or a request to release one.
const FIRST_KEPT_OR_ASKED: u8 = 180;

/// Reads the bytes as a sequence of commands and runs them. Whether anything was done. Panics when replicas differ.
pub(crate) fn run(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let mut shards = Shards::new(input.rules());
    let mut commands = 0;
    while !input.0.is_empty() && commands < MAX_COMMANDS {
        shards.now_ms += if input.one_in_n(2) { 0 } else { u64::from(input.byte() % 64) };
        let in_entry = 1 + usize::from(input.byte() % 3);
        let entry: Vec<Command> = (0..in_entry).map(|_| Command::Locks(input.command(&mut shards.sessions))).collect();
        commands += in_entry;
        shards.entry(&entry);
        if input.one_in_n(4) {
            shards.restore(u64::from(input.byte()));
        }
    }
    commands > 0
}

/// The three replicas.
struct Shards {
    whole: ShardState,
    restored: ShardState,
    renumbered: ShardState,
    rules: Rules,
    now_ms: u64,
    sessions: OpenedSessions,
}

/// What connections know of the sessions that they opened.
#[derive(Default)]
struct OpenedSessions {
    opened: Vec<OpenedSession>,
    /// How many numbered messages were sent.
    messages: u64,
}

/// One opening of a session.
#[derive(Clone, Copy)]
struct OpenedSession {
    account: AccountId,
    number: SessionNumber,
    epoch: u64,
}

impl OpenedSessions {
    fn record(&mut self, command: &Command, reply: &Reply) {
        let Command::Locks(LocksCommand::OpenSession(open)) = command else { return };
        if let Ok(Response::SessionOpened { session, .. }) = &reply.outcome {
            let (account, number, epoch) = (open.namespace.account, session.number, session.epoch);
            self.opened.push(OpenedSession { account, number, epoch });
        }
    }
}

impl Shards {
    fn new(rules: Rules) -> Self {
        let begin = || ShardState::with_bounds(Application::Locks, SHARD, bounds());
        let sessions = OpenedSessions::default();
        let mut shards = Self { whole: begin(), restored: begin(), renumbered: begin(), rules, now_ms: 1, sessions };
        shards
            .entry(&(0..NAMESPACES).map(|which| open_namespace(which, 1 + u64::from(which))).collect::<Vec<Command>>());
        shards
    }

    fn entry(&mut self, commands: &[Command]) {
        let context = EntryContext { now_ms: self.now_ms, wall_ms: self.now_ms, rules: self.rules };
        let run = |shard: &mut ShardState| {
            shard.advance(&context);
            let replies: Vec<_> = commands.iter().map(|command| shard.apply(&context, command)).collect();
            (replies, shard.take_effects())
        };
        let done = run(&mut self.whole);
        self.whole.verify();
        commands.iter().zip(&done.0).for_each(|(command, reply)| self.sessions.record(command, reply));
        for twin in [&mut self.restored, &mut self.renumbered] {
            assert_eq!(run(twin), done, "replicas differ in what they answer or tell");
            assert!(twin.snapshot() == self.whole.snapshot(), "replicas differ in what they keep");
            assert_eq!(twin.next_deadline_ms(), self.whole.next_deadline_ms());
        }
    }

    fn restore(&mut self, seed: u64) {
        let chunks = self.whole.snapshot();
        let restored = ShardState::restore_with_bounds(Application::Locks, SHARD, &chunks, bounds());
        self.restored = restored.expect("what was applied can be restored");
        assert_eq!(self.restored.footprint(), self.whole.footprint());
        self.renumbered = self.restored.renumbered(seed);
    }
}

/// So small that finding out who waits for whom, too, takes more than there is of it.
fn bounds() -> Bounds {
    Bounds { tangle_visits: 12, visits_per_slice: 12, ..Bounds::tiny() }
}

/// Two of one account, and one of another, so that slices go round.
const NAMESPACES: u8 = 3;

fn namespace(which: u8) -> NamespaceRef {
    let (account, name) = [(7, "orders"), (7, "carts"), (8, "orders")][usize::from(which % NAMESPACES)];
    let incarnation = Incarnation(1 + u64::from(which % NAMESPACES));
    NamespaceRef { account: AccountId(account), name: name.into(), incarnation }
}

fn open_namespace(which: u8, number: u64) -> Command {
    let limits = Limits { max_claims_per_request: 4, max_waiting_per_lock: 6, ..Limits::default() };
    let message = NamespaceMessage::open(namespace(which), limits);
    Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number, message })
}

/// What is left of the bytes. At their end there are zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn one_in_n(&mut self, times: u8) -> bool {
        self.byte() % times == 1
    }

    fn rules(&mut self) -> Rules {
        if self.one_in_n(2) { Rules::LOWEST } else { Rules::HIGHEST }
    }

    /// Mostly the first, so that they meet there.
    fn namespace(&mut self) -> NamespaceRef {
        let byte = self.byte();
        namespace(if byte % 4 == 3 { byte / 4 } else { 0 })
    }

    fn session(&mut self) -> String {
        format!("se_{}", self.byte() % 2)
    }

    /// Three owners: a process, and two threads of a session, or of another one.
    fn owner(&mut self) -> Owner {
        match self.byte() % 4 {
            0 => Owner::Process("p".to_owned()),
            1 => Owner::Process("q".to_owned()),
            2 => Owner::Session { session_id: "se_0".to_owned(), holder: None },
            _ => Owner::Session { session_id: "se_0".to_owned(), holder: Some("h".to_owned()) },
        }
    }

    fn path(&mut self) -> Path {
        let segments: &[&str] = match self.byte() % 4 {
            0 => &["a"],
            1 => &["a", "x"],
            2 => &["b"],
            _ => &[],
        };
        Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
    }

    fn claims(&mut self) -> Vec<Claim> {
        let count = 1 + self.byte() % 3;
        (0..count).map(|_| Claim { path: self.path(), mode: self.mode() }).collect()
    }

    fn mode(&mut self) -> Mode {
        if self.one_in_n(3) { Mode::Read } else { Mode::Write }
    }

    fn request_id(&mut self) -> Option<String> {
        let number = self.byte() % 4;
        (number > 1).then(|| format!("r{number}"))
    }

    fn message(&mut self, owner: &Owner) -> Option<MessageSeq> {
        let is_stamped = matches!(owner, Owner::Session { .. }) && self.one_in_n(4);
        is_stamped.then(|| MessageSeq { epoch: u64::from(self.byte()), seq: u64::from(self.byte()) })
    }

    fn wait(&mut self, is_session: bool) -> Wait {
        match self.byte() % 4 {
            0 => Wait::No,
            1 if is_session => Wait::Unlimited,
            _ => Wait::For(1 + u64::from(self.byte())),
        }
    }

    fn acquire(&mut self, namespace: NamespaceRef) -> Acquire {
        let owner = self.owner();
        let is_session = matches!(owner, Owner::Session { .. });
        let wait = self.wait(is_session);
        Acquire {
            namespace,
            message: self.message(&owner),
            ttl_ms: (!is_session).then(|| 1 + u64::from(self.byte())),
            owner,
            claims: self.claims(),
            transition_ms: if self.one_in_n(4) { 9 } else { 0 },
            metadata: Metadata::new(),
            fencing_token: self.one_in_n(8).then(|| u64::from(self.byte())),
            requested_expires_at_ns: None,
            allow_upgrade: self.one_in_n(3),
            request_id: self.request_id(),
            attempt: u64::from(self.byte() % 4),
            wait,
        }
    }

    fn release(&mut self, namespace: NamespaceRef) -> Release {
        let owner = self.owner();
        let what = match self.byte() % 6 {
            0 => ReleaseTarget::All,
            1 => ReleaseTarget::Request { request_id: self.request_id().unwrap_or_default() },
            _ => ReleaseTarget::Paths { paths: vec![self.path()], fencing_token: None },
        };
        Release { namespace, message: self.message(&owner), owner, what }
    }

    /// Mostly the latest one; else an earlier one, or one that nobody opened.
    fn opened_session(&mut self, sessions: &OpenedSessions) -> OpenedSession {
        let byte = self.byte();
        let is_latest = byte % 4 < 3;
        let found = if is_latest { sessions.opened.last() } else { sessions.opened.get(usize::from(byte / 4)) };
        let (number, epoch) = (u64::from(byte), u64::from(byte));
        found.copied().unwrap_or(OpenedSession { account: AccountId(7), number, epoch })
    }

    /// A request of a connected session. Most of its messages rise.
    fn session_command(&mut self, sessions: &mut OpenedSessions) -> SessionCommand {
        let OpenedSession { account, number, epoch } = self.opened_session(sessions);
        let seq = if self.one_in_n(8) {
            u64::from(self.byte())
        } else {
            sessions.messages += 1;
            sessions.messages
        };
        let request_id = format!("r{}", self.byte() % 4);
        let request = if self.one_in_n(3) {
            SessionRequest::Release { request_id, is_known: !self.one_in_n(4) }
        } else {
            let acquire = SessionAcquire {
                holder: self.one_in_n(2).then(|| "h".to_owned()),
                claims: self.claims(),
                transition_ms: if self.one_in_n(4) { 9 } else { 0 },
                wait: self.wait(true),
                allow_upgrade: self.one_in_n(3),
                request_id,
            };
            if self.one_in_n(2) {
                SessionRequest::Acquire(acquire)
            } else {
                let metadata =
                    if self.one_in_n(2) { Metadata::from([("k".into(), "v".into())]) } else { Metadata::new() };
                let terms = SessionTerms { at_least_ms: u64::from(self.byte() % 4), metadata };
                SessionRequest::AcquireWith { acquire, terms }
            }
        };
        SessionCommand { account, session: number, message: MessageSeq { epoch, seq }, request }
    }

    fn acquire_at_least(&mut self, namespace: NamespaceRef) -> LocksCommand {
        let at_least_ms = u64::from(self.byte());
        LocksCommand::acquire(self.acquire(namespace), Vec::new(), at_least_ms)
    }

    fn ask_release(&mut self, namespace: NamespaceRef) -> LocksCommand {
        let within_ms = self.one_in_n(2).then(|| u64::from(self.byte()));
        LocksCommand::AskRelease(AskRelease {
            namespace,
            kind: Kind::Lock,
            path: self.path(),
            member: None,
            request_id: RequestId([self.byte() % 4; 16]),
            by: "key".to_owned(),
            reason: String::new(),
            within_ms,
            force: self.one_in_n(2),
        })
    }

    fn command(&mut self, sessions: &mut OpenedSessions) -> LocksCommand {
        let (namespace, kind) = (self.namespace(), self.byte());
        if kind >= FIRST_SESSION_COMMAND {
            return LocksCommand::Session(self.session_command(sessions));
        }
        if kind >= FIRST_KEPT_OR_ASKED {
            return if self.one_in_n(2) { self.ask_release(namespace) } else { self.acquire_at_least(namespace) };
        }
        match kind % 24 {
            0..13 => LocksCommand::Acquire(self.acquire(namespace)),
            13..16 => LocksCommand::Release(self.release(namespace)),
            16 => LocksCommand::Delete { namespace, path: self.path() },
            17 => {
                let (owner, request_id, claims) = (self.owner(), self.request_id(), self.claims());
                let attempt = u64::from(self.byte() % 4);
                LocksCommand::Cancel(Cancel { namespace, owner, request_id, claims, attempt })
            }
            18 => {
                let live_owners = vec![self.session()];
                let before_revision = self.one_in_n(2).then(|| u64::from(self.byte()));
                LocksCommand::Reset(Reset { namespace, live_owners, before_revision })
            }
            19 | 20 => LocksCommand::OpenSession(OpenSession {
                namespace,
                session_id: self.session(),
                resume: self.one_in_n(3),
                request_id: RequestId([self.byte(); 16]),
                process_id: "host".to_owned(),
                ttl_ms: 1_000,
                metadata: Metadata::new(),
            }),
            21 => LocksCommand::CloseSession { namespace, session_id: self.session(), message: None },
            22 => {
                let ids = vec![u64::from(self.byte())];
                LocksCommand::ExpireSessions { ids, known_revision: u64::from(self.byte()) }
            }
            _ => {
                let held = ReportedHold { path: self.path(), mode: self.mode(), fencing_token: u64::from(self.byte()) };
                let pending = self.request_id().into_iter().collect();
                let session_id = self.session();
                let info = LockInfo { namespace, session_id, message: None, held: vec![held], pending };
                if self.byte().is_multiple_of(2) {
                    LocksCommand::LockInfo(info)
                } else {
                    LocksCommand::LockInfoPart(info)
                }
            }
        }
    }
}

/// Inputs to begin with: the same few bytes again and again, and all bytes in turn.
pub(crate) fn seed_inputs() -> Vec<Vec<u8>> {
    let turns = (1..=8_u8).map(|step| (0..=255_u8).map(|byte| byte.wrapping_mul(step.wrapping_mul(37))).collect());
    turns.collect()
}
