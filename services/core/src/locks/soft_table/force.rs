//! Locks that are forced open: the log has to know of the holds before they end here, so that no later leader takes
//! them over.

use std::collections::BTreeSet;

use holdfast_mutations::{Mutation, is_enabled};

use super::SoftTable;
use crate::locks::LocksState;
use crate::locks::owner::OwnerName;
use crate::shard::ShardState;
use crate::{
    CommandError, EntryContext, Forfeit, ForfeitedHold, LocksCommand, MAX_FORFEITS, NamespaceRef, Path, Response,
};

/// What became of a lock that is forced open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForcedOpen {
    /// All its holds have ended.
    Done,
    /// The log has to know of the call and of these holds first; of the call it may have been told before.
    Unknown(Forfeit),
}

impl SoftTable {
    /// Ends all holds of a lock, if the log knows of the call and of all of them. `None` if the log has the table.
    ///
    /// # Errors
    /// `Busy` while the table is not complete.
    pub fn force_open(
        &mut self,
        log: &ShardState,
        context: &EntryContext,
        (namespace, path): (&NamespaceRef, &Path),
        is_noted: bool,
    ) -> Option<Result<ForcedOpen, CommandError>> {
        let log = log.locks().filter(|_| Self::is_of_tables(log, namespace))?;
        Some(self.force_open_in(log, context, (namespace, path), is_noted))
    }

    fn force_open_in(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        (namespace, path): (&NamespaceRef, &Path),
        is_noted: bool,
    ) -> Result<ForcedOpen, CommandError> {
        self.check_epoch(log)?;
        let of_log = log.find(namespace)?;
        self.hear_of_ends(log);
        self.rebuild(context, of_log);
        self.check_complete(of_log)?;
        self.advance(context);
        self.check_revisions()?;
        let unknown = of_log.table_log.new_forfeits(&self.holds_at(namespace, path));
        let must_note = (!is_noted || !unknown.is_empty()) && !is_enabled(Mutation::SoftForfeitLost);
        if must_note {
            let holds = Self::first_of(&unknown);
            return Ok(ForcedOpen::Unknown(Forfeit { namespace: namespace.clone(), path: path.clone(), holds }));
        }
        if self.core.slot_of(namespace).is_none() {
            return Ok(ForcedOpen::Done);
        }
        let delete = LocksCommand::Delete { namespace: namespace.clone(), path: path.clone() };
        let applied = self.core.apply(context, &delete);
        self.collect_effects();
        if let (_, Some(began)) = applied? {
            self.finish_job(context, began, Response::Done);
        }
        Ok(ForcedOpen::Done)
    }

    /// Returns no more of them than the log could take: it refuses one more.
    fn first_of(holds: &BTreeSet<ForfeitedHold>) -> Vec<ForfeitedHold> {
        let most = usize::try_from(MAX_FORFEITS).unwrap_or(usize::MAX).saturating_add(1);
        holds.iter().take(most).copied().collect()
    }

    fn holds_at(&self, namespace: &NamespaceRef, path: &Path) -> Vec<ForfeitedHold> {
        let Some(slot) = self.core.slot_of(namespace) else { return Vec::new() };
        let namespace = self.core.namespaces.get(slot);
        let Some(node) = namespace.tree.find(path) else { return Vec::new() };
        let of_session = |owner| match namespace.owners.name(owner) {
            OwnerName::Session(session) => Some(session.number),
            OwnerName::Process(_) => None,
        };
        let holds = namespace.tree.get(node).holds.as_slice().iter();
        let holds = holds
            .filter_map(|hold| Some(ForfeitedHold { session: of_session(hold.owner)?, fencing_token: hold.token }));
        holds.collect()
    }
}
