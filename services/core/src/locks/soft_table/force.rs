//! Locks that are forced open: the log must record the holds before they end here, so that no later leader takes them
//! over.
//!
//! The recorded holds end here when the entry is applied, whether or not a call waits for it. No other hold ends: a
//! hold granted in between is not recorded, and the next leader takes it over. So the path need not be closed
//! meanwhile: a conflicting claim is granted only after the hold has ended in the log.

use std::collections::BTreeSet;

use holdfast_mutations::{Mutation, is_enabled};

use super::SoftTable;
use crate::locks::LocksState;
use crate::locks::end::EndCause;
use crate::locks::hold::Hold;
use crate::locks::namespace::Namespace;
use crate::locks::owner::{OwnerId, OwnerName};
use crate::locks::txn::NamespaceTxn;
use crate::shard::ShardState;
use crate::{CommandError, EntryContext, Forfeit, ForfeitedHold, MAX_FORFEITS, NamespaceRef, Path};

impl SoftTable {
    /// Returns what the log is told so that all present holds of a lock end; they end by [`Self::forfeit`]. `None` if
    /// the log has the table.
    ///
    /// # Errors
    /// `Busy` while the table is not complete.
    pub fn force_open(
        &mut self,
        log: &ShardState,
        context: &EntryContext,
        (namespace, path): (&NamespaceRef, &Path),
    ) -> Option<Result<Forfeit, CommandError>> {
        let log = log.locks().filter(|_| Self::is_of_tables(log, namespace))?;
        Some(self.force_open_in(log, context, (namespace, path)))
    }

    fn force_open_in(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        (namespace, path): (&NamespaceRef, &Path),
    ) -> Result<Forfeit, CommandError> {
        self.check_epoch(log)?;
        let of_log = log.find(namespace)?;
        self.bring_up_to_date(log, context, of_log)?;
        let all = self.holds_at(namespace, path);
        let new = of_log.table_log.new_forfeits(path, &all);
        // The log refuses one more than it can take. What it needs not know of comes last: holds in transition.
        let most = usize::try_from(MAX_FORFEITS).unwrap_or(usize::MAX).saturating_add(1);
        let others = all.iter().filter(|hold| !new.contains(*hold));
        let holds = new.iter().chain(others).take(most).copied().collect();
        let forfeit = Forfeit { namespace: namespace.clone(), path: path.clone(), holds };
        if is_enabled(Mutation::SoftForfeitLost) {
            self.end_by_force(context, forfeit.clone());
            return Ok(Forfeit { holds: Vec::new(), ..forfeit });
        }
        Ok(forfeit)
    }

    /// Follows an entry of the log that opened a lock by force: ends the holds that it names. Without revisions they
    /// end when there are some.
    pub fn forfeit(&mut self, log: &ShardState, context: &EntryContext, forfeit: &Forfeit) {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return };
        self.apply_ends(log);
        self.end_by_force(context, forfeit.clone());
    }

    fn end_by_force(&mut self, context: &EntryContext, forfeit: Forfeit) {
        if self.core.slot_of(&forfeit.namespace).is_some() && !forfeit.holds.is_empty() {
            self.forfeited.push_back(forfeit);
            self.advance(context);
        }
    }

    fn holds_at(&self, namespace: &NamespaceRef, path: &Path) -> Vec<ForfeitedHold> {
        let Some(slot) = self.core.slot_of(namespace) else { return Vec::new() };
        let namespace = self.core.namespaces.get(slot);
        let Some(node) = namespace.tree.find(path) else { return Vec::new() };
        namespace.tree.get(node).holds.as_slice().iter().filter_map(|hold| forfeited(namespace, hold)).collect()
    }
}

/// Returns a hold as the log is told of it.
fn forfeited(namespace: &Namespace, hold: &Hold) -> Option<ForfeitedHold> {
    match namespace.owners.name(hold.owner) {
        OwnerName::Session(session) => Some(ForfeitedHold { session: session.number, fencing_token: hold.token }),
        OwnerName::Process(_) => None,
    }
}

impl NamespaceTxn<'_> {
    /// Ends these holds as far as they exist, as many as the slice allows. Returns true if all have ended.
    pub(super) fn end_forfeited(&mut self, forfeit: &Forfeit) -> bool {
        let Some(node) = self.ns.tree.find(&forfeit.path) else { return true };
        let named: BTreeSet<ForfeitedHold> = forfeit.holds.iter().copied().collect();
        let ns = &*self.ns;
        let is_named = |hold: &&Hold| forfeited(ns, hold).is_some_and(|hold| named.contains(&hold));
        let there: Vec<OwnerId> =
            ns.tree.get(node).holds.as_slice().iter().filter(is_named).map(|hold| hold.owner).collect();
        let taken = there.len().min(self.budget.ends.max(1));
        self.budget.ends = self.budget.ends.saturating_sub(taken);
        for owner in there.iter().take(taken) {
            self.end_hold(node, *owner, EndCause::Deleted);
        }
        self.run_grant_loop();
        taken == there.len()
    }
}
