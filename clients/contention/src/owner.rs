//! Who owns a mutex, and until when.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::timestamp::Timestamp;

/// The owner of a mutex as it was last seen. All instants are of this process's monotonic clock, in ms.
///
/// An owner is *in its time to live* until `ttl_at`, which does not belong to it, and *in transition* up to
/// `transition_at`, which does: from then on somebody else may own the mutex. An owner whose time to live is over has
/// until `transition_at` to renew its ownership before the others.
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
    /// Nobody: its id is empty, and all its instants are past.
    pub const NONE: Self = Self {
        owner_id: Cow::Borrowed(""),
        acquired_at: Timestamp::PAST,
        ttl_at: Timestamp::PAST,
        transition_at: Timestamp::PAST,
        fencing_token: None,
        metadata: BTreeMap::new(),
    };

    /// An owner without a fencing token and without metadata.
    pub fn new(
        owner_id: impl Into<String>,
        acquired_at: Timestamp,
        ttl_at: Timestamp,
        transition_at: Timestamp,
    ) -> Self {
        Self { owner_id: Cow::Owned(owner_id.into()), acquired_at, ttl_at, transition_at, ..Self::NONE }
    }

    /// The same with the token of its hold.
    #[must_use]
    pub fn with_fencing_token(self, fencing_token: u64) -> Self {
        Self { fencing_token: Some(fencing_token), ..self }
    }

    /// The same with what it says of itself.
    #[must_use]
    pub fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }

    /// The contender's id; empty for nobody.
    pub fn owner_id(&self) -> &str {
        &self.owner_id
    }

    /// When it became the owner; for other processes' owners an estimate.
    pub fn acquired_at(&self) -> Timestamp {
        self.acquired_at
    }

    /// When its time to live ends.
    pub fn ttl_at(&self) -> Timestamp {
        self.ttl_at
    }

    /// When its transition ends. The same as [`MutexOwner::ttl_at`] without a transition.
    pub fn transition_at(&self) -> Timestamp {
        self.transition_at
    }

    /// Rises with each change of the owner; stores that check it refuse those who were owners earlier.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }

    /// What the owner says of itself.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether this contender is the one. It says nothing about time.
    pub fn is_owner(&self, contender_id: &str) -> bool {
        self.owner_id == contender_id
    }

    /// Whether its time to live is not over yet.
    pub fn is_in_ttl(&self) -> bool {
        self.is_in_ttl_at(Timestamp::now())
    }

    /// The same at another instant. The end of the time to live is not in it.
    pub fn is_in_ttl_at(&self, now: Timestamp) -> bool {
        self.ttl_at > now
    }

    /// Whether this contender is the one, and its time to live is not over yet.
    pub fn is_in_ttl_of(&self, contender_id: &str) -> bool {
        self.is_owner(contender_id) && self.is_in_ttl()
    }

    /// Whether its transition is not over yet. It is in transition during its time to live, too.
    pub fn is_in_transition(&self) -> bool {
        self.is_in_transition_at(Timestamp::now())
    }

    /// The same at another instant. The end of the transition is in it.
    pub fn is_in_transition_at(&self, now: Timestamp) -> bool {
        self.transition_at >= now
    }

    /// Whether this contender is the one, and its transition is not over yet.
    pub fn is_in_transition_of(&self, contender_id: &str) -> bool {
        self.is_owner(contender_id) && self.is_in_transition()
    }

    /// Whether there is an owner whom the others have to leave alone.
    pub fn has_owner(&self) -> bool {
        self.has_owner_at(Timestamp::now())
    }

    /// The same at another instant.
    pub fn has_owner_at(&self, now: Timestamp) -> bool {
        self.is_in_transition_at(now)
    }

    /// Whether this stands for nobody.
    pub fn is_none(&self) -> bool {
        self.owner_id.is_empty()
    }
}
