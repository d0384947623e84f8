//! A locks shard with one namespace, and short ways to say commands.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, Bounds, Claim, Command, EntryContext, Incarnation, Limits, LocksCommand,
    Metadata, Mode, NamespaceMessage, NamespaceRef, OpenSession, Owner, Path, Release, ReleaseTarget, Reply, RequestId,
    Response, Rules, Wait,
};

pub(crate) struct Shard {
    pub(crate) core: ShardState,
    now_ms: u64,
}

pub(crate) fn namespace() -> NamespaceRef {
    NamespaceRef {
        account: AccountId(0x9fff_3bf7_d1f9_561d),
        name: "orders".into(),
        incarnation: Incarnation(0x1c80_33ab_5e0f_9d42),
    }
}

fn path(segments: &[&str]) -> Path {
    Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
}

pub(crate) const LONG_WAIT: Wait = Wait::For(600_000);

/// A path of segments between slashes; the empty text is the root.
pub(crate) fn at(text: &str) -> Path {
    Path(text.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect())
}

/// Those of the rules, with as many owners as wait and are waited for as there may be otherwise.
pub(crate) fn bounds() -> Bounds {
    let max = u64::MAX;
    Bounds {
        tangled_owners: max,
        tangled_claims: max,
        tangled_holds: max,
        tangle_visits: max,
        ..Bounds::of(Rules::HIGHEST)
    }
}

impl Shard {
    pub(crate) fn new() -> Self {
        Self::with_bounds(bounds())
    }

    pub(crate) fn with_bounds(bounds: Bounds) -> Self {
        Self::begin(bounds, Limits::default().max_event_bytes)
    }

    pub(crate) fn with_event_bytes(max_event_bytes: u64) -> Self {
        Self::begin(bounds(), max_event_bytes)
    }

    fn begin(bounds: Bounds, max_event_bytes: u64) -> Self {
        let mut shard = Self { core: ShardState::with_bounds(Application::Locks, "locks_00", bounds), now_ms: 1_000 };
        let limits = Limits {
            max_waiting_per_namespace: 1_000_000,
            max_waiting_per_lock: 1_000_000,
            max_readers_per_lock: 1_000_000,
            max_holds_per_namespace: 10_000_000,
            max_sessions_per_namespace: 1_000_000,
            max_state_bytes: 1 << 40,
            max_event_bytes,
            max_owners_per_session: 1_000_000,
            max_requests_per_session: 1_000_000,
            ..Limits::default()
        };
        let message = NamespaceMessage::open(namespace(), limits);
        shard.apply(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
        shard
    }

    /// What is restored from a snapshot of this one.
    pub(crate) fn restored(&self, chunks: &[Vec<u8>]) -> ShardState {
        ShardState::restore_with_bounds(Application::Locks, "locks_00", chunks, bounds()).expect("it was just taken")
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
        self.core.advance(&EntryContext { now_ms: self.now_ms, wall_ms: self.now_ms, rules: Rules::HIGHEST });
    }

    /// Goes on until nothing is left to go on with.
    pub(crate) fn finish(&mut self) {
        while self.core.has_backlog() {
            self.advance(0);
        }
    }

    pub(crate) fn apply(&mut self, command: LocksCommand) -> Response {
        self.reply(&Command::Locks(command)).outcome.expect("it is not refused")
    }

    pub(crate) fn reply(&mut self, command: &Command) -> Reply {
        let context = EntryContext { now_ms: self.now_ms, wall_ms: self.now_ms, rules: Rules::HIGHEST };
        self.core.advance(&context);
        self.core.apply(&context, command)
    }

    pub(crate) fn acquire_command(owner: &str, segments: &[&str]) -> LocksCommand {
        LocksCommand::Acquire(Self::request(Owner::Process(owner.to_owned()), segments, Mode::Write))
    }

    pub(crate) fn release_command(owner: &str, segments: &[&str]) -> LocksCommand {
        let what = ReleaseTarget::Paths { paths: vec![path(segments)], fencing_token: None };
        let owner = Owner::Process(owner.to_owned());
        LocksCommand::Release(Release { namespace: namespace(), owner, what, message: None })
    }

    pub(crate) fn request(owner: Owner, segments: &[&str], mode: Mode) -> Acquire {
        Acquire {
            namespace: namespace(),
            ttl_ms: matches!(owner, Owner::Process(_)).then_some(60_000),
            owner,
            claims: vec![Claim { path: path(segments), mode }],
            transition_ms: 0,
            metadata: Metadata::new(),
            fencing_token: None,
            requested_expires_at_ns: None,
            wait: Wait::No,
            allow_upgrade: false,
            request_id: None,
            attempt: 0,
            message: None,
        }
    }

    pub(crate) fn send_acquire(&mut self, request: Acquire) -> AcquireOutcome {
        match self.apply(LocksCommand::Acquire(request)) {
            Response::Acquired { outcome, .. } => outcome,
            other => panic!("not an answer to an acquire: {other:?}"),
        }
    }

    pub(crate) fn acquire_claims(&mut self, owner: &str, claims: Vec<Claim>, wait: Wait) -> AcquireOutcome {
        let owner = Owner::Process(owner.to_owned());
        self.send_acquire(Acquire { claims, wait, ..Self::request(owner, &[], Mode::Write) })
    }

    pub(crate) fn granted(&mut self, owner: &str, claims: Vec<Claim>) {
        assert!(self.acquire_claims(owner, claims, Wait::No).fencing_token().is_some());
    }

    pub(crate) fn acquire(&mut self, owner: &str, segments: &[&str], wait: Wait) -> AcquireOutcome {
        let owner = Owner::Process(owner.to_owned());
        self.send_acquire(Acquire { wait, ..Self::request(owner, segments, Mode::Write) })
    }

    pub(crate) fn read(&mut self, owner: &str, segments: &[&str], wait: Wait) -> AcquireOutcome {
        let owner = Owner::Process(owner.to_owned());
        self.send_acquire(Acquire { wait, ..Self::request(owner, segments, Mode::Read) })
    }

    pub(crate) fn hold(&mut self, owner: &str, segments: &[&str]) {
        let outcome = self.acquire(owner, segments, Wait::No);
        assert!(outcome.fencing_token().is_some());
    }

    pub(crate) fn release(&mut self, owner: &str, segments: &[&str]) {
        self.apply(Self::release_command(owner, segments));
    }

    pub(crate) fn open_session(&mut self, session_id: &str) {
        self.apply(LocksCommand::OpenSession(OpenSession {
            namespace: namespace(),
            session_id: session_id.to_owned(),
            resume: false,
            request_id: RequestId([0; 16]),
            process_id: "worker".into(),
            ttl_ms: 10_000,
            metadata: Metadata::new(),
        }));
    }

    pub(crate) fn lock(&mut self, session_id: &str, request_id: &str, name: &str) -> AcquireOutcome {
        let owner = Owner::Session { session_id: session_id.to_owned(), holder: None };
        let request = Self::request(owner, &[name], Mode::Write);
        self.send_acquire(Acquire { request_id: Some(request_id.to_owned()), wait: Wait::Unlimited, ..request })
    }

    /// Takes a path for one of the holders of a session.
    pub(crate) fn hold_for(&mut self, session_id: &str, holder: &str, name: &str) {
        let owner = Owner::Session { session_id: session_id.to_owned(), holder: Some(holder.to_owned()) };
        assert!(self.send_acquire(Self::request(owner, &[name], Mode::Write)).fencing_token().is_some());
    }

    pub(crate) fn expire(&mut self, ids: Vec<u64>) {
        let known_revision = self.core.revision();
        self.apply(LocksCommand::ExpireSessions { ids, known_revision });
    }
}
