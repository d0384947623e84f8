//! The lock tables of a shard that are in the memory of its leader: a second state of the same kind beside the one in
//! the log, with revisions from blocks that the log gave out.
//!
//! Invariants: it grants nothing while the log has a session of before its epoch; its tokens rise, and lie above those
//! of every earlier epoch; what it has of a session never outlives the session and its transition in the log.
//!
//! It is pure: every call gets the log state of the same moment, and knows of no leader, caller or wait.

mod mirror;
mod request;
mod verify;

use std::collections::VecDeque;

use holdfast_mutations::{Mutation, is_enabled};

use super::LocksState;
use super::namespace::Namespace;
use crate::shard::ShardState;
use crate::{
    BLOCK_REVISIONS, CommandError, Durability, Effect, EntryContext, LocksCommand, NamespaceRef, Query, Reply,
    Response, Revision, RevisionBlock, SessionCommand, SessionEnd, SessionNumber, SessionRequest, TableEpoch,
};
use request::table_request;

/// What is left of a block before a step begins: more than any step can use.
const RESERVE: u64 = BLOCK_REVISIONS / 4;

/// The tables of one epoch.
#[derive(Debug)]
pub struct SoftTable {
    core: LocksState,
    epoch: Revision,
    block: RevisionBlock,
    /// The block that follows, once the log has given it out.
    next_block: Option<RevisionBlock>,
    /// Sessions that have ended in the log, and not yet here. Each session is in it once at most.
    ended: VecDeque<(SessionNumber, SessionEnd)>,
    /// Namespaces that are gone in the log, and not yet here.
    closed: VecDeque<NamespaceRef>,
    effects: Vec<Effect>,
}

impl SoftTable {
    /// Returns the empty tables of an epoch that has just begun. `None` if the log has begun another one since.
    pub fn begin(log: &ShardState, begun: &TableEpoch) -> Option<Self> {
        let log = log.locks().filter(|log| begun.epoch > 0 && log.table_epoch() == *begun)?;
        let mut common = log.common.empty();
        common.revision = if is_enabled(Mutation::SoftTokenRestart) { 0 } else { begun.block.first };
        let (ended, closed) = (VecDeque::new(), VecDeque::new());
        let (epoch, block) = (begun.epoch, begun.block);
        Some(Self { core: LocksState::new(common), epoch, block, next_block: None, ended, closed, effects: Vec::new() })
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
    pub fn is_for_tables(log: &ShardState, command: &SessionCommand) -> bool {
        log.locks().is_some_and(|log| log.table_session(command).is_ok())
    }

    /// Returns whether a query is about these tables rather than about the log.
    pub fn is_about_tables(log: &ShardState, query: &Query) -> bool {
        let namespace = log.locks().zip(query.lock_table()).and_then(|(log, namespace)| log.find(namespace).ok());
        namespace.is_some_and(|namespace| namespace.durability == Durability::Session)
    }

    /// Returns whether the log has begun no epoch since.
    pub fn is_current(&self, log: &ShardState) -> bool {
        log.locks().is_some_and(|log| self.check_epoch(log).is_ok())
    }

    /// Applies a request of a connected session.
    pub fn apply(&mut self, log: &ShardState, context: &EntryContext, command: &SessionCommand) -> Reply {
        let outcome = match log.locks() {
            Some(log) => self.apply_in(log, context, command),
            None => Err(CommandError::Malformed("only a locks shard has lock tables".to_owned())),
        };
        Reply { outcome, clock_ms: self.core.common.clock_ms, awaits: None }
    }

    fn apply_in(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        command: &SessionCommand,
    ) -> Result<Response, CommandError> {
        self.check_epoch(log)?;
        let (namespace, session_id, session) = log.table_session(command)?;
        let (number, table_log) = (session.facts.number, &namespace.table_log);
        if table_log.is_earlier(number) {
            return Err(busy("the session is of before the present leader, which waits for its end"));
        }
        let transition_ms = table_log.transition_ms(number).unwrap_or_default();
        let request = table_request(&command.request, transition_ms)?;
        if !matches!(request, SessionRequest::Release { .. }) {
            check_complete(namespace)?;
        }
        self.advance(context);
        self.check_revisions()?;
        self.mirror(context, namespace, session_id, &session.facts);
        let command = SessionCommand { request, ..command.clone() };
        let answer = self.core.apply(context, &LocksCommand::Session(command));
        self.collect_effects();
        answer.map(|(response, _)| response)
    }

    /// Moves the clock, and ends what is due. Nothing happens as long as there are no revisions for it.
    pub fn advance(&mut self, context: &EntryContext) {
        self.settle(context);
        self.begin_step(context);
    }

    /// Moves the clock, and ends what is due. Returns whether there are revisions for more.
    fn begin_step(&mut self, context: &EntryContext) -> bool {
        if self.check_revisions().is_ok() {
            self.core.common.advance(context);
            self.core.begin_entry(context);
            self.core.begin_slice();
            self.collect_effects();
        }
        self.check_revisions().is_ok()
    }

    /// Follows what an entry of the log has done.
    pub fn follow(&mut self, context: &EntryContext, effect: &Effect) {
        match effect {
            Effect::SessionEnded { reason: SessionEnd::NamespaceDeleted, .. } => return,
            Effect::SessionEnded { number, reason, .. } if self.core.sessions.contains_key(number) => {
                self.ended.push_back((*number, *reason));
            }
            Effect::NamespaceClosed { namespace } if self.core.slot_of(namespace).is_some() => {
                self.closed.push_back(namespace.clone());
            }
            _ => return,
        }
        self.advance(context);
    }

    /// Ends what has ended in the log, as far as there are revisions.
    fn settle(&mut self, context: &EntryContext) {
        while !(self.closed.is_empty() && self.ended.is_empty()) && self.begin_step(context) {
            if let Some(namespace) = self.closed.pop_front() {
                self.core.purge(&namespace);
            } else if let Some((number, why)) = self.ended.pop_front() {
                self.core.end_mirrored(context, number, why);
            }
            self.collect_effects();
        }
    }

    /// Answers a query about the lock tables. `None` if it is about something else.
    pub fn query(&self, log: &ShardState, running_clock_ms: u64, query: &Query) -> Option<Reply> {
        let log = log.locks()?;
        let namespace = log.find(query.lock_table()?).ok()?;
        if namespace.durability == Durability::Full {
            return None;
        }
        let checked = self.check_epoch(log).and_then(|()| check_complete(namespace));
        let outcome = match (checked, self.core.slot_of(&namespace.id)) {
            (Err(rejected), _) => Err(rejected),
            // Nothing was ever asked for in it.
            (Ok(()), None) => LocksState::new(self.core.common.clone()).query_empty(namespace, query)?,
            (Ok(()), Some(_)) => self.core.query(query)?,
        };
        Some(Reply { outcome, clock_ms: running_clock_ms.max(self.core.common.clock_ms), awaits: None })
    }

    /// Takes the effects on others than the callers, in order. Those of sessions and namespaces are the log's.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the shard clock of the next deadline; that of the last step while there is unfinished work.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.core.next_deadline_ms()
    }

    fn collect_effects(&mut self) {
        let is_own = |effect: &Effect| {
            let is_of_log = matches!(
                effect,
                Effect::SessionOpened { .. } | Effect::SessionEnded { .. } | Effect::NamespaceClosed { .. }
            );
            !is_of_log
        };
        self.effects.extend(self.core.take_effects(usize::MAX).into_iter().filter(is_own));
        self.core.purge_indexes(usize::MAX);
    }

    fn left(&self) -> u64 {
        self.block.last.saturating_sub(self.core.common.revision)
    }

    /// Checks that there are revisions for a step; begins the next block when the present one does not suffice.
    fn check_revisions(&mut self) -> Result<(), CommandError> {
        if self.left() < RESERVE
            && let Some(block) = self.next_block.take()
        {
            self.block = block;
            self.core.common.revision = block.first;
        }
        if self.left() < RESERVE { Err(busy("the leader waits for revisions from the log")) } else { Ok(()) }
    }

    /// Checks that the log has begun no epoch since.
    fn check_epoch(&self, log: &LocksState) -> Result<(), CommandError> {
        if log.table_epoch().epoch == self.epoch { Ok(()) } else { Err(busy("another epoch has begun")) }
    }
}

/// Checks that no session of before the epoch can hold anything any more.
fn check_complete(namespace: &Namespace) -> Result<(), CommandError> {
    match namespace.table_log.earlier_sessions().next() {
        _ if is_enabled(Mutation::SoftIncomplete) => Ok(()),
        None => Ok(()),
        Some(_) => Err(busy("the leader waits for the end of sessions of before its time")),
    }
}

fn busy(why: &str) -> CommandError {
    CommandError::Busy(why.to_owned())
}
