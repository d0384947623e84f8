//! Bounds of memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest item that a user without any other gets when all shared bytes are in use: many users have one each.
const MAX_EXEMPT_BYTES: usize = 4_096;

/// Bytes of a budget, given back when it is dropped.
pub type Reservation = OwnedSemaphorePermit;

/// Bytes that may be in use at a time. Clones share them. One item larger than all of them may be there alone.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    free: Arc<Semaphore>,
    limit: u32,
}

impl ByteBudget {
    /// Creates a budget of so many bytes.
    pub fn new(limit: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(limit as usize)), limit }
    }

    /// Returns how many bytes there are in all.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> u64 {
        u64::from(self.limit).saturating_sub(self.free.available_permits() as u64)
    }

    /// Reserves this many bytes; returns `None` if that would exceed the limit.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        Arc::clone(&self.free).try_acquire_many_owned(self.clamp(bytes)).ok()
    }

    /// Reserves this many bytes as soon as they are free.
    pub async fn reserve(&self, bytes: usize) -> Option<Reservation> {
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_many_owned(self.clamp(bytes)).await.ok()
    }

    fn clamp(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.limit)
    }
}

/// The budget of one of several users, and that of all of them together, if they have one. What is reserved counts in
/// both.
#[derive(Clone, Debug)]
pub struct NestedBudget {
    own: ByteBudget,
    shared: Option<ByteBudget>,
}

/// Bytes of both budgets, given back when this is dropped.
#[derive(Debug)]
pub struct NestedReservation {
    own: Reservation,
    /// Also absent for one that was let through.
    shared: Option<Reservation>,
}

impl NestedBudget {
    /// Creates the budget of a user of so many bytes.
    pub fn new(own: u32, shared: Option<ByteBudget>) -> Self {
        Self { own: ByteBudget::new(own), shared }
    }

    /// Returns the budget of the same user among others.
    #[must_use]
    pub fn within(&self, shared: Option<ByteBudget>) -> Self {
        Self { own: self.own.clone(), shared }
    }

    /// Reserves this many bytes; returns `None` if that would exceed a limit.
    pub fn try_reserve(&self, bytes: usize) -> Option<NestedReservation> {
        let own = self.own.try_reserve(bytes)?;
        let shared = match &self.shared {
            Some(shared) => Some(shared.try_reserve(bytes)?),
            None => None,
        };
        Some(NestedReservation { own, shared })
    }

    /// Reserves this many bytes as soon as they are free. A user without another reservation needs none of the shared
    /// bytes for a small item, of at most 4,096 bytes: users that give nothing back must not stop those that do. `None`
    /// never happens.
    pub async fn reserve(&self, bytes: usize) -> Option<NestedReservation> {
        let own = self.own.reserve(bytes).await?;
        let Some(shared) = &self.shared else { return Some(NestedReservation { own, shared: None }) };
        let all_others = usize::try_from(self.own.limit).unwrap_or(usize::MAX).saturating_sub(bytes);
        let shared = tokio::select! {
            biased;
            reserved = shared.reserve(bytes) => reserved,
            _ = self.own.reserve(all_others), if bytes <= MAX_EXEMPT_BYTES => None,
        };
        Some(NestedReservation { own, shared })
    }
}

impl NestedReservation {
    /// Adds another reservation of the same budget, so that many small ones take no more memory than one.
    pub fn merge(&mut self, other: Self) {
        self.own.merge(other.own);
        match (&mut self.shared, other.shared) {
            (Some(shared), Some(more)) => shared.merge(more),
            (shared, more) => *shared = shared.take().or(more),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn what_is_reserved_counts_for_the_user_and_for_all() {
        let all = ByteBudget::new(100);
        let (one, other) = (NestedBudget::new(80, Some(all.clone())), NestedBudget::new(80, Some(all)));
        let mut reserved = one.try_reserve(50).unwrap();
        assert!(one.try_reserve(31).is_none() && other.try_reserve(51).is_none());
        reserved.merge(one.try_reserve(10).unwrap());
        assert!(one.try_reserve(21).is_none() && one.try_reserve(20).is_some() && other.try_reserve(41).is_none());
        let alone = one.within(None);
        assert!(alone.try_reserve(21).is_none() && alone.try_reserve(20).is_some());
        drop(reserved);
        assert!(other.try_reserve(80).is_some() && one.try_reserve(80).is_some());
    }

    #[test]
    fn a_large_item_waits_for_shared_bytes_also_if_its_user_has_no_other() {
        let all = ByteBudget::new(10_000);
        let (deaf, reader) = (NestedBudget::new(10_000, Some(all.clone())), NestedBudget::new(10_000, Some(all)));
        let kept = deaf.try_reserve(10_000);
        assert!(reader.reserve(MAX_EXEMPT_BYTES).now_or_never().is_some());
        assert!(reader.reserve(MAX_EXEMPT_BYTES + 1).now_or_never().is_none());
        drop(kept);
        assert!(reader.reserve(MAX_EXEMPT_BYTES + 1).now_or_never().is_some());
    }

    #[test]
    fn a_user_that_gives_back_goes_on_beside_one_that_does_not() {
        let all = ByteBudget::new(100);
        let (deaf, reader) = (NestedBudget::new(100, Some(all.clone())), NestedBudget::new(100, Some(all)));
        let _kept = deaf.try_reserve(90).unwrap();
        assert!(deaf.reserve(20).now_or_never().is_none());
        for _ in 0..10 {
            let reserved = reader.reserve(20).now_or_never().flatten().unwrap();
            assert!(reader.reserve(20).now_or_never().is_none(), "it has one already");
            drop(reserved);
        }
    }
}
