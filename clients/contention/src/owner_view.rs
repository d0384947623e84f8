//! What a store says, as an owner on this process's clock.

use std::time::Duration;

use crate::owner::MutexOwner;
use crate::store::Holding;
use crate::timestamp::Timestamp;

/// Somebody's ownership as it was answered at `now`. Stores need not tell the transition of an owner that is in its
/// time to live; all contenders of a mutex use the same.
pub(crate) fn owner_from_holding(holding: Option<Holding>, usual_transition: Duration, now: Timestamp) -> MutexOwner {
    let Some(holding) = holding else { return MutexOwner::NONE };
    let ttl_at = holding.ttl_left.map_or(now, |left| now + left);
    let transition_at = match holding.transition_left {
        Some(left) => now + left,
        None => ttl_at + usual_transition,
    };
    MutexOwner::new(holding.owner_id, now.before(holding.held_for), ttl_at, transition_at)
        .with_fencing_token(holding.fencing_token)
        .with_metadata(holding.metadata)
}
