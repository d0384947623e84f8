//! Converts a store's response to an owner on this process's clock.

use std::time::Duration;

use crate::owner::MutexOwner;
use crate::store::Holding;
use crate::timestamp::Timestamp;

/// Returns the owner of a holding that was received at `now`. Stores need not report the transition of an owner in its
/// time to live, since all contenders of a mutex use the same.
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
