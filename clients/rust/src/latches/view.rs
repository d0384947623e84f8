//! A latch as the service shows it.

use std::time::Duration;

use holdfast_proto::v1;

/// How a latch ended.
///
/// ```
/// use holdfast_client::LatchOutcome;
///
/// /// What the exit status of a program could be.
/// fn status(outcome: LatchOutcome) -> u8 {
///     match outcome {
///         LatchOutcome::Completed => 0,
///         LatchOutcome::Expired => 1,
///     }
/// }
/// assert_eq!(status(LatchOutcome::Expired), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchOutcome {
    /// All jobs are done.
    Completed,
    /// Not all were done in time.
    Expired,
}

/// The status of a latch. All but `Active` are final.
///
/// ```
/// assert_ne!(holdfast_client::LatchStatus::Active, holdfast_client::LatchStatus::Completed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LatchStatus {
    /// Jobs are missing.
    Active,
    /// All jobs are done.
    Completed,
    /// Not all were done in time.
    Expired,
    /// A status unknown to this version.
    Other,
}

/// A latch as the service shows it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::LatchStatus;
///
/// let latch = client.latch("demo", "nightly").description("all reports").create(3).await?;
/// latch.count_down("orders").await?;
/// let shown = latch.get().await?;
/// assert_eq!((shown.status, shown.done, shown.total), (LatchStatus::Active, 1, 3));
/// assert_eq!((shown.id, shown.description.as_str()), (latch.id().unwrap(), "all reports"));
/// assert!(shown.remaining.is_some());
/// assert_eq!(shown.waiters, Some(0), "nobody waits for it");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchView {
    /// The revision of its creation: one that is created again has another.
    pub id: u64,
    /// Its status.
    pub status: LatchStatus,
    /// How many jobs have to be done.
    pub total: u64,
    /// How many are done.
    pub done: u64,
    /// How long it stays active unless it is completed; `None` once its status is final.
    pub remaining: Option<Duration>,
    /// As given at its creation.
    pub description: String,
    /// How many others wait for it now; `None` while a new leader does not know it yet.
    pub waiters: Option<u64>,
}

impl From<v1::Latch> for LatchView {
    fn from(latch: v1::Latch) -> Self {
        let status = match latch.status() {
            v1::latch::Status::Active => LatchStatus::Active,
            v1::latch::Status::Completed => LatchStatus::Completed,
            v1::latch::Status::Expired => LatchStatus::Expired,
            v1::latch::Status::Unspecified => LatchStatus::Other,
        };
        Self {
            id: latch.id,
            status,
            total: latch.total,
            done: latch.done,
            remaining: latch.remaining_ms.map(Duration::from_millis),
            description: latch.description,
            waiters: latch.waiters,
        }
    }
}
