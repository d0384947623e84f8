//! Double barriers: those who met also leave together.

use std::fmt;
use std::time::Duration;

use holdfast_proto::v1::barrier_answer::Outcome;

use super::Met;
use super::party::Party;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::arrival::ArrivalGuard;
use crate::view::Path;

/// A double barrier: `parties` enter together, and leave together. While some of one generation are inside, the next
/// one gathers, and enters once all have left.
///
/// As at a [`Barrier`](crate::Barrier), each entry is a party of its own, one that is dropped while it gathers breaks
/// its generation, and one party too many waits for a later generation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// # let other = client.session("demo").open().await?;
/// // The other one is in another process.
/// let phase = session.double_barrier("phase").parties(2);
/// let others = other.double_barrier("phase").parties(2);
/// let (mine, theirs) = tokio::try_join!(phase.enter(), others.enter())?;
/// // Both work, and neither goes on before both are done.
/// let (left, _) = tokio::try_join!(phase.leave(mine), others.leave(theirs))?;
/// assert_eq!(left.lost, 0, "nobody died inside");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DoubleBarrier {
    party: Party,
}

impl fmt::Debug for DoubleBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DoubleBarrier({:?})", self.party)
    }
}

impl DoubleBarrier {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { party: Party::new(session, path, true) }
    }

    /// Sets how many meet, 1 to 1,000, if nobody configured the barrier. All who use it must say the same; of a
    /// configured one the figure is ignored.
    pub fn parties(mut self, parties: u32) -> Self {
        self.party.parties = Some(parties);
        self
    }

    /// Sets the owner that the service shows, 1 to 128 bytes. It can be inside only once at a time on a session.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.party.owner = Some(owner.as_ref().into());
        self
    }

    /// Arrives, and waits until all have come and nobody of an earlier generation is inside, without a timeout.
    /// Dropping the future leaves.
    ///
    /// # Errors
    /// Those of [`Barrier::wait`](crate::Barrier::wait).
    pub async fn enter(&self) -> Result<Inside> {
        self.enter_within(None).await
    }

    /// Like [`DoubleBarrier::enter`], with a timeout. If all came before the service learned that this party had
    /// enough, it was inside for that moment, and has left.
    ///
    /// # Errors
    /// Like [`DoubleBarrier::enter`], and [`Error::TimedOut`].
    pub async fn enter_timeout(&self, limit: Duration) -> Result<Inside> {
        self.enter_within(Some(limit)).await
    }

    async fn enter_within(&self, limit: Option<Duration>) -> Result<Inside> {
        let (met, arrival) = self.party.meet(limit).await?;
        let arrival = arrival.ok_or(Error::Missed { generation: met.generation })?;
        Ok(Inside { met, arrival })
    }

    /// Leaves, and waits until all have left, without a timeout. Those who die inside count as having left. If the
    /// future is dropped, this party has left nevertheless.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], and the service's error.
    pub async fn leave(&self, inside: Inside) -> Result<Left> {
        let generation = inside.met.generation;
        let answer = inside.arrival.leave().await?;
        match answer.outcome() {
            Outcome::Left => Ok(Left { generation, lost: answer.lost.unwrap_or_default() }),
            _ => Err(Error::Missed { generation }),
        }
    }
}

/// A party inside a double barrier. When it is dropped, it leaves, and does not wait for the others.
#[must_use = "whoever is not kept leaves at once"]
pub struct Inside {
    met: Met,
    arrival: ArrivalGuard,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inside({:?})", self.met)
    }
}

impl Inside {
    /// Returns how it met the others.
    pub fn met(&self) -> Met {
        self.met
    }
}

/// The end of a stay inside a double barrier: all have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The generation that was inside.
    pub generation: u64,
    /// How many did not leave by themselves: their session ended, or their time was over.
    pub lost: u32,
}
