//! The state machine of one shard, for any application.
//!
//! For every log entry, a replica calls [`ShardState::advance`] once and then [`ShardState::apply`] for each command of
//! the entry. Both are pure functions of the state, the context and the command.

use std::sync::Arc;

mod pending_reply;
mod waits;

pub use pending_reply::PendingReply;

use crate::accounts::AccountsState;
use crate::codec::DecodeError;
use crate::locks::{Charge, Footprint, FrozenLocks, LocksState, Purged};
use crate::namespaces::NamespacesState;
use crate::outbox::Outbox;
use crate::shard_common::ShardCommon;
use crate::{
    AccountId, AccountsCommand, Application, Audited, Bounds, Command, CommandError, Effect, EntryContext, Incarnation,
    JobState, Limits, LocksCommand, NamespaceRef, NamespacesCommand, Query, Reply, Response, Revision,
    SessionKeepAlive, SessionNumber, SessionRecord,
};

/// The replicated state of one shard.
#[expect(clippy::large_enum_variant, reason = "a node has few of them")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardState {
    /// A shard of the accounts application.
    Accounts(AccountsState),
    /// A shard of the namespaces application.
    Namespaces(NamespacesState),
    /// A shard of the locks application.
    Locks(Box<LocksState>),
}

/// The state of a shard at one entry; a cheap handle.
#[derive(Clone, Debug)]
pub struct FrozenShard(FrozenInner);

#[derive(Clone, Debug)]
enum FrozenInner {
    Encoded(Arc<Vec<Vec<u8>>>),
    Locks(Arc<FrozenLocks>),
}

impl FrozenShard {
    /// Returns the encoded state as chunks of at most 1 MiB, byte for byte equal on every replica that applied the same
    /// entries. Each is encoded when it is taken.
    pub fn chunks(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send> {
        match &self.0 {
            FrozenInner::Encoded(chunks) => {
                let (chunks, mut number) = (Arc::clone(chunks), 0);
                Box::new(std::iter::from_fn(move || {
                    number += 1;
                    chunks.get(number - 1).cloned()
                }))
            }
            FrozenInner::Locks(frozen) => Box::new(Arc::clone(frozen).chunks()),
        }
    }

    /// Returns all chunks.
    pub fn encode(&self) -> Vec<Vec<u8>> {
        self.chunks().collect()
    }
}

impl ShardState {
    /// Returns the state before the first entry.
    pub fn new(application: Application, shard_id: &str) -> Self {
        Self::from_common(application, ShardCommon::new(shard_id))
    }

    /// Returns the state before the first entry with custom bounds, which rules do not change. For tests.
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

    /// Returns the application of the shard.
    pub fn application(&self) -> Application {
        match self {
            Self::Accounts(_) => Application::Accounts,
            Self::Namespaces(_) => Application::Namespaces,
            Self::Locks(_) => Application::Locks,
        }
    }

    /// Advances the clock to the entry's time, if that is later, and ends everything that is due, in order of deadline.
    /// Called once per entry, before its commands.
    pub fn advance(&mut self, context: &EntryContext) {
        self.common_mut().advance(context);
        if let Self::Locks(core) = self {
            core.begin_entry(context);
        }
    }

    /// Sets a namespace aside, for an operator: from now on it stands still, and refuses everything but its deletion.
    /// Called before the entry from which on it must take no part is advanced. Only a locks shard has any.
    pub fn quarantine(&mut self, namespace: &NamespaceRef) {
        if let Self::Locks(core) = self {
            core.quarantine(namespace);
        }
    }

    /// Returns the namespace that was being changed when a panic left the state half changed, if that is known.
    pub fn namespace_in_work(&self) -> Option<NamespaceRef> {
        self.locks().and_then(LocksState::namespace_in_work)
    }

    /// Applies one command. Called after [`Self::advance`] with the same context. Never fails: an error is a reply.
    pub fn apply(&mut self, context: &EntryContext, command: &Command) -> Reply {
        self.apply_inner(context, command, true)
    }

    /// Applies one command for a replica that has no caller to reply to. The resulting state is the same, but the reply
    /// lacks views of locks and blockers.
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
            (core, Command::AdvanceNumbers) => {
                core.advance_numbers(context.now_ms);
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

    /// A caller that repeats a deletion and receives "not found" may have deleted it before. That reply waits until the
    /// purge is confirmed.
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

    /// Takes the effects that commands since the last call had on owners other than their callers, in order. A leader
    /// publishes them; other replicas drop them with [`Self::drop_effects`].
    pub fn take_effects(&mut self) -> Vec<Effect> {
        match self {
            Self::Locks(core) => core.take_effects(usize::MAX),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// Takes at most `at_most` effects, so that the caller can let other work run in between.
    pub fn take_effects_up_to(&mut self, at_most: usize) -> Vec<Effect> {
        match self {
            Self::Locks(core) => core.take_effects(at_most),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// Returns whether there are effects to publish.
    pub fn has_effects(&self) -> bool {
        self.locks().is_some_and(LocksState::has_effects)
    }

    /// Removes entries of purged namespaces from indexes, at most `at_most`. Returns whether entries remain. It has no
    /// visible effect; the next entry removes what remains.
    pub fn purge_indexes(&mut self, at_most: usize) -> bool {
        match self {
            Self::Locks(core) => core.purge_indexes(at_most),
            Self::Accounts(_) | Self::Namespaces(_) => false,
        }
    }

    /// Drops the effects without building them, for a replica that publishes none.
    pub fn drop_effects(&mut self) {
        if let Self::Locks(core) = self {
            core.drop_effects();
        }
    }

    /// Takes the memory that the commands of this entry purged, to be freed, preferably on a background thread.
    pub fn take_purged(&mut self) -> Purged {
        match self {
            Self::Locks(core) => core.take_purged(),
            Self::Accounts(_) | Self::Namespaces(_) => Purged::default(),
        }
    }

    /// Returns all sessions of a locks shard in order of opening, for a new leader that starts to track their
    /// keep-alives.
    pub fn sessions(&self) -> impl Iterator<Item = SessionRecord> {
        self.locks().into_iter().flat_map(LocksState::sessions)
    }

    /// Returns the number and the time to live, in milliseconds, of the session that a keep-alive is for.
    ///
    /// # Errors
    /// As `Query::KeepAlive`.
    pub fn check_keep_alive(&self, keep_alive: &SessionKeepAlive) -> Result<(SessionNumber, u64), CommandError> {
        match self.locks() {
            Some(core) => core.check_keep_alive(keep_alive),
            None => Err(wrong_application(self.application(), "query")),
        }
    }

    /// Returns true if a session of a locks shard is from before the epoch of its lock table: its keep-alives do not
    /// count until the leader has its report.
    pub fn needs_report(&self, session: SessionNumber) -> bool {
        self.locks().is_some_and(|core| core.needs_report(session))
    }

    /// Returns the epoch of the lock tables in the leader's memory that was begun last; 0 before the first.
    pub fn table_epoch(&self) -> Revision {
        self.locks().map_or(0, |core| core.table_epoch().epoch)
    }

    /// Returns whether the lock table of a namespace of a locks shard is in the leader's memory.
    pub fn has_soft_table(&self, account: AccountId, incarnation: Incarnation) -> bool {
        self.locks().is_some_and(|core| core.has_soft_table(account, incarnation))
    }

    /// Returns whether a locks shard has namespaces whose lock tables are in the leader's memory.
    pub fn has_soft_tables(&self) -> bool {
        self.locks().is_some_and(LocksState::has_soft_tables)
    }

    /// Returns the size of a locks shard, for tests and status pages.
    pub fn footprint(&self) -> Footprint {
        self.locks().map(LocksState::footprint).unwrap_or_default()
    }

    /// Returns the number of evaluations of waiting requests since the process started.
    pub fn requests_examined(&self) -> u64 {
        self.locks().map_or(0, LocksState::requests_examined)
    }

    /// Returns the number of lock views in replies to commands since the process started.
    pub fn views_built(&self) -> u64 {
        self.locks().map_or(0, LocksState::views_built)
    }

    /// Returns the units that a locks shard spent since the process started: visits of paths, holds, owners, claims and
    /// queue entries. The count does not depend on the machine.
    pub fn units(&self) -> u64 {
        self.locks().map_or(0, LocksState::units)
    }

    /// Returns the same state with different numbers in memory, on which the behavior must not depend. For tests.
    pub fn renumbered(&self, seed: u64) -> Self {
        match self {
            Self::Locks(core) => Self::Locks(Box::new(core.renumbered(seed))),
            Self::Accounts(_) | Self::Namespaces(_) => self.clone(),
        }
    }

    /// Panics if a counter or an index is inconsistent. For tests: it visits everything.
    pub fn verify(&self) {
        if let Some(core) = self.locks() {
            core.verify();
            core.verify_clock();
        }
    }

    pub(crate) fn locks(&self) -> Option<&LocksState> {
        match self {
            Self::Locks(core) => Some(core),
            Self::Accounts(_) | Self::Namespaces(_) => None,
        }
    }

    /// Replies to a query from the last applied entry. `running_clock_ms` is the leader's current clock: it determines
    /// the remaining time of holds, never which holds exist.
    pub fn query(&self, running_clock_ms: u64, query: &Query) -> Reply {
        self.begin_query(running_clock_ms, query).finish()
    }

    /// Reads from the state what the reply to a query needs. The rest of the work can proceed while the state changes.
    pub fn begin_query(&self, running_clock_ms: u64, query: &Query) -> PendingReply {
        let clock_ms = running_clock_ms.max(self.clock_ms());
        let outcome = match (self, query) {
            (_, Query::Audit { account, before, limit }) => {
                return PendingReply::of_audit(clock_ms, self.common().audit.page(*account, *before, *limit));
            }
            (Self::Accounts(core), _) => core.query(query),
            (Self::Namespaces(core), _) => core.query(query),
            (Self::Locks(core), _) => match core.begin_query(query) {
                Some(Ok(begun)) => return PendingReply::of_locks(clock_ms, begun),
                Some(Err(refusal)) => Some(Err(refusal)),
                None => core.query(query),
            },
        };
        let outcome = outcome.unwrap_or_else(|| Err(wrong_application(self.application(), "query")));
        Reply { outcome, clock_ms, awaits: None }.into()
    }

    /// Returns whether work is unfinished, or a deadline is due and not yet handled. Each entry does one more slice of
    /// it. Meanwhile, the leader proposes entries one after the other, without commands if there are none.
    pub fn has_backlog(&self) -> bool {
        self.locks().is_some_and(LocksState::has_backlog)
    }

    /// Returns the charges of accounts in a locks shard that changed since the last call.
    pub fn take_changed_charges(&mut self) -> Vec<Charge> {
        match self {
            Self::Locks(core) => core.take_changed_charges(),
            Self::Accounts(_) | Self::Namespaces(_) => Vec::new(),
        }
    }

    /// Returns whether a command would create state. Repeats and extensions do not.
    pub fn creates_state(&self, command: &LocksCommand) -> bool {
        self.locks().is_some_and(|core| core.creates_state(command))
    }

    /// Returns the progress of the work that a command began and its reply awaits.
    pub fn job_state(&self, began: Revision) -> JobState {
        self.locks().map_or(JobState::Unknown, |core| core.job_state(began))
    }

    /// Returns the number of finished sweeps since the process started.
    pub fn sweeps_done(&self) -> u64 {
        self.locks().map_or(0, LocksState::sweeps_done)
    }

    /// Returns the shard clock of the next deadline; that of the last entry while there is unfinished work.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Locks(core) => core.next_deadline_ms(),
            Self::Accounts(_) | Self::Namespaces(_) => None,
        }
    }

    /// Returns the shard clock of the last applied entry, in milliseconds.
    pub fn clock_ms(&self) -> u64 {
        self.common().clock_ms
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> Revision {
        self.common().revision
    }

    /// Returns the limits of an account in a shard of accounts or namespaces.
    pub fn limits_of(&self, account: AccountId) -> Option<&Limits> {
        match self {
            Self::Accounts(core) => core.limits_of(account),
            Self::Namespaces(core) => core.limits_of(account),
            Self::Locks(_) => None,
        }
    }

    /// Returns the messages to other shards.
    pub fn outbox(&self) -> &Outbox {
        &self.common().outbox
    }

    /// Freezes the current state, so that it can be encoded while the shard proceeds. For locks this takes some
    /// milliseconds for a million holds. The other applications are small and are encoded immediately.
    pub fn freeze(&self) -> FrozenShard {
        FrozenShard(match self {
            Self::Accounts(core) => FrozenInner::Encoded(Arc::new(core.snapshot())),
            Self::Namespaces(core) => FrozenInner::Encoded(Arc::new(core.snapshot())),
            Self::Locks(core) => FrozenInner::Locks(Arc::new(core.freeze())),
        })
    }

    /// Returns the chunks of [`FrozenShard::encode`].
    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        self.freeze().encode()
    }

    /// Restores the state from the chunks of [`Self::snapshot`] or [`FrozenShard::chunks`], taking one after the other.
    ///
    /// # Errors
    /// When the chunks are damaged, incomplete, out of order, of another shard, or have bounds that belong to no rules.
    pub fn restore(
        application: Application,
        shard_id: &str,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    ) -> Result<Self, DecodeError> {
        Self::restore_into(application, ShardCommon::new(shard_id), chunks)
    }

    /// Restores the state with custom bounds. For tests.
    ///
    /// # Errors
    /// As [`Self::restore`], and when the snapshot was taken with other bounds.
    pub fn restore_with_bounds(
        application: Application,
        shard_id: &str,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
        bounds: Bounds,
    ) -> Result<Self, DecodeError> {
        Self::restore_into(application, ShardCommon::with_bounds(shard_id, bounds), chunks)
    }

    fn restore_into(
        application: Application,
        state: ShardCommon,
        chunks: impl IntoIterator<Item: AsRef<[u8]>>,
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
