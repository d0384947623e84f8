//! A change of the owner, including to or from no owner.

use crate::owner::MutexOwner;

/// The previous and the current owner of a mutex.
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
    /// No owner before and none now.
    pub const NONE: Self = Self { before: MutexOwner::NONE, after: MutexOwner::NONE };

    /// Creates a change from one owner to the other.
    pub fn new(before: MutexOwner, after: MutexOwner) -> Self {
        Self { before, after }
    }

    /// Returns the previous owner.
    pub fn before(&self) -> &MutexOwner {
        &self.before
    }

    /// Returns the current owner.
    pub fn after(&self) -> &MutexOwner {
        &self.after
    }

    /// Returns true if the two are different contenders. A renewal is no change.
    pub fn is_changed(&self) -> bool {
        !self.before.is_owner(self.after.owner_id())
    }

    /// Returns true if this contender became the owner.
    pub fn is_acquired(&self, contender_id: &str) -> bool {
        self.is_changed() && self.is_owner(contender_id)
    }

    /// Returns true if this contender ceased to be the owner.
    pub fn is_released(&self, contender_id: &str) -> bool {
        self.is_changed() && self.before.is_owner(contender_id)
    }

    /// Returns true if this contender owns it now, regardless of time.
    pub fn is_owner(&self, contender_id: &str) -> bool {
        self.after.is_owner(contender_id)
    }

    /// Returns true if this contender owns it now, in its time to live.
    pub fn is_in_ttl(&self, contender_id: &str) -> bool {
        self.after.is_in_ttl_of(contender_id)
    }
}
