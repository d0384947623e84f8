//! Releasing the holds of one owner.

use std::collections::BTreeSet;

use super::LocksCore;
use crate::{Answer, MAX_READERS_SHOWN, Path, Refusal, Release};

impl LocksCore {
    /// Whoever does not hold a path changes nothing there, and it is no error: the hold may just have ended.
    pub(super) fn release(&mut self, request: &Release) -> Result<Answer, Refusal> {
        let (key, _) = self.find(&request.namespace)?;
        let paths: BTreeSet<&Path> = request.paths.iter().collect();
        let mut released = false;
        for path in &paths {
            let Some(lock) = self.open_namespace(key).locks.get(*path) else { continue };
            let Some(index) = lock.position_of(&request.owner) else { continue };
            if request.fencing_token.is_some_and(|token| token != lock.holds[index].token) {
                continue;
            }
            self.end(key, path, index);
            released = true;
        }
        let locks = paths.into_iter().map(|path| self.view(key, path, MAX_READERS_SHOWN)).collect();
        Ok(Answer::Released { released, locks })
    }
}
