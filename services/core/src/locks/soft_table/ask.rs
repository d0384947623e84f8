//! Requests to release locks whose table is in the leader's memory. They are kept with the holds there, and no report
//! tells the next leader of them: who still wants the lock asks again.
//!
//! They end nothing: a hold ends by force only once the log knows of it, which has to know of a later end as well.

use super::SoftTable;
use crate::locks::LocksState;
use crate::locks::durability::refusal_of_ask;
use crate::locks::namespace::Namespace;
use crate::shard::ShardState;
use crate::{AskRelease, CommandError, Durability, EntryContext, Kind, LocksCommand, Response};

/// Returns whether a request is for the table of a leader.
pub(super) fn is_for_table(log: &LocksState, ask: &AskRelease) -> bool {
    let is_soft = |namespace: &Namespace| namespace.durability == Durability::Session;
    is_offered(ask) && log.find(&ask.namespace).is_ok_and(is_soft)
}

fn is_offered(ask: &AskRelease) -> bool {
    ask.kind == Kind::Lock && !ask.force
}

impl SoftTable {
    /// Asks the owners of a lock, and the owners of conflicting holds, to release.
    ///
    /// # Errors
    /// `Busy` while the table is not complete, `InvalidArgument` for a kind that such a namespace does not support, and
    /// the errors of the log.
    pub(super) fn ask_release(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        ask: &AskRelease,
    ) -> Result<Response, CommandError> {
        let namespace = log.find(&ask.namespace)?;
        if !is_for_table(log, ask) {
            return Err(CommandError::InvalidArgument(refusal_of_ask(ask).to_owned()));
        }
        self.bring_up_to_date(log, context, namespace)?;
        self.mirror_namespace(namespace);
        let answer = self.core.apply(context, &LocksCommand::AskRelease(ask.clone()));
        self.collect_effects();
        let (response, _) = answer?;
        Ok(response)
    }

    /// Returns whether a request to release can be decided now, as far as its table is concerned.
    pub(super) fn can_ask(&self, log: &LocksState, ask: &AskRelease) -> bool {
        log.find(&ask.namespace).ok().is_none_or(|namespace| self.can_be_complete(namespace))
    }

    /// Returns whether a command is a request to release that adds to what the tables have. Each may.
    pub(super) fn adds_request(log: &ShardState, command: &LocksCommand) -> bool {
        match command {
            LocksCommand::AskRelease(ask) => log.locks().is_some_and(|log| is_for_table(log, ask)),
            _ => false,
        }
    }
}
