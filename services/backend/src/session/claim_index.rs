//! Which granted requests of a session claim a path.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use holdfast_api::session_message::Lock;

/// The granted requests of a session by thread and path: a session may have 100,000, and each end of a hold asks. Takes
/// some 40 bytes for a claim, so it has hashes in place of threads and paths.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    hasher: RandomState,
    /// By the hash of thread and path, then by the address of the request.
    requests: BTreeMap<(u64, usize), Arc<Lock>>,
}

impl ClaimIndex {
    /// Adds all claims of a request.
    pub(super) fn insert(&mut self, lock: &Arc<Lock>) {
        for claim in &lock.resources {
            self.requests.insert((self.hash(&lock.holder, &claim.path), address(lock)), Arc::clone(lock));
        }
    }

    /// Removes all claims of a request.
    pub(super) fn remove(&mut self, lock: &Arc<Lock>) {
        lock.resources.iter().for_each(|claim| self.remove_claim(lock, &claim.path));
    }

    /// Removes one claim of a request.
    pub(super) fn remove_claim(&mut self, lock: &Arc<Lock>, path: &[String]) {
        self.requests.remove(&(self.hash(&lock.holder, path), address(lock)));
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }

    /// Returns the request of each claim.
    pub(super) fn into_requests(self) -> impl Iterator<Item = Arc<Lock>> {
        self.requests.into_values()
    }

    /// Returns the requests of a thread that claim a path, and rarely others, whose hash is the same.
    pub(super) fn candidates(&self, thread: &Option<String>, path: &[String]) -> impl Iterator<Item = &Arc<Lock>> {
        let hash = self.hash(thread, path);
        self.requests.range((hash, usize::MIN)..=(hash, usize::MAX)).map(|(_, lock)| lock)
    }

    fn hash(&self, thread: &Option<String>, path: &[String]) -> u64 {
        self.hasher.hash_one((thread, path))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

fn address(lock: &Arc<Lock>) -> usize {
    Arc::as_ptr(lock).addr()
}
