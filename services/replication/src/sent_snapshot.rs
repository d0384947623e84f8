//! The snapshot that a replica is sending. Whoever is sent one gets the same again after an interruption, though newer
//! ones are saved meanwhile, so that it goes on where it was.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::types::{LogId, Snapshot, SnapshotData, SnapshotMeta};

/// How long a snapshot is sent before a newer one takes its place. What the receiver has of it counts for that, too, as
/// far as parts are the same.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The snapshot that is being sent, if there is one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct SentSnapshot(Arc<Mutex<Option<Transfer>>>);

struct Transfer {
    snapshot: Snapshot,
    since: Instant,
}

impl fmt::Debug for SentSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentSnapshot").finish_non_exhaustive()
    }
}

impl SentSnapshot {
    /// Records that this snapshot is being sent.
    pub(crate) fn begin(&self, meta: &SnapshotMeta, data: &SnapshotData) {
        let mut sent = self.0.lock();
        if sent.as_ref().is_none_or(|sent| sent.snapshot.meta.last_log_id != meta.last_log_id) {
            // Without a reference to itself, which would keep it forever.
            let data = SnapshotData { sent: Self::default(), ..data.clone() };
            let snapshot = Snapshot { meta: meta.clone(), snapshot: data };
            *sent = Some(Transfer { snapshot, since: Instant::now() });
        }
    }

    /// Records that the snapshot up to this entry was sent: the next one may be newer.
    pub(crate) fn end(&self, last: Option<LogId>) {
        self.0.lock().take_if(|sent| sent.snapshot.meta.last_log_id == last);
    }

    /// Forgets a snapshot that was being sent for long: it need not be stored any more.
    pub(crate) fn expire(&self) {
        self.0.lock().take_if(|sent| sent.since.elapsed() >= MAX_AGE);
    }

    /// Returns the snapshot that is being sent.
    pub(crate) fn get(&self) -> Option<Snapshot> {
        self.expire();
        let mut snapshot = self.0.lock().as_ref()?.snapshot.clone();
        snapshot.snapshot.sent = self.clone();
        Some(snapshot)
    }
}
