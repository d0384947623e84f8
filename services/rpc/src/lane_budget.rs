//! Bounds of the replies of one account that wait for one caller.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::{ByteBudget, Reservation};

/// Bytes of a lane. The urgent ones of an account have a lane of their own.
const MAX_BYTES: u32 = 4 << 20;
/// Those that each lane has whatever the others take: they count for no other.
const MAX_GUARANTEED_BYTES: u32 = 64 << 10;
/// Queries of a lane that are computed at a time, or whose reply has no room yet.
pub(crate) const MAX_COMPUTED: usize = 16;

/// What a lane may take.
pub(crate) struct LaneBudget {
    own: ByteBudget,
    guaranteed: ByteBudget,
    /// Of all lanes.
    all: ByteBudget,
    computed: Arc<Semaphore>,
}

/// Bytes of a lane, given back when this is dropped.
pub(crate) struct LaneReservation {
    _own: Reservation,
    /// Of those that are guaranteed, or of those of all lanes.
    _counted: Reservation,
}

/// A query that may be computed. The next one may once this is dropped: when its reply is queued, or when it waits for
/// anything else.
pub(crate) struct QueryPermit {
    _permit: OwnedSemaphorePermit,
}

impl LaneBudget {
    pub(crate) fn new(all: ByteBudget) -> Self {
        Self {
            own: ByteBudget::new(MAX_BYTES),
            guaranteed: ByteBudget::new(MAX_GUARANTEED_BYTES),
            all,
            computed: Arc::new(Semaphore::new(MAX_COMPUTED)),
        }
    }

    /// Returns true if any of it is reserved.
    pub(crate) fn is_reserved(&self) -> bool {
        self.own.used() > 0
    }

    /// Waits until a query may be computed whose reply has at least so many bytes.
    pub(crate) async fn query_permit(&self, bytes: usize) -> Option<QueryPermit> {
        let permit = match Arc::clone(&self.computed).try_acquire_owned() {
            Ok(permit) => permit,
            // The semaphore is never closed.
            Err(_) => Arc::clone(&self.computed).acquire_owned().await.ok()?,
        };
        if self.own.try_reserve(bytes).is_none() {
            drop(self.own.reserve(bytes).await?);
        }
        Some(QueryPermit { _permit: permit })
    }

    /// Reserves this many bytes; returns `None` if that would exceed a limit.
    pub(crate) fn try_reserve(&self, bytes: usize) -> Option<LaneReservation> {
        let own = self.own.try_reserve(bytes)?;
        let counted = self.try_guaranteed(bytes).or_else(|| self.all.try_reserve(bytes))?;
        Some(LaneReservation { _own: own, _counted: counted })
    }

    /// Reserves this many bytes as soon as they are free. `None` never happens.
    pub(crate) async fn reserve(&self, bytes: usize) -> Option<LaneReservation> {
        let own = self.own.reserve(bytes).await?;
        let counted = match self.try_guaranteed(bytes) {
            Some(counted) => Some(counted),
            None => tokio::select! {
                biased;
                counted = self.guaranteed.reserve(bytes), if is_guaranteed(bytes) => counted,
                counted = self.all.reserve(bytes) => counted,
            },
        };
        Some(LaneReservation { _own: own, _counted: counted? })
    }

    fn try_guaranteed(&self, bytes: usize) -> Option<Reservation> {
        if is_guaranteed(bytes) { self.guaranteed.try_reserve(bytes) } else { None }
    }
}

/// Returns true if a reply of this size may be one of those that are guaranteed.
fn is_guaranteed(bytes: usize) -> bool {
    bytes <= MAX_GUARANTEED_BYTES as usize
}
