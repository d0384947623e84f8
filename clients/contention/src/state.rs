//! A change of the owner, or the lack of one.

use crate::owner::MutexOwner;

/// Who owned a mutex before, and who owns it now.
///
/// ```
/// use holdfast_contention::{Timestamp, MutexOwner, MutexState};
///
/// let at = Timestamp::from_millis;
/// let owner = |id: &str| MutexOwner::new(id, at(0), at(100), at(200));
/// let state = MutexState::new(owner("a"), owner("b"));
/// assert!(state.is_changed() && state.is_released("a") && state.is_acquired("b"));
/// assert!(!MutexState::new(owner("a"), owner("a")).is_changed());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutexState {
    before: MutexOwner,
    after: MutexOwner,
}

impl MutexState {
    /// Nobody before and nobody now.
    pub const NONE: Self = Self { before: MutexOwner::NONE, after: MutexOwner::NONE };

    /// One after the other.
    pub fn new(before: MutexOwner, after: MutexOwner) -> Self {
        Self { before, after }
    }

    /// Who owned it before.
    pub fn before(&self) -> &MutexOwner {
        &self.before
    }

    /// Who owns it now.
    pub fn after(&self) -> &MutexOwner {
        &self.after
    }

    /// Whether the two are different contenders. A renewal is no change.
    pub fn is_changed(&self) -> bool {
        !self.before.is_owner(self.after.owner_id())
    }

    /// Whether this contender became the owner.
    pub fn is_acquired(&self, contender_id: &str) -> bool {
        self.is_changed() && self.is_owner(contender_id)
    }

    /// Whether this contender ceased to be the owner.
    pub fn is_released(&self, contender_id: &str) -> bool {
        self.is_changed() && self.before.is_owner(contender_id)
    }

    /// Whether this contender owns it now. It says nothing about time.
    pub fn is_owner(&self, contender_id: &str) -> bool {
        self.after.is_owner(contender_id)
    }

    /// Whether this contender owns it now, and its time to live is not over yet.
    pub fn is_in_ttl(&self, contender_id: &str) -> bool {
        self.after.is_in_ttl_of(contender_id)
    }
}
