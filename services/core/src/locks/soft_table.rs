//! The lock tables of a shard that are in the memory of its leader: a second state of the same kind beside the one in
//! the log, with revisions from blocks that the log gave out.
//!
//! Invariants: it grants nothing until each session from before its epoch has been reported or has ended; its tokens
//! rise, and lie above the tokens of every earlier epoch; the holds and requests of a session never outlive the session
//! and its transition in the log.
//!
//! It is pure: every call gets the log state of the same moment, and knows of no leader, caller or wait.

mod ask;
mod ends;
mod enter;
mod entering;
mod events;
mod force;
mod garbage;
mod memory;
mod mirror;
mod queries;
mod rebuild;
mod reported;
mod reports;
mod request;
mod reset;
mod verify;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_mutations::{Mutation, is_enabled};

use super::namespace::Namespace;
use super::sessions::Session;
use super::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{
    BLOCK_REVISIONS, CommandError, Durability, Effect, EntryContext, Forfeit, JobState, LocksCommand, NamespaceRef,
    Reply, Reset, Response, Revision, RevisionBlock, SessionEnd, SessionNumber, TableCommand, TableEpoch,
};
use rebuild::Rebuild;
use request::table_command;

pub use garbage::TableGarbage;

/// The least number of revisions left in a block before a step begins: more than any step can use.
const RESERVE: u64 = BLOCK_REVISIONS / 4;
/// Maximum number of effects of a deleted namespace that one step takes over.
const MAX_STEP_EFFECTS: usize = 1_024;

/// The progress of one call, which is a command or a list of commands.
#[derive(Debug, Default)]
struct CallProgress {
    /// What the reply awaits.
    awaits: Option<Revision>,
    /// Whether it continued the ends from the log and a rebuild, and whether it continued the due work. It spends one
    /// slice on each and leaves the rest to later steps.
    has_rebuilt: bool,
    has_advanced: bool,
}

/// The tables of one epoch.
#[derive(Debug)]
pub struct SoftTable {
    core: LocksState,
    epoch: Revision,
    block: RevisionBlock,
    /// The block that follows, once the log has given it out.
    next_block: Option<RevisionBlock>,
    /// The last revision of each earlier block, and the first one of the block after it: between them are those of the
    /// log. A block has so many revisions that these are few.
    gaps: Vec<(Revision, Revision)>,
    /// Sessions that have ended in the log, and not yet here.
    ended: BTreeMap<SessionNumber, SessionEnd>,
    /// Namespaces that are deleted in the log, and not yet here.
    closed: VecDeque<NamespaceRef>,
    /// Locks that were opened by force in the log, and not yet here.
    forfeited: VecDeque<Forfeit>,
    /// Resets of the log that wait for earlier ones.
    resets: VecDeque<Reset>,
    /// Namespaces where the holds of ended sessions became free and must be granted.
    freed: BTreeSet<NamespaceKey>,
    /// Whether a step left something of these for others.
    was_behind: bool,
    /// Namespaces with events in the log that are not here yet.
    uncopied: BTreeSet<NamespaceKey>,
    /// Whether a step had no budget for all of these, and left the rest for others.
    is_copying: bool,
    /// The namespaces that were there when the epoch began.
    rebuilds: BTreeMap<NamespaceKey, Rebuild>,
    /// The namespaces of `rebuilds` in which later steps continue to enter reports.
    entering: BTreeSet<NamespaceKey>,
    /// The namespace for which the last step had no room.
    last_entered: Option<NamespaceKey>,
    /// The earlier sessions whose reports are complete, and that have not ended.
    reported: BTreeSet<SessionNumber>,
    /// Claims that were not entered, since this was last taken.
    conflicts: u64,
    /// Whether a namespace was completed, all that had ended in the log has ended here, or all its events are copied,
    /// since this was last taken.
    completed: bool,
    effects: Vec<Effect>,
    garbage: TableGarbage,
}

impl SoftTable {
    /// Returns the empty tables of an epoch that has just begun. `None` if the log has begun another epoch since, or
    /// has assigned a further block to this one: the first block has been used, and tokens would fall.
    pub fn begin(log: &ShardState, begun: &TableEpoch) -> Option<Self> {
        let is_new = begun.epoch > 0 && begun.block.first == begun.epoch;
        let log = log.locks().filter(|log| is_new && log.table_epoch() == *begun)?;
        let mut common = log.common.empty();
        common.revision = if is_enabled(Mutation::SoftTokenRestart) { 0 } else { begun.block.first };
        let mut begun = Self {
            core: LocksState::new(common),
            epoch: begun.epoch,
            block: begun.block,
            next_block: None,
            gaps: Vec::new(),
            ended: BTreeMap::new(),
            closed: VecDeque::new(),
            forfeited: VecDeque::new(),
            resets: VecDeque::new(),
            freed: BTreeSet::new(),
            was_behind: false,
            // Their effects may have been taken already.
            uncopied: log.session_durable.clone(),
            is_copying: false,
            rebuilds: Self::rebuilds_of(log),
            entering: BTreeSet::new(),
            last_entered: None,
            reported: BTreeSet::new(),
            conflicts: 0,
            completed: false,
            effects: Vec::new(),
            garbage: TableGarbage::default(),
        };
        begun.copy_events_of_log(log);
        Some(begun)
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// Returns the epoch and the last revision of its block, if another block is needed.
    pub fn needs_block(&self) -> Option<(Revision, Revision)> {
        let is_low = self.next_block.is_none() && self.left() < BLOCK_REVISIONS / 2;
        is_low.then_some((self.epoch, self.block.last))
    }

    /// Adds a block that the log gave out.
    pub fn add_block(&mut self, given: &TableEpoch) {
        if given.epoch == self.epoch && given.block.first > self.block.last {
            self.next_block = Some(given.block);
        }
    }

    /// Returns whether a command is for these tables rather than for the log.
    pub fn is_for_tables(log: &ShardState, command: &LocksCommand) -> bool {
        let Some(log) = log.locks() else { return false };
        match command {
            LocksCommand::Table(TableCommand::Report(_)) => true,
            LocksCommand::AskRelease(ask) => ask::is_for_table(log, ask),
            LocksCommand::Batch(commands) => {
                !commands.is_empty() && commands.iter().all(|command| log.table_session(command).is_ok())
            }
            command => log.table_session(command).is_ok(),
        }
    }

    /// Returns the namespace whose table a command is for, or opens a session of.
    pub fn table_of(log: &ShardState, command: &LocksCommand) -> Option<NamespaceRef> {
        match command {
            LocksCommand::Table(TableCommand::Report(report)) => Some(report.namespace.clone()),
            LocksCommand::Table(TableCommand::OpenSession(command)) => Some(command.open.namespace.clone()),
            LocksCommand::AskRelease(ask) => Some(ask.namespace.clone()),
            LocksCommand::Batch(commands) => commands.first().and_then(|command| Self::table_of(log, command)),
            command => {
                let (namespace, ..) = log.locks()?.table_session(command).ok()?;
                Some(NamespaceRef::clone(&namespace.id))
            }
        }
    }

    /// Returns whether a command can be decided only once the table of its namespace is complete, or its epoch has
    /// begun. Reports and releases count for a table that is rebuilt.
    pub fn waits_for_rebuild(command: &LocksCommand) -> bool {
        match command {
            LocksCommand::Batch(commands) => commands.iter().any(needs_complete),
            LocksCommand::Table(TableCommand::OpenSession(_)) => true,
            command => needs_complete(command),
        }
    }

    /// Returns whether a command for these tables can be decided now. If not, it is refused with `Busy`.
    pub fn is_ready_for(&self, log: &ShardState, command: &LocksCommand) -> bool {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return false };
        let commands =
            if let LocksCommand::Batch(commands) = command { commands } else { std::slice::from_ref(command) };
        let is_first = |command: &&LocksCommand| needs_complete(command);
        let is_decided = |namespace: &Namespace, session: &Session| {
            self.is_unreported(namespace, session.facts.number) || self.can_be_complete(namespace)
        };
        let is_decided = match commands.iter().find(is_first) {
            None => true,
            Some(LocksCommand::AskRelease(ask)) => self.can_ask(log, ask),
            Some(command) => {
                let found = log.table_session(command).ok();
                found.is_none_or(|(namespace, _, session)| is_decided(namespace, session))
            }
        };
        is_decided && self.has_revisions() && !self.is_behind() && !self.is_copying
    }

    /// Returns whether the lock table of a namespace is one of these.
    pub fn is_of_tables(log: &ShardState, namespace: &NamespaceRef) -> bool {
        let found = log.locks().and_then(|log| log.find(namespace).ok());
        found.is_some_and(|namespace| namespace.durability == Durability::Session)
    }

    /// Returns whether the log has begun no epoch since.
    pub fn is_current(&self, log: &ShardState) -> bool {
        log.locks().is_some_and(|log| self.check_epoch(log).is_ok())
    }

    /// Returns whether queries about the lock table of a namespace can be answered now.
    pub fn is_ready_to_answer(&self, log: &ShardState, namespace: &NamespaceRef) -> bool {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return false };
        !self.is_behind()
            && !self.is_copying
            && log.find(namespace).is_ok_and(|namespace| self.check_complete(namespace).is_ok())
    }

    /// Applies a command of a connected session, or a list of them. The reply awaits what it began and what later steps
    /// continue, see [`Self::job_state`].
    pub fn apply(&mut self, log: &ShardState, context: &EntryContext, command: &LocksCommand) -> Reply {
        let mut call = CallProgress::default();
        let outcome = match (log.locks(), command) {
            (None, _) => Err(CommandError::Malformed("only a locks shard has lock tables".to_owned())),
            (Some(log), LocksCommand::Batch(commands)) => {
                let outcomes = commands.iter().map(|command| self.apply_one(log, context, command, &mut call));
                Ok(Response::Batch(outcomes.collect()))
            }
            (Some(log), command) => self.apply_one(log, context, command, &mut call),
        };
        Reply { outcome, clock_ms: self.core.common.clock_ms, awaits: call.awaits }
    }

    /// Returns how much of what replies await is done so far.
    pub fn sweeps_done(&self) -> u64 {
        self.core.sweeps_done()
    }

    /// Returns the progress of what a reply awaits.
    pub fn job_state(&self, began: Revision) -> JobState {
        self.core.job_state(began)
    }

    fn apply_one(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        command: &LocksCommand,
        call: &mut CallProgress,
    ) -> Result<Response, CommandError> {
        self.check_epoch(log)?;
        if let LocksCommand::Table(TableCommand::Report(report)) = command {
            return self.take_report(log, context, report);
        }
        if let LocksCommand::AskRelease(ask) = command {
            return self.ask_release(log, context, ask);
        }
        let (namespace, session_id, session) = log.table_session(command)?;
        let number = session.facts.number;
        if self.is_unreported(namespace, number) {
            return Err(CommandError::Unreported { table_epoch: self.epoch });
        }
        let command = table_command(command, namespace.table_log.transition_ms(number).unwrap_or_default())?;
        self.apply_ends(log);
        let is_first = !std::mem::replace(&mut call.has_rebuilt, true);
        if is_first {
            self.settle(context);
        }
        if is_first || self.can_be_complete(namespace) {
            self.rebuild(context, namespace);
        }
        if needs_complete(&command) {
            self.check_complete(namespace)?;
        }
        let advances = !std::mem::replace(&mut call.has_advanced, true);
        if advances {
            self.advance(context);
        }
        self.check_settled()?;
        if advances || !self.is_copying {
            self.copy_events_of_log(log);
        }
        self.check_copied()?;
        self.mirror(context, namespace, session_id, &session.facts);
        if let Some(given_up) = self.withdraw_reported(context, (namespace, session_id, session), &command) {
            self.core.enforce_byte_limits();
            return given_up;
        }
        let answer = self.core.apply(context, &command);
        self.collect_effects();
        let (response, began) = answer?;
        // Within one session, what began last finishes last.
        call.awaits = call.awaits.max(began);
        Ok(response)
    }

    /// Advances the clock, and does one step of the due and the unfinished work. Ends in the log come first, before any
    /// grant. It does nothing while it lacks revisions.
    pub fn advance(&mut self, context: &EntryContext) {
        self.settle(context);
        self.begin_step(context);
    }

    /// Advances the clock, and does a step of the due work, unless something has ended in the log and not yet here, or
    /// its events are still being copied. Returns true if more may be done.
    fn begin_step(&mut self, context: &EntryContext) -> bool {
        if self.check_copied().is_err() {
            return false;
        }
        if self.check_settled().is_ok() {
            self.core.common.advance(context);
            self.core.begin_entry(context);
            self.begin_resets(context);
            self.core.begin_slice();
            self.collect_effects();
        }
        self.check_settled().is_ok()
    }

    /// Takes the effects on others than the callers, in order. Effects of sessions and namespaces come from the log.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the shard clock of the next deadline; that of the last step while there is unfinished work, also what
    /// had to wait for revisions and has them now.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if !self.has_revisions() {
            return None;
        }
        let goes_on = self.is_behind() || self.is_copying || !self.entering.is_empty();
        if goes_on { Some(self.core.common.clock_ms) } else { self.core.next_deadline_ms() }
    }

    fn collect_effects(&mut self) {
        let is_own = |effect: &Effect| {
            let is_of_log = matches!(
                effect,
                Effect::SessionOpened { .. } | Effect::SessionEnded { .. } | Effect::NamespaceClosed { .. }
            );
            !is_of_log
        };
        // Only those of a namespace that is gone are more than a slice makes.
        let at_most = if self.core.has_closed() { MAX_STEP_EFFECTS } else { usize::MAX };
        self.effects.extend(self.core.take_effects(at_most).into_iter().filter(is_own));
        self.core.purge_indexes(MAX_STEP_EFFECTS);
        self.garbage.purged.append(self.core.take_purged());
    }

    /// Takes the memory of removed items, to be freed in the background.
    pub fn take_garbage(&mut self) -> TableGarbage {
        std::mem::take(&mut self.garbage)
    }

    fn left(&self) -> u64 {
        self.block.last.saturating_sub(self.core.common.revision)
    }

    fn has_revisions(&self) -> bool {
        self.left() >= RESERVE || self.next_block.is_some()
    }

    /// Checks that there are revisions for a step; begins the next block when the present one does not suffice.
    fn check_revisions(&mut self) -> Result<(), CommandError> {
        if self.left() < RESERVE
            && let Some(block) = self.next_block.take()
        {
            self.gaps.push((self.block.last, block.first));
            self.block = block;
            self.core.common.revision = block.first;
        }
        if self.left() < RESERVE { Err(busy("the leader waits for revisions from the log")) } else { Ok(()) }
    }

    /// Checks that a step may do something: there are revisions for it, and all that has ended in the log has ended
    /// here.
    fn check_settled(&mut self) -> Result<(), CommandError> {
        self.check_revisions()?;
        if self.is_behind() { Err(busy("the leader ends what has ended in the log")) } else { Ok(()) }
    }

    /// Returns whether it is not known yet what a session of before holds.
    fn is_unreported(&self, namespace: &Namespace, number: SessionNumber) -> bool {
        namespace.table_log.is_earlier(number) && !self.has_reported(number)
    }

    /// Returns whether everything that was held before the epoch is there, and entered as far as there is something.
    fn can_be_complete(&self, namespace: &Namespace) -> bool {
        match self.rebuilds.get(&NamespaceKey::of(&namespace.id)) {
            _ if is_enabled(Mutation::SoftIncomplete) => true,
            Some(rebuild) => rebuild.can_be_complete(namespace),
            None => namespace.table_log.earlier_sessions().next().is_none(),
        }
    }

    /// Checks that everything that was held before the epoch is entered.
    fn check_complete(&self, namespace: &Namespace) -> Result<(), CommandError> {
        let is_complete = match self.rebuilds.get(&NamespaceKey::of(&namespace.id)) {
            _ if is_enabled(Mutation::SoftIncomplete) => true,
            Some(rebuild) => rebuild.is_complete(namespace),
            None => namespace.table_log.earlier_sessions().next().is_none(),
        };
        if is_complete {
            return Ok(());
        }
        Err(busy("the leader waits for reports of sessions of before its time, or for their end"))
    }

    /// Takes whether a namespace was completed.
    pub fn take_completed(&mut self) -> bool {
        std::mem::take(&mut self.completed)
    }

    /// Checks that the log has begun no epoch since.
    fn check_epoch(&self, log: &LocksState) -> Result<(), CommandError> {
        if log.table_epoch().epoch == self.epoch { Ok(()) } else { Err(busy("another epoch has begun")) }
    }
}

/// Returns whether a command asks for locks.
fn asks(command: &LocksCommand) -> bool {
    matches!(command, LocksCommand::Session(command) if command.as_acquire().is_some())
}

/// Returns whether a command asks for locks or for their release, or compares what its session has with the list of its
/// client: who releases some needs no complete table.
fn needs_complete(command: &LocksCommand) -> bool {
    use LocksCommand::{AskRelease, LockInfo, LockInfoPart};
    asks(command) || matches!(command, LockInfo(_) | LockInfoPart(_) | AskRelease(_))
}

fn busy(why: &str) -> CommandError {
    CommandError::Busy(why.to_owned())
}
