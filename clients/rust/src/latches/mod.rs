//! Latches: some report that jobs are done, others wait until all are.

mod view;
mod wait_group;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::latch::Ids;
use holdfast_proto::v1::wait_for_latch_response::Outcome;
use tonic::{Request, Response, Status};

use crate::calls::{CALL_TIMEOUT, call_again, call_once};
use crate::client::{AuthChannel, Client};
use crate::error::Result;
use crate::view::Path;
use v1::latches_service_client::LatchesServiceClient;

pub use view::{LatchOutcome, LatchStatus, LatchView};
pub use wait_group::{JobGuard, WaitGroup};

/// How long one call waits at the service. A gateway that stops ends it sooner.
const WAIT_PER_CALL: Duration = Duration::from_secs(60);

/// A latch: it counts jobs that are done, each once, and lets all who wait go on once all are. It has no owner, so
/// nothing of it ends with a process or a session; it expires if it is not completed in time.
///
/// From its first answer on, a `Latch` is about that one latch: once it was deleted and created again, calls fail with
/// `PRIMITIVE_NOT_FOUND`. Clones share that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::LatchOutcome;
///
/// let latch = client.latch("demo", "nightly").create(2).await?;
/// // In other processes, as often as they like:
/// assert!(client.latch("demo", "nightly").count_down("orders").await?);
/// assert!(!client.latch("demo", "nightly").count_down("orders").await?, "it counts once");
/// client.latch("demo", "nightly").count_down("invoices").await?;
/// assert_eq!(latch.wait().await?, LatchOutcome::Completed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Latch {
    client: Client,
    namespace: String,
    path: Path,
    terms: Terms,
    /// Known from the first answer on.
    id: Arc<OnceLock<u64>>,
}

/// What a creation sets besides the total.
#[derive(Clone, Debug, Default)]
struct Terms {
    indexed: bool,
    expires_in: Option<Duration>,
    retain: Option<Duration>,
    description: String,
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latch({} in {}, id {:?})", self.path, self.namespace, self.id())
    }
}

impl Latch {
    pub(crate) fn new(client: Client, namespace: String, path: Path) -> Self {
        Self { client, namespace, path, terms: Terms::default(), id: Arc::default() }
    }

    /// Makes [`Latch::create`] create a latch that counts indexes from 0 to its total - 1 instead of ids: it takes a
    /// bit for each, and whole ranges are counted at once.
    pub fn indexed(mut self) -> Self {
        self.terms.indexed = true;
        self
    }

    /// Sets how long a latch that [`Latch::create`] creates may take to complete, 1 s to 30 d; 24 h if unset.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.terms.expires_in = Some(time);
        self
    }

    /// Sets how long a latch that [`Latch::create`] creates is kept once it is completed or expired, 1 min to 30 d; 1 h
    /// if unset. Whoever asks later finds none, so it should exceed the longest pause of those who wait.
    pub fn retain(mut self, time: Duration) -> Self {
        self.terms.retain = Some(time);
        self
    }

    /// Sets the description of a latch that [`Latch::create`] creates.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.terms.description = text.into();
        self
    }

    /// Creates the latch of that many jobs, and returns it. A repeat with the same parameters returns the same latch.
    ///
    /// # Errors
    /// [`Error::Service`](crate::Error::Service) with `ALREADY_EXISTS` if there is one with other parameters.
    pub async fn create(&self, total: u64) -> Result<Self> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let message = v1::CreateLatchRequest {
            namespace: self.namespace.clone(),
            path: self.path.segments().to_vec(),
            total,
            ids: if self.terms.indexed { Ids::Indexed } else { Ids::Named }.into(),
            expires_in_ms: self.terms.expires_in.map(millis),
            retain_ms: self.terms.retain.map(millis),
            description: self.terms.description.clone(),
            ..Default::default()
        };
        let answer =
            self.call(message, |mut service, request| async move { service.create_latch(request).await }).await?;
        let created = Self { id: Arc::default(), ..self.clone() };
        created.learn(answer.latch.as_ref());
        Ok(created)
    }

    /// Returns the id of the latch, which its creation gave it; `None` before the first answer.
    pub fn id(&self) -> Option<u64> {
        self.id.get().copied()
    }

    /// Reports that a job is done. Returns whether this call was the first to report that, while the latch was active.
    /// `false` may mean that an earlier copy of this call counted, whose answer was lost.
    ///
    /// # Errors
    /// The service's error.
    pub async fn count_down(&self, id: impl Into<String>) -> Result<bool> {
        Ok(self.count_down_all([id]).await? > 0)
    }

    /// Reports that jobs are done, at most 100. Returns how many were not reported before; fewer if an earlier copy of
    /// this call counted them, whose answer was lost.
    ///
    /// # Errors
    /// The service's error.
    pub async fn count_down_all<S: Into<String>>(&self, ids: impl IntoIterator<Item = S>) -> Result<u64> {
        let ids = ids.into_iter().map(Into::into).collect();
        self.send_count_down(v1::CountDownRequest { ids, ..Default::default() }).await
    }

    /// Reports that the jobs of some indexes are done, for a latch that counts indexes: at most 100 ranges. Returns how
    /// many were not reported before, as [`Latch::count_down_all`].
    ///
    /// # Errors
    /// The service's error; `INVALID_ARGUMENT` for an index that is not below the total.
    pub async fn count_down_indexes(
        &self,
        ranges: impl IntoIterator<Item = std::ops::RangeInclusive<u64>>,
    ) -> Result<u64> {
        let range = |range: std::ops::RangeInclusive<u64>| v1::IndexRange { from: *range.start(), to: *range.end() };
        let ranges = ranges.into_iter().map(range).collect();
        self.send_count_down(v1::CountDownRequest { ranges, ..Default::default() }).await
    }

    /// Reports that a job is done, without a limit of time.
    async fn count_down_until_answered(&self, id: String) -> Result<()> {
        self.count_down_within(v1::CountDownRequest { ids: vec![id], ..Default::default() }, None).await.map(drop)
    }

    async fn send_count_down(&self, jobs: v1::CountDownRequest) -> Result<u64> {
        self.count_down_within(jobs, Some(CALL_TIMEOUT)).await
    }

    async fn count_down_within(&self, jobs: v1::CountDownRequest, within: Option<Duration>) -> Result<u64> {
        let (namespace, path) = (self.namespace.clone(), self.path.segments().to_vec());
        let message = v1::CountDownRequest { namespace, path, id: self.id(), ..jobs };
        let make = |request: Request<v1::CountDownRequest>| {
            let mut service = self.client.latches();
            async move { service.count_down(request).await }
        };
        let answer = call_again(message, Duration::ZERO, within, make).await?;
        self.learn(answer.latch.as_ref());
        Ok(answer.counted)
    }

    /// Sets how many jobs have to be done, unless that was changed since `if_total` was read, or the latch is completed
    /// or expired. Returns whether that is the total now, whoever set it: two who add jobs at the same time may both
    /// succeed with the same total, so exactly one producer raises it. A total equal to what is done completes the
    /// latch.
    ///
    /// # Errors
    /// The service's error; `INVALID_ARGUMENT` for a total below what is done.
    pub async fn set_total(&self, total: u64, if_total: Option<u64>) -> Result<bool> {
        let (namespace, path) = (self.namespace.clone(), self.path.segments().to_vec());
        let message =
            v1::SetLatchTotalRequest { namespace, path, id: self.id(), total, if_total, ..Default::default() };
        let answer =
            self.call(message, |mut service, request| async move { service.set_latch_total(request).await }).await?;
        self.learn(answer.latch.as_ref());
        Ok(answer.success)
    }

    /// Waits until the latch is completed or expired. Goes on while no gateway can be reached. While the id is unknown,
    /// it first makes a call that learns it and does not wait. Dropping the future ends the wait.
    ///
    /// # Errors
    /// The service's error; `PRIMITIVE_NOT_FOUND` if the latch is deleted meanwhile.
    pub async fn wait(&self) -> Result<LatchOutcome> {
        loop {
            if let Some(outcome) = self.wait_once(self.first_or(WAIT_PER_CALL), None).await? {
                return Ok(outcome);
            }
        }
    }

    /// Like [`Latch::wait`], with a timeout. Returns `None` if the latch is still active then.
    ///
    /// # Errors
    /// Like [`Latch::wait`], and [`Error::Unreachable`](crate::Error::Unreachable) if no gateway could be reached.
    pub async fn wait_timeout(&self, limit: Duration) -> Result<Option<LatchOutcome>> {
        let Some(deadline) = Instant::now().checked_add(limit) else { return self.wait().await.map(Some) };
        loop {
            let wait = deadline.saturating_duration_since(Instant::now()).min(WAIT_PER_CALL);
            let wait = self.first_or(wait);
            let outcome = self.wait_once(wait, Some(wait + CALL_TIMEOUT)).await?;
            if outcome.is_some() || Instant::now() >= deadline {
                return Ok(outcome);
            }
        }
    }

    /// Returns how long the next call waits: not at all while the id is unknown. A call that waits without an id whose
    /// answer is lost would wait for another latch of that name when it is made again.
    fn first_or(&self, wait: Duration) -> Duration {
        if self.id().is_some() { wait } else { Duration::ZERO }
    }

    async fn wait_once(&self, wait: Duration, within: Option<Duration>) -> Result<Option<LatchOutcome>> {
        let (namespace, path) = (self.namespace.clone(), self.path.segments().to_vec());
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let message = v1::WaitForLatchRequest { namespace, path, id: self.id(), wait_ms, ..Default::default() };
        let make = |request: Request<v1::WaitForLatchRequest>| {
            let mut service = self.client.latches();
            async move { service.wait_for_latch(request).await }
        };
        let answer = call_again(message, wait, within, make).await?;
        self.learn(answer.latch.as_ref());
        Ok(match answer.outcome() {
            Outcome::Completed => Some(LatchOutcome::Completed),
            Outcome::Expired => Some(LatchOutcome::Expired),
            Outcome::TimedOut | Outcome::Unspecified => None,
        })
    }

    /// Returns the latch as the service has it now.
    ///
    /// # Errors
    /// The service's error; `PRIMITIVE_NOT_FOUND` if there is none.
    pub async fn get(&self) -> Result<LatchView> {
        let (namespace, path) = (self.namespace.clone(), self.path.segments().to_vec());
        let message = v1::WaitForLatchRequest { namespace, path, id: self.id(), ..Default::default() };
        let answer =
            self.call(message, |mut service, request| async move { service.wait_for_latch(request).await }).await?;
        self.learn(answer.latch.as_ref());
        Ok(answer.latch.unwrap_or_default().into())
    }

    /// Deletes the latch. Whoever waits for it gets `PRIMITIVE_NOT_FOUND`. Made once: an error with a code that
    /// [is transient](crate::Error::is_transient) does not say whether it was done.
    ///
    /// # Errors
    /// The service's error.
    pub async fn delete(&self) -> Result<()> {
        let (namespace, path) = (self.namespace.clone(), self.path.segments().to_vec());
        let message = v1::DeleteLatchRequest { namespace, path, id: self.id(), ..Default::default() };
        let make = |request: Request<v1::DeleteLatchRequest>| {
            let mut service = self.client.latches();
            async move { service.delete_latch(request).await }
        };
        call_once(message, CALL_TIMEOUT, make).await.map(drop)
    }

    async fn call<M: Clone, A, F: Future<Output = Result<Response<A>, Status>>>(
        &self,
        message: M,
        make: impl Fn(LatchesServiceClient<AuthChannel>, Request<M>) -> F,
    ) -> Result<A> {
        call_again(message, Duration::ZERO, Some(CALL_TIMEOUT), |request| make(self.client.latches(), request)).await
    }

    fn learn(&self, latch: Option<&v1::Latch>) {
        if let Some(latch) = latch {
            self.id.get_or_init(|| latch.id);
        }
    }
}
