//! A leader's term.

use std::fmt;
use std::sync::Arc;

use super::{Candidate, checked};
use crate::one_shot::OneShotContention;
use crate::{ContentionError, MutexContender, MutexOwner};

/// A term of this process as leader, until the term ends. Dropping it resigns in the background.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_contention::ContentionError> {
/// # use holdfast_contention::{ContendOptions, ContentionFactory};
/// # let factory = ContentionFactory::in_process(ContendOptions::new(std::time::Duration::from_secs(2)))?;
/// use holdfast_contention::election::LeaderElection;
///
/// let election = LeaderElection::new(&factory, "reports");
/// let first = election.campaign_as("host-1", "http://10.0.0.1:8000").await?;
/// assert!(first.is_leader());
/// assert_eq!((first.election(), first.candidate_id()), ("reports", "host-1"));
/// let token = first.fencing_token();
/// first.resign().await?;
///
/// let second = election.campaign_as("host-2", "http://10.0.0.2:8000").await?;
/// assert!(second.fencing_token() > token);
/// # Ok(())
/// # }
/// ```
pub struct Leadership {
    candidate: Arc<Candidate>,
    contention: OneShotContention,
    term: MutexOwner,
}

impl Leadership {
    pub(super) fn new(candidate: Arc<Candidate>, contention: OneShotContention, term: MutexOwner) -> Self {
        Self { candidate, contention, term }
    }

    /// Returns the name of the election.
    pub fn election(&self) -> &str {
        self.candidate.mutex()
    }

    /// Returns the candidate id.
    pub fn candidate_id(&self) -> &str {
        self.candidate.contender_id()
    }

    /// Returns the fencing token of its term, greater than that of every earlier term.
    pub fn fencing_token(&self) -> u64 {
        self.term.fencing_token().unwrap_or_default()
    }

    /// Returns true while the term continues, by the clock. Once false, it stays false.
    pub fn is_leader(&self) -> bool {
        self.contention.is_owned(&self.term)
    }

    /// Completes when the term has ended.
    pub async fn lost(&self) {
        self.contention.lost(&self.term).await;
    }

    /// Publishes another value, of up to 1,000 bytes.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when it is too long, [`ContentionError::NotOwner`] when the term has ended,
    /// [`ContentionError::Store`] when there was no response: the next renewal then publishes it.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), ContentionError> {
        let value = checked(value.into())?;
        if !self.is_leader() {
            let (mutex, contender_id) = (self.election().to_owned(), self.candidate_id().to_owned());
            return Err(ContentionError::NotOwner { mutex, contender_id });
        }
        *self.candidate.value.lock() = value;
        self.contention.service().renew().await
    }

    /// Ends the term, so that the next candidate leads.
    ///
    /// # Errors
    /// [`ContentionError::Store`] when the release was not answered: the next leader may have to wait until this term's
    /// time is over.
    pub async fn resign(self) -> Result<(), ContentionError> {
        self.contention.end().await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Leadership").field("term", &self.term).finish_non_exhaustive()
    }
}
