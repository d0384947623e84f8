//! Observation of the leader.

use std::fmt;
use std::sync::Arc;

use futures::stream::{Stream, unfold};
use tokio::sync::watch;

use super::VALUE;
use crate::{ContentionError, MutexOwner, MutexRetrievalService, MutexRetriever, MutexState};

/// A leader as observers see it.
///
/// ```
/// use holdfast_contention::election::Leader;
///
/// fn where_to(leader: Option<&Leader>) -> &str {
///     leader.map_or("nobody leads", Leader::value)
/// }
/// # assert_eq!(where_to(None), "nobody leads");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    candidate_id: String,
    value: String,
    fencing_token: Option<u64>,
}

impl Leader {
    fn of(owner: &MutexOwner) -> Option<Self> {
        (!owner.is_none()).then(|| Self {
            candidate_id: owner.owner_id().to_owned(),
            value: owner.metadata().get(VALUE).cloned().unwrap_or_default(),
            fencing_token: owner.fencing_token(),
        })
    }

    /// Returns its candidate id.
    pub fn candidate_id(&self) -> &str {
        &self.candidate_id
    }

    /// Returns the value that it proclaimed last.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the fencing token of its term.
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }
}

/// Observes the leader until it is dropped. Changes of the leader are pushed; a newly proclaimed value is visible
/// within a second.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// # use holdfast_contention::{ContendOptions, ContentionFactory};
/// # let factory = ContentionFactory::in_process(ContendOptions::new(std::time::Duration::from_secs(2)))?;
/// use futures::StreamExt;
/// use holdfast_contention::election::{Leader, LeaderElection};
///
/// let election = LeaderElection::new(&factory, "reports");
/// let observation = election.observe()?;
/// assert_eq!(observation.leader(), None);
/// let mut leaders = Box::pin(observation.into_stream());
/// let leadership = election.campaign_as("host-1", "http://10.0.0.1:8000").await?;
/// let leader = leaders.next().await.expect("the stream does not end");
/// assert_eq!(leader.as_ref().map(Leader::candidate_id), Some("host-1"));
/// leadership.resign().await?;
/// assert_eq!(leaders.next().await, Some(None));
/// # Ok(())
/// # }
/// ```
pub struct Observation {
    /// Runs as long as this value exists.
    service: Arc<dyn MutexRetrievalService>,
    states: watch::Receiver<MutexState>,
    last_seen: Option<Leader>,
}

impl Observation {
    pub(super) fn start(service: Arc<dyn MutexRetrievalService>) -> Result<Self, ContentionError> {
        let states = service.states();
        service.start()?;
        Ok(Self { service, states, last_seen: None })
    }

    /// Returns the current leader, as far as is known here; `None` once its time is over.
    pub fn leader(&self) -> Option<Leader> {
        Some(self.service.after_owner()).filter(MutexOwner::has_owner).as_ref().and_then(Leader::of)
    }

    /// Completes when the leader differs from the last result, the leader is gone, or it proclaimed another value; the
    /// first time, when there is a leader. Dropping the future loses nothing. A slow caller sees the last change only.
    pub async fn changed(&mut self) -> Option<Leader> {
        loop {
            let leader = Leader::of(self.states.borrow_and_update().after());
            if leader != self.last_seen {
                self.last_seen.clone_from(&leader);
                return leader;
            }
            // The sender lives as long as the service, which this value owns.
            let _ = self.states.changed().await;
        }
    }

    /// Returns all changes, as a stream without end.
    pub fn into_stream(self) -> impl Stream<Item = Option<Leader>> + Send {
        unfold(self, |mut observation| async move { Some((observation.changed().await, observation)) })
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observation").field("leader", &self.leader()).finish_non_exhaustive()
    }
}

/// The election's name; the states carry the observed changes.
pub(super) struct Observer(pub(super) String);

impl MutexRetriever for Observer {
    fn mutex(&self) -> &str {
        &self.0
    }

    fn notify_owner(&self, _state: &MutexState) {}
}
