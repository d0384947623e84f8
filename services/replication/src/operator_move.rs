//! Leaderships that an operator has moved. Nobody returns them to the preferred leader as long as the same process runs
//! there: a node that was emptied for work on it stays empty.
//!
//! Every replica that runs at the time remembers it, so that whoever leads next knows, however the leadership gets there.
//! One that is restarted does not.

use std::time::Duration;

use futures::future::join_all;
use holdfast_proto::internal::Kind;
use serde::{Deserialize, Serialize};

use crate::group::Group;

/// Timeout of telling the other replicas. One that is not told may return the leadership later.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_millis(500);

/// An operator's order about the leadership of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorMove {
    /// The term of the leader that it was taken from.
    pub term: u64,
    /// The run of the preferred leader's process at the time; 0 if the leadership went to that one, and earlier orders
    /// are over.
    pub run: u64,
}

impl Group {
    /// Tells all replicas that an operator has moved the leadership.
    pub async fn announce_move(&self, moved: OperatorMove) {
        self.record_move(moved);
        let others = self.locations();
        let tell = async |to: u64| {
            if self.query_peer(to, Kind::LeaderMoved, &moved, ANNOUNCEMENT_TIMEOUT).await.is_none() {
                tracing::debug!(group = self.id(), to, "no reply to leadership move announcement");
            }
        };
        join_all(others.keys().filter(|other| **other != self.replica()).map(|other| tell(*other))).await;
    }

    /// Records that an operator moved the leadership. The latest move counts.
    pub(crate) fn record_move(&self, moved: OperatorMove) {
        let mut latest = self.latest_move().lock();
        if latest.is_none_or(|known| known.term <= moved.term) {
            *latest = Some(moved);
        }
    }

    /// Returns true if the leadership stays away from the preferred leader as long as its process is this run.
    pub fn stays_away_from(&self, run: u64) -> bool {
        self.latest_move().lock().is_some_and(|moved| moved.run != 0 && moved.run == run)
    }
}
