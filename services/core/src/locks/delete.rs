//! Forcing a lock open.

use super::LocksCore;
use crate::{Answer, NamespaceRef, Path, Refusal};

impl LocksCore {
    /// Ends all holds in any state; a lock that nobody holds is deleted already.
    pub(super) fn delete(&mut self, namespace: &NamespaceRef, path: &Path) -> Result<Answer, Refusal> {
        let (key, _) = self.find(namespace)?;
        if let Some((path, lock)) = self.open_namespace(key).remove_all(path) {
            self.end_all(key, &path, &lock);
        }
        Ok(Answer::Done)
    }
}
