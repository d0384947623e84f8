//! Poll times without notifications.

use std::time::Duration;

use rand::Rng;

use crate::owner::MutexOwner;
use crate::timestamp::Timestamp;

/// Maximum delay of another contender's poll after the end of an owner's transition, in ms; exclusive.
const MAX_JITTER_MS: i64 = 1_000;
/// How much earlier it may poll, in ms: its clock or the response may be late.
const MIN_JITTER_MS: i64 = -200;

/// Computes how long a contender waits until its next poll. The owner waits until the end of its time to live; any
/// other contender until the end of the owner's transition plus a random time that spreads the polls.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendPeriod, Timestamp, MutexOwner};
///
/// let at = Timestamp::from_millis;
/// let owner = MutexOwner::new("a", at(1_000), at(3_000), at(4_000));
/// let period = ContendPeriod::new("a");
/// assert_eq!(period.ensure_next_delay(&owner, at(1_000)), Duration::from_millis(2_000));
/// let other = ContendPeriod::new("b").ensure_next_delay(&owner, at(1_000));
/// assert!(other >= Duration::from_millis(2_800) && other < Duration::from_millis(4_000));
/// ```
#[derive(Clone, Debug)]
pub struct ContendPeriod {
    contender_id: String,
}

impl ContendPeriod {
    /// Creates the period of this contender.
    pub fn new(contender_id: impl Into<String>) -> Self {
        Self { contender_id: contender_id.into() }
    }

    /// Returns the time from `now` to this contender's next poll, never below zero.
    pub fn ensure_next_delay(&self, owner: &MutexOwner, now: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.next_delay(owner, now)).unwrap_or(0))
    }

    /// The same in ms; negative if the poll is overdue.
    pub fn next_delay(&self, owner: &MutexOwner, now: Timestamp) -> i64 {
        if owner.is_owner(&self.contender_id) {
            Self::next_owner_delay(owner, now)
        } else {
            Self::next_contender_delay(owner, now, &mut rand::rng())
        }
    }

    /// Returns the time from `now` to the end of the owner's time to live, in ms; negative after it.
    pub fn next_owner_delay(owner: &MutexOwner, now: Timestamp) -> i64 {
        ms_between(now, owner.ttl_at())
    }

    /// Returns the time from `now` to the end of the owner's transition plus -200 to 1,000 ms, or plus 0 to 1,000
    /// without a transition; in ms, negative after it.
    pub fn next_contender_delay(owner: &MutexOwner, now: Timestamp, random: &mut impl Rng) -> i64 {
        let earliest = if owner.transition_at() == owner.ttl_at() { 0 } else { MIN_JITTER_MS };
        ms_between(now, owner.transition_at()).saturating_add(random.random_range(earliest..MAX_JITTER_MS))
    }
}

fn ms_between(from: Timestamp, to: Timestamp) -> i64 {
    let ms = |moment: Timestamp| i64::try_from(moment.as_millis()).unwrap_or(i64::MAX);
    ms(to).saturating_sub(ms(from))
}
