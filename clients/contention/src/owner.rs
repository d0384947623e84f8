//! The owner of a mutex, and the end of its ownership.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::timestamp::Timestamp;

/// The owner of a mutex as last observed. All instants are of this process's clock, in ms.
///
/// An owner is *in its time to live* until `ttl_at` (exclusive), and *in transition* until `transition_at` (inclusive):
/// afterwards another contender may own the mutex. After its time to live the owner has until `transition_at` to renew
/// its ownership before the others.
///
/// ```
/// use holdfast_contention::{Timestamp, MutexOwner};
///
/// let at = Timestamp::from_millis;
/// let owner = MutexOwner::new("a", at(1_000), at(3_000), at(4_000));
/// assert!(owner.is_owner("a") && !owner.is_owner("b"));
/// assert!(owner.is_in_ttl_at(at(2_999)) && !owner.is_in_ttl_at(at(3_000)));
/// assert!(owner.is_in_transition_at(at(4_000)) && !owner.is_in_transition_at(at(4_001)));
/// assert!(!MutexOwner::NONE.has_owner());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutexOwner {
    owner_id: Cow<'static, str>,
    acquired_at: Timestamp,
    ttl_at: Timestamp,
    transition_at: Timestamp,
    fencing_token: Option<u64>,
    metadata: BTreeMap<String, String>,
}

impl MutexOwner {
    /// No owner: the id is empty, and all instants are past.
    pub const NONE: Self = Self {
        owner_id: Cow::Borrowed(""),
        acquired_at: Timestamp::PAST,
        ttl_at: Timestamp::PAST,
        transition_at: Timestamp::PAST,
        fencing_token: None,
        metadata: BTreeMap::new(),
    };

    /// Creates an owner without a fencing token and without metadata.
    pub fn new(
        owner_id: impl Into<String>,
        acquired_at: Timestamp,
        ttl_at: Timestamp,
        transition_at: Timestamp,
    ) -> Self {
        Self { owner_id: Cow::Owned(owner_id.into()), acquired_at, ttl_at, transition_at, ..Self::NONE }
    }

    /// Returns the same owner with the token of its hold.
    #[must_use]
    pub fn with_fencing_token(self, fencing_token: u64) -> Self {
        Self { fencing_token: Some(fencing_token), ..self }
    }

    /// Returns the same owner with metadata.
    #[must_use]
    pub fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }

    /// Returns the contender's id; empty for no owner.
    pub fn owner_id(&self) -> &str {
        &self.owner_id
    }

    /// Returns when it became the owner; an estimate for owners in other processes.
    pub fn acquired_at(&self) -> Timestamp {
        self.acquired_at
    }

    /// Returns when its time to live ends.
    pub fn ttl_at(&self) -> Timestamp {
        self.ttl_at
    }

    /// Returns when its transition ends; equal to [`MutexOwner::ttl_at`] without a transition.
    pub fn transition_at(&self) -> Timestamp {
        self.transition_at
    }

    /// Returns the fencing token, which rises with each change of the owner; stores that check it reject former owners.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// Returns the owner's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Returns true if this contender is the owner, regardless of time.
    pub fn is_owner(&self, contender_id: &str) -> bool {
        self.owner_id == contender_id
    }

    /// Returns true during its time to live.
    pub fn is_in_ttl(&self) -> bool {
        self.is_in_ttl_at(Timestamp::now())
    }

    /// The same at another instant. The end of the time to live is excluded.
    pub fn is_in_ttl_at(&self, now: Timestamp) -> bool {
        self.ttl_at > now
    }

    /// Returns true if this contender is the owner, in its time to live.
    pub fn is_in_ttl_of(&self, contender_id: &str) -> bool {
        self.is_owner(contender_id) && self.is_in_ttl()
    }

    /// Returns true until the end of its transition, including during its time to live.
    pub fn is_in_transition(&self) -> bool {
        self.is_in_transition_at(Timestamp::now())
    }

    /// The same at another instant. The end of the transition is included.
    pub fn is_in_transition_at(&self, now: Timestamp) -> bool {
        self.transition_at >= now
    }

    /// Returns true if this contender is the owner, until the end of its transition.
    pub fn is_in_transition_of(&self, contender_id: &str) -> bool {
        self.is_owner(contender_id) && self.is_in_transition()
    }

    /// Returns true if there is an owner that keeps other contenders out.
    pub fn has_owner(&self) -> bool {
        self.has_owner_at(Timestamp::now())
    }

    /// The same at another instant.
    pub fn has_owner_at(&self, now: Timestamp) -> bool {
        self.is_in_transition_at(now)
    }

    /// Returns true if this represents no owner.
    pub fn is_none(&self) -> bool {
        self.owner_id.is_empty()
    }
}
