//! Forcing a lock open.

use super::end::Ending;
use super::owner::OwnerId;
use super::work::Work;
use crate::{Answer, Path};

impl Work<'_> {
    /// Ends all holds of a path in any state; a lock that nobody holds is deleted already.
    pub(super) fn delete(&mut self, path: &Path) -> Answer {
        if let Some(node) = self.ns.tree.find(path) {
            let holders: Vec<OwnerId> = self.ns.tree.get(node).holds.as_slice().iter().map(|hold| hold.owner).collect();
            for owner in holders {
                self.end_hold(node, owner, Ending::Deleted);
            }
            self.run();
        }
        Answer::Done
    }
}
