//! The task that contends: becomes the owner, renews the ownership, and releases it.
//!
//! Invariant: a contender notified of its ownership is the only owner until the reported instant. The instant is
//! counted from before the call that the service answered, and lies slightly early.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder, Retryable};
use holdfast_client::{Error, Result};
use holdfast_clock::with_drift_margin;
use tokio::sync::{mpsc, oneshot};

use crate::contender::MutexContender;
use crate::error::ContentionError;
use crate::lifecycle::TaskContext;
use crate::options::{ContendOptions, Pacing};
use crate::owner::MutexOwner;
use crate::owner_view::owner_from_holding;
use crate::period::ContendPeriod;
use crate::store::{AcquireMutex, Acquisition, MutexStore};
use crate::timestamp::Timestamp;

/// A waiting contender polls at least this often, so that it knows the current owner.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest and longest delay after failed calls.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Number of retries of a release.
const RELEASE_RETRIES: usize = 3;
/// Timeout of a release, including retries.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(6);

/// A request to renew at once, and the sender for its result.
pub(crate) type RenewRequest = oneshot::Sender<std::result::Result<(), ContentionError>>;

pub(crate) struct Contention {
    pub(crate) context: TaskContext,
    pub(crate) contender: Arc<dyn MutexContender>,
    pub(crate) store: Arc<dyn MutexStore>,
    pub(crate) options: ContendOptions,
    pub(crate) renewals: mpsc::Receiver<RenewRequest>,
}

/// An ownership confirmed by the service.
struct Grant {
    fencing_token: u64,
    acquired_at: Timestamp,
    /// When the confirming call was sent.
    sent_at: Timestamp,
}

/// When to renew an ownership, and when it ends unless renewed.
struct EndSignals {
    renew_at: Timestamp,
    owned_until: Timestamp,
    ttl_at: Timestamp,
    transition_at: Timestamp,
}

impl Contention {
    /// Contends until it is asked to stop, and leaves nothing behind.
    pub(crate) async fn run(mut self) -> Result<()> {
        let stop = self.context.stop.clone();
        if stop.run_until_cancelled(tokio::time::sleep(self.options.initial_delay)).await.is_some() {
            while let Some(grant) = self.acquire().await {
                if self.renew_until_lost(grant).await.is_none() {
                    break;
                }
            }
        }
        self.release().await
    }

    /// Becomes the owner. Returns `None` if it is asked to stop before.
    async fn acquire(&mut self) -> Option<Grant> {
        let period = ContendPeriod::new(self.contender.contender_id());
        let mut pauses = backoff();
        let mut wait = Duration::ZERO;
        loop {
            let asked_at = Timestamp::now();
            let pause = match self.call_store(self.request(wait, None)).await? {
                Ok(Acquisition::Granted { fencing_token }) => {
                    match self.confirm(fencing_token, asked_at, wait).await? {
                        // A response may arrive so late that the ownership has ended, and another contender has it.
                        Ok(Some(grant)) if Timestamp::now() < self.end_signals(&grant).owned_until => {
                            return Some(grant);
                        }
                        Ok(_) => Duration::ZERO,
                        Err(error) => self.on_failure(&error, &mut pauses),
                    }
                }
                Ok(Acquisition::NotGranted { holding }) => {
                    let now = Timestamp::now();
                    let owner = owner_from_holding(holding, self.options.transition, now);
                    // An owner with this very id that the store does not identify with this contender is another
                    // contender's.
                    let is_clash = owner.is_owner(self.contender.contender_id());
                    let is_quick = !wait.is_zero() && now.since(asked_at) < MIN_RETRY_DELAY;
                    let pause = match self.options.pacing {
                        Pacing::Poll => next_poll_delay(&period, &owner, now),
                        Pacing::Push if is_clash || is_quick => next_backoff(&mut pauses),
                        Pacing::Push => Duration::ZERO,
                    };
                    if self.options.pacing == Pacing::Push {
                        wait = self.options.ttl.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
                    }
                    self.context.publish(if is_clash { MutexOwner::NONE } else { owner }, None);
                    pause
                }
                Err(error) => self.on_failure(&error, &mut pauses),
            };
            self.back_off(pause).await?;
        }
    }

    /// Confirms a grant after a wait: the grant may be older than its response, so it counts from a renewal. Returns
    /// `None` if the grant is gone.
    async fn confirm(
        &mut self,
        fencing_token: u64,
        sent_at: Timestamp,
        wait: Duration,
    ) -> Option<Result<Option<Grant>>> {
        if wait.is_zero() {
            return Some(Ok(Some(Grant { fencing_token, acquired_at: sent_at, sent_at })));
        }
        let sent_at = Timestamp::now();
        let answer = self.call_store(self.request(Duration::ZERO, Some(fencing_token))).await?;
        Some(answer.map(|acquisition| match acquisition {
            Acquisition::Granted { fencing_token } => Some(Grant { fencing_token, acquired_at: sent_at, sent_at }),
            Acquisition::NotGranted { .. } => None,
        }))
    }

    /// Stays the owner as long as renewals are answered in time. Returns `None` when it is asked to stop.
    async fn renew_until_lost(&mut self, mut grant: Grant) -> Option<()> {
        let mut renew_at = self.publish_grant(&grant);
        let mut asked_for = None;
        let mut pauses = backoff();
        let stop = self.context.stop.clone();
        loop {
            let until = self.context.owned_until();
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = renew_at.min(until).reached() => {}
                Some(renewal) = self.renewals.recv() => asked_for = Some(renewal),
            }
            if Timestamp::now() >= until {
                tracing::warn!(mutex = self.contender.mutex(), "the ownership was not renewed in time");
                self.lose(asked_for);
                return Some(());
            }
            let asked_at = Timestamp::now();
            let request = self.request(Duration::ZERO, Some(grant.fencing_token));
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                answer = self.store.acquire(&request) => answer,
                // A later response is useless.
                () = until.reached() => continue,
            };
            match answer {
                Ok(Acquisition::Granted { .. }) if Timestamp::now() < until => {
                    grant.sent_at = asked_at;
                    renew_at = self.publish_grant(&grant);
                    pauses = self::backoff();
                    self.context.record_result(None);
                    reply_renewal(asked_for.take(), Ok(()));
                }
                // The ownership ended in between, which the loop detects above.
                Ok(Acquisition::Granted { .. }) => {}
                Ok(Acquisition::NotGranted { .. }) => {
                    tracing::warn!(mutex = self.contender.mutex(), "the ownership was taken away");
                    self.lose(asked_for);
                    return Some(());
                }
                Err(error) => {
                    renew_at = Timestamp::now() + self.on_failure(&error, &mut pauses);
                    reply_renewal(asked_for.take(), Err(error.into()));
                }
            }
        }
    }

    /// Publishes a confirmed ownership. Returns when to renew it.
    fn publish_grant(&self, grant: &Grant) -> Timestamp {
        let ends = self.end_signals(grant);
        let id = self.contender.contender_id();
        let owner = MutexOwner::new(id, grant.acquired_at, ends.ttl_at, ends.transition_at)
            .with_fencing_token(grant.fencing_token)
            .with_metadata(self.metadata());
        self.context.publish(owner, Some(ends.owned_until));
        ends.renew_at
    }

    fn end_signals(&self, grant: &Grant) -> EndSignals {
        let ContendOptions { ttl, transition, pacing, .. } = self.options;
        let ttl_at = grant.sent_at + with_drift_margin(ttl);
        let (renew_at, owned_until) = match pacing {
            Pacing::Push => (grant.sent_at + ttl / 3, ttl_at),
            Pacing::Poll => (ttl_at, ttl_at + with_drift_margin(transition) / 2),
        };
        EndSignals { renew_at, owned_until, ttl_at, transition_at: grant.sent_at + with_drift_margin(ttl + transition) }
    }

    fn lose(&mut self, asked_for: Option<RenewRequest>) {
        self.context.publish(MutexOwner::NONE, None);
        reply_renewal(asked_for, Err(self.not_owner()));
        while let Ok(renewal) = self.renewals.try_recv() {
            reply_renewal(Some(renewal), Err(self.not_owner()));
        }
    }

    fn not_owner(&self) -> ContentionError {
        let (mutex, contender_id) = (self.contender.mutex().to_owned(), self.contender.contender_id().to_owned());
        ContentionError::NotOwner { mutex, contender_id }
    }

    /// Publishes that there is no owner, and releases the mutex only after the listener has been notified.
    async fn release(self) -> Result<()> {
        self.context.end().await;
        // Also sent if the ownership is unconfirmed: a response may have been lost.
        let release = || self.store.release(self.contender.mutex(), self.contender.contender_id());
        let retries = ExponentialBuilder::default().with_min_delay(MIN_RETRY_DELAY).with_max_times(RELEASE_RETRIES);
        let released = tokio::time::timeout(RELEASE_TIMEOUT, release.retry(retries).when(Error::is_transient)).await;
        let unanswered =
            || Error::Unreachable(format!("no answer to a release within {} ms", RELEASE_TIMEOUT.as_millis()));
        released.unwrap_or_else(|_| Err(unanswered())).map(drop)
    }

    /// Calls the store. Returns `None` if it is asked to stop meanwhile. It cancels a waiting call, and awaits the
    /// response of any other call, so that nothing happens after the following release.
    async fn call_store(&mut self, request: AcquireMutex) -> Option<Result<Acquisition>> {
        let stop = self.context.stop.clone();
        if stop.is_cancelled() {
            return None;
        }
        let mut call = self.store.acquire(&request);
        let refuse = reject_all(&mut self.renewals, &self.contender);
        tokio::select! {
            biased;
            answer = &mut call => {
                if answer.is_ok() {
                    self.context.record_result(None);
                }
                return Some(answer);
            }
            () = stop.cancelled() => {}
            () = refuse => {}
        }
        if request.wait.is_zero() {
            // A release follows, whatever the response.
            let _ = call.await;
        }
        None
    }

    async fn back_off(&mut self, pause: Duration) -> Option<()> {
        let stop = self.context.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = tokio::time::sleep(pause) => Some(()),
            () = reject_all(&mut self.renewals, &self.contender) => None,
        }
    }

    fn request(&self, wait: Duration, fencing_token: Option<u64>) -> AcquireMutex {
        AcquireMutex {
            mutex: self.contender.mutex().to_owned(),
            contender_id: self.contender.contender_id().to_owned(),
            ttl: self.options.ttl,
            transition: self.options.transition,
            wait,
            fencing_token,
            metadata: self.metadata(),
        }
    }

    /// Returns the contender's metadata. If that panics, the contender contends without metadata.
    fn metadata(&self) -> BTreeMap<String, String> {
        catch_unwind(AssertUnwindSafe(|| self.contender.metadata())).unwrap_or_else(|_| {
            tracing::error!(mutex = self.contender.mutex(), "the contender's metadata function panicked");
            BTreeMap::new()
        })
    }

    /// Records a failure. Returns the delay before the next call.
    fn on_failure(&self, error: &Error, pauses: &mut ExponentialBackoff) -> Duration {
        self.context.record_result(Some(error));
        tracing::warn!(mutex = self.contender.mutex(), %error, "a call to the lock service failed");
        next_backoff(pauses)
    }
}

/// Answers renewal requests while nothing is owned. Ends only when no sender is left.
async fn reject_all(renewals: &mut mpsc::Receiver<RenewRequest>, contender: &Arc<dyn MutexContender>) {
    while let Some(renewal) = renewals.recv().await {
        let (mutex, contender_id) = (contender.mutex().to_owned(), contender.contender_id().to_owned());
        reply_renewal(Some(renewal), Err(ContentionError::NotOwner { mutex, contender_id }));
    }
    std::future::pending().await
}

fn reply_renewal(renewal: Option<RenewRequest>, answer: std::result::Result<(), ContentionError>) {
    if let Some(renewal) = renewal {
        // The caller may have cancelled.
        let _ = renewal.send(answer);
    }
}

/// Returns the time until a polling contender polls again. If the mutex has no owner, another contender is about to get
/// it.
fn next_poll_delay(period: &ContendPeriod, owner: &MutexOwner, now: Timestamp) -> Duration {
    if owner.has_owner_at(now) {
        period.ensure_next_delay(owner, now)
    } else {
        period.ensure_next_delay(&MutexOwner::new("", now, now, now), now)
    }
}

pub(crate) fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(MIN_RETRY_DELAY)
        .with_max_delay(MAX_RETRY_DELAY)
        .without_max_times()
        .with_jitter()
        .build()
}

pub(crate) fn next_backoff(pauses: &mut ExponentialBackoff) -> Duration {
    pauses.next().unwrap_or(MAX_RETRY_DELAY)
}
