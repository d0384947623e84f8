//! Barriers: so many meet and go on together, again and again.

mod double;
mod party;

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::session::Session;
use crate::view::Path;
use party::Party;

pub use double::{DoubleBarrier, Inside, Left};

/// The end of a generation for which all came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The place among those who met, in order of arrival from 0. `None` if the service no longer knows it, after this
    /// client had been cut off for long.
    pub index: Option<u32>,
    /// The generation: it rises, and is the same for all who met.
    pub generation: u64,
}

impl Met {
    /// Returns whether this is the first of those who met: the one to do what only one of them should.
    pub fn is_first(&self) -> bool {
        self.index == Some(0)
    }
}

/// A barrier: `parties` meet and go on together, again and again. Whether all came is decided once, for all of them.
///
/// Each wait is a party of its own, also by the same task. From its first answer on, a `Barrier` knows which generation
/// comes next and arrives in that one; clones share this. A party that comes after its generation was broken is told so
/// like the others ([`Error::Broken`](crate::Error::Broken)), and its next wait is for the present generation.
///
/// A wait that is dropped leaves, which breaks its generation for the others; so does a session that ends. Only a
/// barrier that somebody configured with `on_loss: WITHDRAW` goes on gathering without it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// # let other = client.session("demo").open().await?;
/// // Nobody configured it: who uses it says how many meet. The other one is in another process.
/// let rounds = session.barrier("rounds").parties(2);
/// let others = other.barrier("rounds").parties(2);
/// for round in 0..3 {
///     let (mine, theirs) = tokio::try_join!(rounds.wait(), others.wait())?;
///     assert_eq!(mine.generation, theirs.generation, "round {round}");
///     assert_ne!(mine.is_first(), theirs.is_first());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Barrier {
    party: Party,
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Barrier({:?})", self.party)
    }
}

impl Barrier {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { party: Party::new(session, path, false) }
    }

    /// Sets how many meet, 1 to 1,000, if nobody configured the barrier. All who use it must say the same; of a
    /// configured one the figure is ignored.
    pub fn parties(mut self, parties: u32) -> Self {
        self.party.parties = Some(parties);
        self
    }

    /// Sets the owner that the service shows, 1 to 128 bytes. Two waits of one owner on a session at the same time
    /// would be one party, so the second is refused.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.party.owner = Some(owner.as_ref().into());
        self
    }

    /// Arrives, and waits for the others, without a timeout. Dropping the future leaves.
    ///
    /// # Errors
    /// [`Error::Broken`](crate::Error::Broken) when somebody left before all had come;
    /// [`Error::Missed`](crate::Error::Missed) when the others went on without this party;
    /// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) for an owner that waits here already;
    /// [`Error::Service`](crate::Error::Service) with `PRIMITIVE_NOT_FOUND` when nobody configured the barrier and
    /// [`Barrier::parties`] is not set, with `INVALID_ARGUMENT` when others say another number;
    /// [`Error::SessionEnded`](crate::Error::SessionEnded).
    pub async fn wait(&self) -> Result<Met> {
        self.party.meet(None).await.map(|(met, _)| met)
    }

    /// Like [`Barrier::wait`], with a timeout. If all came before the service learned that this party had enough, it
    /// has met them, and is told so. For that answer it may take longer.
    ///
    /// # Errors
    /// Like [`Barrier::wait`], and [`Error::TimedOut`](crate::Error::TimedOut): it has left.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<Met> {
        self.party.meet(Some(limit)).await.map(|(met, _)| met)
    }
}
