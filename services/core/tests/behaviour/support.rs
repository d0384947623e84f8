//! A locks shard with one open namespace, and short ways to say commands.

use std::collections::BTreeMap;

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, Bounds, Claim, Command, CommandError, EntryContext, FencingToken, HolderView,
    Incarnation, Limits, LockView, LocksCommand, Metadata, Mode, NamespaceMessage, NamespaceRef, Owner, Path, Query,
    Refused, Release, ReleaseTarget, Reply, RequestId, Response, Rules, Wait,
};

/// The wall clock is this much ahead of the shard clock.
pub(crate) const WALL_AHEAD_MS: u64 = 1_700_000_000_000;
pub(crate) const ACCOUNT: AccountId = AccountId(7);

pub(crate) fn at(now_ms: u64) -> EntryContext {
    EntryContext { now_ms, wall_ms: WALL_AHEAD_MS.saturating_add(now_ms), rules: Rules::ONE }
}

pub(crate) fn request_id(number: u64) -> RequestId {
    RequestId((u128::from(number)).to_be_bytes())
}

pub(crate) fn namespace(name: &str, incarnation: u64) -> NamespaceRef {
    NamespaceRef { account: ACCOUNT, name: name.to_owned(), incarnation: Incarnation(incarnation) }
}

pub(crate) fn orders() -> NamespaceRef {
    namespace("orders", 1)
}

pub(crate) fn process(id: &str) -> Owner {
    Owner::Process(id.to_owned())
}

pub(crate) fn open(number: u64, namespace: NamespaceRef, limits: Limits) -> Command {
    let message = NamespaceMessage::open(namespace, limits);
    Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number, message })
}

pub(crate) fn purge(number: u64, namespace: NamespaceRef) -> Command {
    let message = NamespaceMessage::Purge { namespace };
    Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number, message })
}

/// A request for the lock `l` in `orders` for a second; fields are changed where a test says otherwise.
pub(crate) fn lock_request(owner: &str, mode: Mode) -> Acquire {
    Acquire {
        namespace: orders(),
        owner: process(owner),
        claims: vec![Claim { path: Path::flat("l"), mode }],
        ttl_ms: Some(1_000),
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

pub(crate) fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
}

/// The answer to an acquire of one path.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) outcome: Result<FencingToken, Refused>,
    pub(crate) lock: LockView,
}

/// A locks shard whose clock stands where the test puts it.
pub(crate) struct Shard {
    pub(crate) core: ShardState,
    /// When they are not those of the rules.
    bounds: Option<Bounds>,
    now_ms: u64,
    /// By which rules its entries are applied.
    pub(crate) rules: Rules,
}

impl Shard {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// Another one, from a snapshot of this one.
    pub(crate) fn restored(&self) -> Self {
        let (chunks, id) = (self.core.snapshot(), "locks_00");
        let core = match &self.bounds {
            None => ShardState::restore(Application::Locks, id, &chunks),
            Some(bounds) => ShardState::restore_with_bounds(Application::Locks, id, &chunks, bounds.clone()),
        };
        Self { core: core.unwrap(), bounds: self.bounds.clone(), now_ms: self.now_ms, rules: self.rules }
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::from_core(ShardState::new(Application::Locks, "locks_00"), None, limits)
    }

    /// Within bounds that need not be those of the rules.
    pub(crate) fn with_bounds(bounds: Bounds) -> Self {
        let core = ShardState::with_bounds(Application::Locks, "locks_00", bounds.clone());
        Self::from_core(core, Some(bounds), Limits::default())
    }

    fn from_core(core: ShardState, bounds: Option<Bounds>, limits: Limits) -> Self {
        let command = open(1, orders(), limits);
        let mut shard = Self { core, bounds, now_ms: 1_000, rules: command.min_rules() };
        assert_eq!(shard.apply(&command).outcome, Ok(Response::Done));
        shard
    }

    /// One entry of the log with one command.
    pub(crate) fn apply(&mut self, command: &Command) -> Reply {
        self.core.advance(&self.context());
        let reply = self.core.apply(&self.context(), command);
        assert_eq!(reply.clock_ms, self.core.clock_ms());
        reply
    }

    /// Another command of the present entry.
    pub(crate) fn apply_now(&mut self, command: &Command) -> Reply {
        self.core.apply(&self.context(), command)
    }

    /// Time passes, and the leader proposes what is due.
    pub(crate) fn advance_by(&mut self, ms: u64) {
        self.now_ms += ms;
        self.core.advance(&self.context());
    }

    fn context(&self) -> EntryContext {
        EntryContext { rules: self.rules, ..at(self.now_ms) }
    }

    pub(crate) fn try_acquire(&mut self, request: Acquire) -> Result<Response, CommandError> {
        self.apply(&Command::Locks(LocksCommand::Acquire(request))).outcome
    }

    pub(crate) fn acquire(&mut self, request: Acquire) -> Acquired {
        acquired(self.try_acquire(request))
    }

    /// The same in the present entry.
    pub(crate) fn acquire_now(&mut self, request: Acquire) -> Acquired {
        acquired(self.apply_now(&Command::Locks(LocksCommand::Acquire(request))).outcome)
    }

    pub(crate) fn granted(&mut self, request: Acquire) -> FencingToken {
        self.acquire(request).outcome.expect("should be granted")
    }

    pub(crate) fn refused(&mut self, request: Acquire) -> Refused {
        self.acquire(request).outcome.expect_err("should not be granted")
    }

    pub(crate) fn release_with(&mut self, owner: &str, fencing_token: Option<FencingToken>) -> (bool, LockView) {
        let what = ReleaseTarget::Paths { paths: vec![Path::flat("l")], fencing_token };
        let release = Release { namespace: orders(), owner: process(owner), what, message: None };
        match self.apply(&Command::Locks(LocksCommand::Release(release))).outcome {
            Ok(Response::Released { released, mut locks }) => (released, locks.remove(0)),
            other => panic!("not an answer to a release: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, owner: &str) -> (bool, LockView) {
        self.release_with(owner, None)
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let command = LocksCommand::Delete { namespace: orders(), path: Path::flat(name) };
        assert_eq!(self.apply(&Command::Locks(command)).outcome, Ok(Response::Done));
    }

    pub(crate) fn query(&self, query: &Query) -> Result<Response, CommandError> {
        self.core.query(self.now_ms, query).outcome
    }

    pub(crate) fn get(&self, name: &str) -> LockView {
        match self.query(&Query::Lock { namespace: orders(), path: Path::flat(name) }) {
            Ok(Response::Lock(lock)) => lock,
            other => panic!("not a lock: {other:?}"),
        }
    }

    pub(crate) fn is_current(&self, fencing_token: FencingToken) -> bool {
        match self.query(&Query::Check { namespace: orders(), path: Path::flat("l"), fencing_token }) {
            Ok(Response::Checked { current, .. }) => current,
            other => panic!("not a check: {other:?}"),
        }
    }

    pub(crate) fn list(&self, prefix: &[&str], after: Option<&[&str]>, limit: u32) -> (Vec<LockView>, bool) {
        let (prefix, after) = (path(prefix), after.map(path));
        match self.query(&Query::Locks { namespace: orders(), prefix, after, limit }) {
            Ok(Response::Locks { locks, next }) => (locks, next.is_some()),
            other => panic!("not a page of locks: {other:?}"),
        }
    }
}

fn acquired(outcome: Result<Response, CommandError>) -> Acquired {
    match outcome {
        Ok(Response::Acquired { outcome, mut locks }) => {
            let outcome = match outcome {
                AcquireOutcome::Granted { fencing_token } => Ok(fencing_token),
                AcquireOutcome::Refused(not_granted) => Err(*not_granted),
                AcquireOutcome::Enqueued(enqueued) => panic!("nobody waits here: {enqueued:?}"),
            };
            Acquired { outcome, lock: locks.remove(0) }
        }
        other => panic!("not an answer to an acquire: {other:?}"),
    }
}

pub(crate) fn path(segments: &[&str]) -> Path {
    Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
}

pub(crate) fn names(holders: &[HolderView]) -> Vec<&str> {
    holders.iter().map(|holder| holder.process_id.as_str()).collect()
}

/// What is left when everything ended, besides the namespace and its events.
pub(crate) fn assert_nothing_is_left(core: &ShardState) {
    core.verify();
    assert_eq!(core.footprint(), Default::default());
    assert_eq!(core.next_deadline_ms(), None);
}
