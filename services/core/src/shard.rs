//! One shard's state machine, whatever its application.
//!
//! For every entry of the log a replica calls [`ShardState::advance`] once and then [`ShardState::apply`] for each of the
//! entry's commands. Both are pure functions of the state, the context and the command.

use std::sync::Arc;

pub use crate::application::{Application, UnknownApplication};

use crate::accounts::AccountsState;
use crate::codec::DecodeError;
use crate::locks::{Charge, ExaminedEvents, Footprint, FrozenLocks, LocksState, Purged};
use crate::namespaces::NamespacesState;
use crate::outbox::Outbox;
use crate::shard_common::ShardCommon;
use crate::{
    AccountsCommand, Acquire, Audited, Bounds, Command, CommandError, Effect, EntryContext, JobState, LocksCommand,
    NamespacesCommand, Query, Reply, Response, Revision, SessionRecord, WaitId, WaitRecord,
};

/// The replicated state of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// Of the accounts application.
    Accounts(AccountsState),
    /// Of the namespaces application.
    Namespaces(NamespacesState),
    /// Of the locks application.
    Locks(Box<LocksState>),
}

/// The state of a shard at one entry.
#[derive(Debug)]
pub struct FrozenShard(FrozenInner);

#[derive(Debug)]
enum FrozenInner {
    Encoded(Vec<Vec<u8>>),
    Locks(Box<FrozenLocks>),
}

impl FrozenShard {
    /// As chunks of at most 1 MiB, byte for byte equal on every replica that applied the same entries.
    pub fn encode(self) -> Vec<Vec<u8>> {
        match self.0 {
            FrozenInner::Encoded(chunks) => chunks,
            FrozenInner::Locks(frozen) => frozen.encode(),
        }
    }
}

/// The answer to a query as far as it takes the state.
#[derive(Debug)]
pub struct PendingReply(Pending);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each is passed on once, and a box for each would cost more")]
enum Pending {
    Done(Reply),
    Events(u64, ExaminedEvents),
}

impl PendingReply {
    /// How many events have to be looked at: at most [`crate::MAX_EVENTS_EXAMINED`].
    pub fn events_examined(&self) -> usize {
        match &self.0 {
            Pending::Done(_) => 0,
            Pending::Events(_, events) => events.len(),
        }
    }

    /// The answer.
    pub fn finish(self) -> Reply {
        match self.0 {
            Pending::Done(reply) => reply,
            Pending::Events(clock_ms, events) => Reply { outcome: Ok(events.response()), clock_ms, awaits: None },
        }
    }
}

impl From<Reply> for PendingReply {
    fn from(reply: Reply) -> Self {
        Self(Pending::Done(reply))
    }
}

impl ShardState {
    /// The state before the first entry.
    pub fn new(application: Application, shard_id: &str) -> Self {
        Self::from_common(application, ShardCommon::new(shard_id))
    }

    /// The same with bounds that are no rules', and stay as they are. For tests.
    pub fn with_bounds(application: Application, shard_id: &str, bounds: Bounds) -> Self {
        Self::from_common(application, ShardCommon::with_bounds(shard_id, bounds))
    }

    fn from_common(application: Application, state: ShardCommon) -> Self {
        match application {
            Application::Accounts => Self::Accounts(AccountsState::new(state)),
            Application::Namespaces => Self::Namespaces(NamespacesState::new(state)),
            Application::Locks => Self::Locks(Box::new(LocksState::new(state))),
        }
    }

    /// What kind of shard it is.
    pub fn application(&self) -> Application {
        match self {
            Self::Accounts(_) => Application::Accounts,
            Self::Namespaces(_) => Application::Namespaces,
            Self::Locks(_) => Application::Locks,
        }
    }

    /// Moves the clock to the entry's stamp, if that is later, and ends everything that is due, in order of deadline.
    /// Called once for each entry, before its commands.
    pub fn advance(&mut self, context: &EntryContext) {
        self.common_mut().advance(context);
        if let Self::Locks(core) = self {
            core.begin_entry(context);
        }
    }

    /// Runs one command. Called after [`Self::advance`] with the same context. Never fails: a refusal is an answer.
    pub fn apply(&mut self, context: &EntryContext, command: &Command) -> Reply {
        self.apply_inner(context, command, true)
    }

    /// The same for whoever owes nobody a reply: the state comes out the same, and what is only to be looked at, locks and
    /// who is in the way, is left out of the reply.
    pub fn apply_without_views(&mut self, context: &EntryContext, command: &Command) -> Reply {
        self.apply_inner(context, command, false)
    }

    fn apply_inner(&mut self, context: &EntryContext, command: &Command, shows: bool) -> Reply {
        if let Self::Locks(core) = self {
            core.set_with_views(shows);
        }
        let handled = match (&mut *self, command) {
            (core, Command::Audited(audited)) => return core.apply_audited(context, audited, shows),
            (_, command) if context.rules < command.min_rules() => {
                Err(CommandError::Malformed(format!("this command is not known by rules {}", context.rules)))
            }
            (core, Command::OutboxConfirm { numbers }) => {
                core.common_mut().outbox.confirm(numbers);
                Ok((Response::Done, None))
            }
            #[cfg(feature = "extra-command")]
            (core, Command::Extra) => {
                core.common_mut().next_revision();
                Ok((Response::Done, None))
            }
            (Self::Accounts(core), Command::Accounts(command)) => core.apply(context, command),
            (Self::Namespaces(core), Command::Namespaces(command)) => core.apply(context, command),
            (Self::Locks(core), Command::Locks(command)) => core.apply(context, command),
            (core, _) => Err(wrong_application(core.application(), "command")),
        };
        let clock_ms = self.clock_ms();
        match handled {
            Ok((answer, awaits)) => Reply { outcome: Ok(answer), clock_ms, awaits },
            Err(refusal) => {
                let awaits = self.awaited_by_repeated_delete(command, &refusal);
                Reply { outcome: Err(refusal), clock_ms, awaits }
            }
        }
    }

    fn apply_audited(&mut self, context: &EntryContext, audited: &Audited, shows: bool) -> Reply {
        let before = self.common().revision;
        let reply = self.apply_inner(context, &audited.command, shows);
        if let Ok(answer) = &reply.outcome {
            let state = self.common_mut();
            let bounds = Arc::clone(&state.bounds);
            state.audit.record(&bounds, context, audited, answer, state.revision > before);
        }
        reply
    }

    /// Whoever repeats a deletion and is told that nothing is there may have deleted it before; that is not said before
    /// the purge is confirmed.
    fn awaited_by_repeated_delete(&mut self, command: &Command, refusal: &CommandError) -> Option<u64> {
        let account = match (command, refusal) {
            (Command::Accounts(AccountsCommand::Delete { id }), CommandError::AccountNotFound(_)) => *id,
            (Command::Namespaces(NamespacesCommand::Delete { account, .. }), CommandError::NamespaceNotFound) => {
                *account
            }
            _ => return None,
        };
        self.common_mut().outbox.await_all_of(account)
    }

    /// What the commands since the last call did to others than those who asked, in order. A leader tells them; whoever
    /// tells nobody drops them with [`Self::drop_effects`].
    pub fn take_effects(&mut self) -> Vec<Effect> {
        match self {
            Self::Locks(core) => core.take_effects(usize::MAX),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// The first of them, for whoever lets others in between.
    pub fn take_effects_up_to(&mut self, at_most: usize) -> Vec<Effect> {
        match self {
            Self::Locks(core) => core.take_effects(at_most),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// Whether there is something left to be told.
    pub fn has_effects(&self) -> bool {
        self.locks().is_some_and(LocksState::has_effects)
    }

    /// Takes what is left of namespaces that are gone out of indexes, at most so many entries of them. Whether there is
    /// more. It changes nothing that anybody sees, and is done before the next entry otherwise.
    pub fn purge_indexes(&mut self, at_most: usize) -> bool {
        match self {
            Self::Locks(core) => core.purge_indexes(at_most),
            Self::Accounts(_) | Self::Namespaces(_) => false,
        }
    }

    /// The same for whoever has nobody to tell: nothing is written out.
    pub fn drop_effects(&mut self) {
        if let Self::Locks(core) = self {
            core.drop_effects();
        }
    }

    /// What the commands of this entry purged: memory to be freed, best by a thread that may take its time.
    pub fn take_purged(&mut self) -> Purged {
        match self {
            Self::Locks(core) => core.take_purged(),
            Self::Accounts(_) | Self::Namespaces(_) => Purged::default(),
        }
    }

    /// All sessions of a locks shard, in order of opening: what a new leader begins to keep alive.
    pub fn sessions(&self) -> impl Iterator<Item = SessionRecord> {
        self.locks().into_iter().flat_map(LocksState::sessions)
    }

    /// All waiting requests of a locks shard: what a new leader expects gateways to attach to again.
    pub fn waits(&self) -> impl Iterator<Item = WaitRecord> {
        self.locks().into_iter().flat_map(LocksState::waits)
    }

    /// Where the request of an acquire waits, if it does, and the attempts that count there and may go away, rising.
    pub fn queued_wait(&self, acquire: &Acquire) -> Option<(WaitId, Vec<u64>)> {
        self.locks().and_then(|core| core.queued_wait(acquire))
    }

    /// How much a locks shard keeps, for tests and status pages.
    pub fn footprint(&self) -> Footprint {
        self.locks().map(LocksState::footprint).unwrap_or_default()
    }

    /// How many waiting requests were looked at to see whether they can be granted, since the start of the process.
    pub fn requests_examined(&self) -> u64 {
        self.locks().map_or(0, LocksState::requests_examined)
    }

    /// How many locks were shown in replies to commands, since the start of the process.
    pub fn views_built(&self) -> u64 {
        self.locks().map_or(0, LocksState::views_built)
    }

    /// What a locks shard spent since the start of the process, counted in visits of paths, holds, owners, claims and
    /// entries of lines: whatever the machine.
    pub fn units(&self) -> u64 {
        self.locks().map_or(0, LocksState::units)
    }

    /// The same state with things numbered otherwise in memory, which nothing that it does may depend on. For tests.
    pub fn renumbered(&self, seed: u64) -> Self {
        match self {
            Self::Locks(core) => Self::Locks(Box::new(core.renumbered(seed))),
            Self::Accounts(_) | Self::Namespaces(_) => self.clone(),
        }
    }

    /// Panics when something that is counted or indexed does not agree with what it is of. For tests: it looks at
    /// everything.
    pub fn verify(&self) {
        if let Some(core) = self.locks() {
            core.verify();
        }
    }

    fn locks(&self) -> Option<&LocksState> {
        match self {
            Self::Locks(core) => Some(core),
            Self::Accounts(_) | Self::Namespaces(_) => None,
        }
    }

    /// Answers from the last applied entry. `running_clock_ms` is the leader's clock now: it tells how long a hold has
    /// left, never which holds there are.
    pub fn query(&self, running_clock_ms: u64, query: &Query) -> Reply {
        self.begin_query(running_clock_ms, query).finish()
    }

    /// Takes from the state what the answer to a query needs. The rest of the work can be done while the state goes on.
    pub fn begin_query(&self, running_clock_ms: u64, query: &Query) -> PendingReply {
        let clock_ms = running_clock_ms.max(self.clock_ms());
        let outcome = match (self, query) {
            (_, Query::Audit { account, before, limit }) => {
                Some(Ok(self.common().audit.page(*account, *before, *limit)))
            }
            (Self::Accounts(core), _) => core.query(query),
            (Self::Namespaces(core), _) => core.query(query),
            (Self::Locks(core), _) => match core.events(query) {
                Some(Ok(events)) => return PendingReply(Pending::Events(clock_ms, events)),
                Some(Err(refusal)) => Some(Err(refusal)),
                None => core.query(query),
            },
        };
        let outcome = outcome.unwrap_or_else(|| Err(wrong_application(self.application(), "query")));
        Reply { outcome, clock_ms, awaits: None }.into()
    }

    /// Whether something long was begun and is not finished, or is due and has not ended: each entry does one slice more
    /// of it. While it is so, the leader proposes entries, without commands if there are none, one after the other.
    pub fn has_jobs(&self) -> bool {
        self.locks().is_some_and(LocksState::has_jobs)
    }

    /// What accounts are charged with in a locks shard, as far as that has changed since this was asked last.
    pub fn take_changed_charges(&mut self) -> Vec<Charge> {
        match self {
            Self::Locks(core) => core.take_changed_charges(),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// Whether a command would make something that is not there: a repeat or an extension does not.
    pub fn creates_state(&self, command: &LocksCommand) -> bool {
        self.locks().is_some_and(|core| core.creates_state(command))
    }

    /// How far it is with what a command began, which its reply awaits.
    pub fn job_state(&self, began: Revision) -> JobState {
        self.locks().map_or(JobState::Unknown, |core| core.job_state(began))
    }

    /// How many of these are done since the start of the process.
    pub fn jobs_done(&self) -> u64 {
        self.locks().map_or(0, LocksState::jobs_done)
    }

    /// The shard clock at which something is due next; that of the last entry while there are jobs.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Locks(core) => core.next_deadline_ms(),
            Self::Accounts(_) | Self::Namespaces(_) => None,
        }
    }

    /// The shard clock of the last applied entry, in milliseconds.
    pub fn clock_ms(&self) -> u64 {
        self.common().clock_ms
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.common().revision
    }

    /// What other shards have to be told.
    pub fn outbox(&self) -> &Outbox {
        &self.common().outbox
    }

    /// The state as it is now, to be encoded while the shard goes on. For locks that takes some milliseconds for a million
    /// holds; the other applications, which have little, are encoded at once.
    pub fn freeze(&self) -> FrozenShard {
        FrozenShard(match self {
            Self::Accounts(core) => FrozenInner::Encoded(core.snapshot()),
            Self::Namespaces(core) => FrozenInner::Encoded(core.snapshot()),
            Self::Locks(core) => FrozenInner::Locks(Box::new(core.freeze())),
        })
    }

    /// The state as [`FrozenShard::encode`] gives it.
    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        self.freeze().encode()
    }

    /// The state that [`Self::snapshot`] or [`FrozenShard::encode`] is of.
    ///
    /// # Errors
    /// When the chunks are damaged, incomplete, out of order, of another shard, or within bounds that are no rules'.
    pub fn restore(application: Application, shard_id: &str, chunks: &[impl AsRef<[u8]>]) -> Result<Self, DecodeError> {
        Self::restore_into(application, ShardCommon::new(shard_id), chunks)
    }

    /// The same with bounds that are no rules'. For tests.
    ///
    /// # Errors
    /// As [`Self::restore`], and when the snapshot was taken within other bounds.
    pub fn restore_with_bounds(
        application: Application,
        shard_id: &str,
        chunks: &[impl AsRef<[u8]>],
        bounds: Bounds,
    ) -> Result<Self, DecodeError> {
        Self::restore_into(application, ShardCommon::with_bounds(shard_id, bounds), chunks)
    }

    fn restore_into(
        application: Application,
        state: ShardCommon,
        chunks: &[impl AsRef<[u8]>],
    ) -> Result<Self, DecodeError> {
        Ok(match application {
            Application::Accounts => Self::Accounts(AccountsState::restore(state, chunks)?),
            Application::Namespaces => Self::Namespaces(NamespacesState::restore(state, chunks)?),
            Application::Locks => Self::Locks(Box::new(LocksState::restore(state, chunks)?)),
        })
    }

    fn common(&self) -> &ShardCommon {
        match self {
            Self::Accounts(core) => &core.common,
            Self::Namespaces(core) => &core.common,
            Self::Locks(core) => &core.common,
        }
    }

    pub(crate) fn common_mut(&mut self) -> &mut ShardCommon {
        match self {
            Self::Accounts(core) => &mut core.common,
            Self::Namespaces(core) => &mut core.common,
            Self::Locks(core) => &mut core.common,
        }
    }
}

fn wrong_application(application: Application, kind: &str) -> CommandError {
    CommandError::Malformed(format!("this {kind} is not one of the application {}", application.name()))
}
