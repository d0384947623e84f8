//! Leader election among candidates, with a value that all observers see.
//!
//! An election is a mutex: the leader is its owner, and the value is in the metadata of its ownership. A term ends with
//! the ownership; a former leader must campaign again.

mod leadership;
mod observation;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

pub use leadership::Leadership;
pub use observation::{Leader, Observation};

use crate::one_shot::OneShotContention;
use crate::{
    ContenderIdGenerator, ContentionError, ContentionFactory, MutexContender, MutexRetrievalServiceFactory, MutexState,
};

/// The metadata key of the value.
const VALUE: &str = "value";
/// The longest value, in bytes; the metadata of a hold has slightly more capacity.
const MAX_VALUE_BYTES: usize = 1_000;

/// An election in which a process may campaign, and which it may observe.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, ContentionFactory};
/// use holdfast_contention::election::LeaderElection;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let election = LeaderElection::new(&factory, "reports");
///
/// let leadership = election.campaign("http://10.0.0.1:8000").await?;
/// let mut observation = election.observe()?;
/// let leader = observation.changed().await.expect("somebody leads");
/// assert_eq!((leader.value(), leader.fencing_token()), ("http://10.0.0.1:8000", Some(leadership.fencing_token())));
///
/// leadership.proclaim("http://10.0.0.1:9000").await?;
/// assert_eq!(observation.changed().await.expect("somebody leads").value(), "http://10.0.0.1:9000");
///
/// leadership.resign().await?;
/// assert_eq!(observation.changed().await, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LeaderElection {
    factory: ContentionFactory,
    name: String,
}

impl LeaderElection {
    /// Creates the election with this name, 1 to 128 bytes. It does nothing yet.
    pub fn new(factory: &ContentionFactory, name: impl Into<String>) -> Self {
        Self { factory: factory.clone(), name: name.into() }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until this process is the leader, with a value of up to 1,000 bytes for observers. Candidates become
    /// leaders in the order in which they started to campaign. Dropping the future ends the campaign.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name or the value is too long, [`ContentionError::Store`] when the service
    /// rejects the request, [`ContentionError::NoRuntime`] outside of a runtime.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, ContentionError> {
        self.campaign_as(ContenderIdGenerator::HOST.generate(), value).await
    }

    /// The same with the given id, which must be unique among candidates.
    ///
    /// # Errors
    /// As for [`LeaderElection::campaign`]; the id may be invalid, too.
    pub async fn campaign_as(
        &self,
        candidate_id: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Leadership, ContentionError> {
        let candidate = Arc::new(Candidate {
            election: self.name.clone(),
            candidate_id: candidate_id.into(),
            value: Mutex::new(checked(value.into())?),
        });
        let contention = OneShotContention::new(&self.factory, Arc::clone(&candidate) as Arc<dyn MutexContender>)?;
        let term = contention.acquire().await?;
        Ok(Leadership::new(candidate, contention, term))
    }

    /// Observes the leader from now on. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name is too long, [`ContentionError::NoRuntime`] outside of a runtime.
    pub fn observe(&self) -> Result<Observation, ContentionError> {
        let service = self.factory.create_retrieval_service(Arc::new(observation::Observer(self.name.clone())))?;
        Observation::start(service)
    }
}

/// Contends for one term.
struct Candidate {
    election: String,
    candidate_id: String,
    value: Mutex<String>,
}

impl MutexContender for Candidate {
    fn mutex(&self) -> &str {
        &self.election
    }

    fn contender_id(&self) -> &str {
        &self.candidate_id
    }

    fn on_acquired(&self, _state: &MutexState) {}

    fn on_released(&self, _state: &MutexState) {}

    fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(VALUE.to_owned(), self.value.lock().clone())])
    }
}

fn checked(value: String) -> Result<String, ContentionError> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(value);
    }
    let why = format!("it has {} bytes, and {MAX_VALUE_BYTES} are the most", value.len());
    Err(ContentionError::Invalid { what: "the value of a leader", why })
}
