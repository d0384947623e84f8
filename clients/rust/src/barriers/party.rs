//! What both kinds of barriers share: arrivals, and the knowledge of the next generation.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::barrier_answer::Outcome;
use holdfast_proto::v1::server_message::Tripped;
use tokio::time::{Instant, timeout_at};
use tonic::Request;

use super::Met;
use crate::calls::{CALL_TIMEOUT, call_again};
use crate::error::{Error, Result};
use crate::locks::default_owner;
use crate::session::Session;
use crate::session::arrival::ArrivalGuard;
use crate::session::table::ArrivalRequest;
use crate::view::Path;

/// How long one call waits at the service. A gateway that stops ends it sooner.
const WAIT_PER_CALL: Duration = Duration::from_secs(60);
const NOT_FOUND: &str = "PRIMITIVE_NOT_FOUND";

/// One who meets others at a barrier.
#[derive(Clone)]
pub(super) struct Party {
    session: Session,
    path: Path,
    pub(super) parties: Option<u32>,
    /// The owner; if unset, one of its own for each arrival.
    pub(super) owner: Option<Arc<str>>,
    is_double: bool,
    /// The generation to arrive in; 0 before the first answer.
    next: Arc<AtomicU64>,
}

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}", self.path, self.session)
    }
}

impl Party {
    pub(super) fn new(session: Session, path: Path, is_double: bool) -> Self {
        Self { session, path, parties: None, owner: None, is_double, next: Arc::default() }
    }

    /// Arrives, and waits for the end of its generation, for a time if one is given. Returns the arrival too, if it
    /// goes on inside a double barrier.
    pub(super) async fn meet(&self, limit: Option<Duration>) -> Result<(Met, Option<ArrivalGuard>)> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let generation = Some(self.next.load(Ordering::Acquire)).filter(|next| *next > 0);
            let mut arrival = self.session.inner().arrive(self.request(generation))?;
            let (answer, arrival) = match within(deadline, arrival.met()).await {
                Some(Ok(answer)) => (answer, Some(arrival)),
                // The barrier is gone, and with it its generations. It is made anew.
                Some(Err(error)) if error.code() == Some(NOT_FOUND) && self.remove(generation) => continue,
                Some(Err(error)) => return Err(error),
                // Which came first, the last arrival or the end of this one, the service decides.
                None => (arrival.leave().await?, None),
            };
            self.next.fetch_max(answer.next_generation, Ordering::AcqRel);
            let timed_out = Error::TimedOut(limit.unwrap_or_default());
            match (answer.outcome(), arrival) {
                (Outcome::Full, Some(_)) => self.wait_for_end(answer.generation, deadline, &timed_out).await?,
                (Outcome::Tripped, None) if !self.is_double => return met(&answer).map(|met| (met, None)),
                (_, None) => return Err(timed_out),
                (_, Some(arrival)) => return met(&answer).map(|met| (met, Some(arrival).filter(|_| self.is_double))),
            }
        }
    }

    fn request(&self, generation: Option<u64>) -> ArrivalRequest {
        ArrivalRequest {
            owner: self.owner.clone().unwrap_or_else(new_owner),
            path: self.path.clone(),
            generation,
            parties: self.parties,
            is_double: self.is_double,
        }
    }

    /// Forgets a generation of a barrier that is gone. Returns whether it may be made anew.
    fn remove(&self, generation: Option<u64>) -> bool {
        let Some(generation) = generation.filter(|_| self.parties.is_some()) else { return false };
        // Another answer may have told of a newer one.
        let _ = self.next.compare_exchange(generation, 0, Ordering::AcqRel, Ordering::Acquire);
        true
    }

    /// Waits for the end of a generation that needs no further party.
    async fn wait_for_end(&self, generation: u64, deadline: Option<Instant>, timed_out: &Error) -> Result<()> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(timed_out.clone());
            }
            let wait = left.unwrap_or(WAIT_PER_CALL).min(WAIT_PER_CALL);
            let message = v1::WaitAtBarrierRequest {
                namespace: self.session.namespace().to_owned(),
                path: self.path.segments().to_vec(),
                generation,
                wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                ..Default::default()
            };
            let make = |request: Request<v1::WaitAtBarrierRequest>| {
                let mut service = self.session.client().barriers();
                async move { service.wait_at_barrier(request).await }
            };
            let within = left.map(|left| left + CALL_TIMEOUT);
            match call_again(message, wait, within, make).await {
                Ok(answer) if answer.outcome() == Outcome::Waiting => {}
                Ok(answer) => {
                    self.next.fetch_max(answer.next_generation, Ordering::AcqRel);
                    return Ok(());
                }
                Err(error) if error.code() == Some(NOT_FOUND) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns what a party is told of its generation.
fn met(answer: &Tripped) -> Result<Met> {
    let generation = answer.generation;
    match (answer.outcome(), answer.ended()) {
        (Outcome::Tripped, _) => Ok(Met { index: answer.index, generation }),
        (Outcome::Broken, _) | (Outcome::Past, Outcome::Broken) => Err(Error::Broken { generation }),
        _ => Err(Error::Missed { generation }),
    }
}

/// Waits until that instant at the latest.
async fn within<T>(deadline: Option<Instant>, answer: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, answer).await.ok(),
        None => Some(answer.await),
    }
}

/// Returns an owner that nobody else on the session has.
fn new_owner() -> Arc<str> {
    static ARRIVALS: AtomicU64 = AtomicU64::new(1);
    format!("{}:{}", default_owner(), ARRIVALS.fetch_add(1, Ordering::Relaxed)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_a_meeting_or_an_error() {
        let told = |outcome: Outcome, ended: Option<Outcome>| {
            let (outcome, ended) = (outcome.into(), ended.map(Into::into));
            met(&Tripped { outcome, ended, generation: 7, index: Some(0), ..Default::default() })
        };
        let first = told(Outcome::Tripped, None).unwrap();
        assert_eq!((first, first.is_first()), (Met { index: Some(0), generation: 7 }, true));
        assert_eq!(told(Outcome::Broken, None), Err(Error::Broken { generation: 7 }));
        assert_eq!(told(Outcome::Past, Some(Outcome::Broken)), Err(Error::Broken { generation: 7 }));
        assert_eq!(told(Outcome::Past, Some(Outcome::Tripped)), Err(Error::Missed { generation: 7 }));
        assert_eq!(told(Outcome::Left, None), Err(Error::Missed { generation: 7 }));
    }

    #[test]
    fn each_arrival_has_an_owner_of_its_own() {
        assert_ne!(new_owner(), new_owner());
    }
}
