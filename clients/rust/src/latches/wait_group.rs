//! A wait group: guards that report the end of their jobs when they are dropped.

use tokio::runtime::Handle;

use super::{Latch, LatchOutcome};
use crate::error::Result;

/// A [`Latch`] whose jobs have no names: each gets a guard that reports its end. More jobs: [`Latch::set_total`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::{LatchOutcome, WaitGroup};
///
/// let group = WaitGroup::new(client.latch("demo", "import").create(2).await?);
/// for file in ["a", "b"] {
///     let job = group.done_on_drop();
///     tokio::spawn(async move {
///         println!("importing {file}");
///         drop(job);
///     });
/// }
/// assert_eq!(group.wait().await?, LatchOutcome::Completed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WaitGroup {
    latch: Latch,
}

impl WaitGroup {
    /// Returns the group of a latch that counts ids.
    pub fn new(latch: Latch) -> Self {
        Self { latch }
    }

    /// Returns the latch.
    pub fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Returns the guard of one of the jobs.
    pub fn done_on_drop(&self) -> JobGuard {
        JobGuard { latch: self.latch.clone(), id: Some(format!("{:032x}", rand::random::<u128>())) }
    }

    /// Waits until all jobs are done, or the latch expires.
    ///
    /// # Errors
    /// As [`Latch::wait`].
    pub async fn wait(&self) -> Result<LatchOutcome> {
        self.latch.wait().await
    }
}

/// A job of a [`WaitGroup`]. It is done when the guard is dropped, also by a panic; if its process dies, it never is,
/// and the latch expires.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::WaitGroup;
///
/// let group = WaitGroup::new(client.latch("demo", "import").create(1).await?);
/// let job = group.done_on_drop();
/// // Instead of a drop, to learn that it was counted:
/// job.done().await?;
/// assert_eq!(group.latch().get().await?.done, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is not kept is done at once"]
pub struct JobGuard {
    latch: Latch,
    /// `None` once it was reported.
    id: Option<String>,
}

impl JobGuard {
    /// Reports that the job is done, and waits until that is counted.
    ///
    /// # Errors
    /// The service's error. Then the job may not have been counted, and is reported again in the background.
    pub async fn done(mut self) -> Result<()> {
        let Some(id) = self.id.clone() else { return Ok(()) };
        self.latch.count_down(id).await?;
        self.id = None;
        Ok(())
    }
}

impl Drop for JobGuard {
    /// Reports in the background, until the report is answered: an error is final unless it
    /// [is transient](crate::Error::is_transient). Outside of a runtime nothing can be reported.
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), Handle::try_current()) else { return };
        let latch = self.latch.clone();
        runtime.spawn(async move {
            if let Err(error) = latch.count_down_until_answered(id).await {
                tracing::warn!(%error, ?latch, "the end of a job could not be reported");
            }
        });
    }
}
