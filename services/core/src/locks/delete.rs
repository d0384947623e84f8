//! Forces a lock open.

use super::end::EndCause;
use super::owner::OwnerId;
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::{CommandError, Path, Response};

impl NamespaceTxn<'_> {
    /// Ends all holds of a path in any phase. Deleting a lock that no owner holds succeeds.
    pub(super) fn delete(&mut self, path: &Path) -> Result<Response, CommandError> {
        if let Some(node) = self.ns.tree.find(path) {
            let Some(left) = self.budget.ends.checked_sub(self.ns.tree.get(node).holds.as_slice().len()) else {
                self.begin_sweep(Target::Path(path.clone()))?;
                return Ok(Response::Done);
            };
            self.budget.ends = left;
            let holders: Vec<OwnerId> = self.ns.tree.get(node).holds.as_slice().iter().map(|hold| hold.owner).collect();
            for owner in holders {
                self.end_hold(node, owner, EndCause::Deleted);
            }
            self.run_grant_loop();
        }
        Ok(Response::Done)
    }
}
