//! The task that contends: becomes the owner, stays it, and gives it back.
//!
//! Invariant: whoever is told that it is the owner is the only one until the instant that it is told, which is counted
//! from before the call that the service answered, and ends a little early.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder, Retryable};
use tokio::sync::{mpsc, oneshot};

use super::contender::MutexContender;
use super::error::ContentionError;
use super::life::Present;
use super::moment::Moment;
use super::options::{ContendOptions, Pacing};
use super::owner::MutexOwner;
use super::period::ContendPeriod;
use super::seen::owner_seen;
use super::store::{AcquireMutex, Acquisition, MutexStore};
use crate::error::{Error, Result};

/// Contenders stop that much earlier than the service, in parts of the time: clocks may differ so far.
const EARLY: u32 = 1_000;
/// A contender that waits asks this often, also when nothing happens, so that it knows the present owner.
const ASK_AT_LEAST_EVERY: Duration = Duration::from_secs(5);
const ASK_AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Pauses after calls that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often a release is tried again.
const RELEASE_RETRIES: usize = 3;
/// How long all that may take.
const RELEASE_WITHIN: Duration = Duration::from_secs(6);

/// A request to renew at once, and where to say what became of it.
pub(super) type Renewal = oneshot::Sender<std::result::Result<(), ContentionError>>;

pub(super) struct Contention {
    pub(super) present: Present,
    pub(super) contender: Arc<dyn MutexContender>,
    pub(super) store: Arc<dyn MutexStore>,
    pub(super) options: ContendOptions,
    pub(super) renewals: mpsc::Receiver<Renewal>,
}

/// An ownership that the service confirmed.
struct Grant {
    fencing_token: u64,
    acquired_at: Moment,
    /// When the call was sent that the service confirmed it in.
    asked_at: Moment,
}

/// What happens to an ownership, and when, unless it is renewed.
struct Ends {
    renew_at: Moment,
    own_until: Moment,
    ttl_at: Moment,
    transition_at: Moment,
}

impl Contention {
    /// Contends until it is told to stop, and leaves nothing behind.
    pub(super) async fn run(mut self) -> Result<()> {
        let stop = self.present.stop.clone();
        if stop.run_until_cancelled(tokio::time::sleep(self.options.initial_delay)).await.is_some() {
            while let Some(grant) = self.take().await {
                if self.keep(grant).await.is_none() {
                    break;
                }
            }
        }
        self.give_back().await
    }

    /// Becomes the owner. Nothing when it is told to stop before.
    async fn take(&mut self) -> Option<Grant> {
        let period = ContendPeriod::new(self.contender.contender_id());
        let mut pauses = pauses();
        let mut wait = Duration::ZERO;
        loop {
            let asked_at = Moment::now();
            let pause = match self.ask(self.request(wait, None)).await? {
                Ok(Acquisition::Granted { fencing_token }) => {
                    match self.confirmed(fencing_token, asked_at, wait).await? {
                        // An answer may come so late that the ownership is over, and somebody else's.
                        Ok(Some(grant)) if Moment::now() < self.ends(&grant).own_until => return Some(grant),
                        Ok(_) => Duration::ZERO,
                        Err(error) => self.failed(&error, &mut pauses),
                    }
                }
                Ok(Acquisition::NotGranted { holding }) => {
                    let now = Moment::now();
                    let owner = owner_seen(holding, self.options.transition, now);
                    // An owner of this very id that the store does not take for this contender is somebody else's
                    // doing.
                    let is_clash = owner.is_owner(self.contender.contender_id());
                    let is_quick = !wait.is_zero() && now.since(asked_at) < FIRST_PAUSE;
                    let pause = match self.options.pacing {
                        Pacing::Poll => next_look(&period, &owner, now),
                        Pacing::Push if is_clash || is_quick => next_pause(&mut pauses),
                        Pacing::Push => Duration::ZERO,
                    };
                    if self.options.pacing == Pacing::Push {
                        wait = self.options.ttl.clamp(ASK_AT_MOST_EVERY, ASK_AT_LEAST_EVERY);
                    }
                    self.present.publish(if is_clash { MutexOwner::NONE } else { owner }, None);
                    pause
                }
                Err(error) => self.failed(&error, &mut pauses),
            };
            self.pause(pause).await?;
        }
    }

    /// A grant that was waited for may be older than its answer, so it counts from a renewal. Nothing when it is gone.
    async fn confirmed(
        &mut self,
        fencing_token: u64,
        asked_at: Moment,
        wait: Duration,
    ) -> Option<Result<Option<Grant>>> {
        if wait.is_zero() {
            return Some(Ok(Some(Grant { fencing_token, acquired_at: asked_at, asked_at })));
        }
        let asked_at = Moment::now();
        let answer = self.ask(self.request(Duration::ZERO, Some(fencing_token))).await?;
        Some(answer.map(|acquisition| match acquisition {
            Acquisition::Granted { fencing_token } => Some(Grant { fencing_token, acquired_at: asked_at, asked_at }),
            Acquisition::NotGranted { .. } => None,
        }))
    }

    /// Stays the owner for as long as renewals are answered in time. Nothing when it is told to stop.
    async fn keep(&mut self, mut grant: Grant) -> Option<()> {
        let mut renew_at = self.show(&grant);
        let mut asked_for = None;
        let mut pauses = pauses();
        let stop = self.present.stop.clone();
        loop {
            let until = self.present.own_until();
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = renew_at.min(until).reached() => {}
                Some(renewal) = self.renewals.recv() => asked_for = Some(renewal),
            }
            if Moment::now() >= until {
                tracing::warn!(mutex = self.contender.mutex(), "the ownership was not renewed in time");
                self.lose(asked_for);
                return Some(());
            }
            let asked_at = Moment::now();
            let request = self.request(Duration::ZERO, Some(grant.fencing_token));
            let answer = tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                answer = self.store.acquire(&request) => answer,
                // What comes later than that is of no use.
                () = until.reached() => continue,
            };
            match answer {
                Ok(Acquisition::Granted { .. }) if Moment::now() < until => {
                    grant.asked_at = asked_at;
                    renew_at = self.show(&grant);
                    pauses = self::pauses();
                    self.present.called(None);
                    answer_renewal(asked_for.take(), Ok(()));
                }
                // The end came in between, which is seen above.
                Ok(Acquisition::Granted { .. }) => {}
                Ok(Acquisition::NotGranted { .. }) => {
                    tracing::warn!(mutex = self.contender.mutex(), "the ownership was taken away");
                    self.lose(asked_for);
                    return Some(());
                }
                Err(error) => {
                    renew_at = Moment::now() + self.failed(&error, &mut pauses);
                    answer_renewal(asked_for.take(), Err(error.into()));
                }
            }
        }
    }

    /// Makes a confirmed ownership known. Returns when to renew it.
    fn show(&self, grant: &Grant) -> Moment {
        let ends = self.ends(grant);
        let id = self.contender.contender_id();
        let owner = MutexOwner::new(id, grant.acquired_at, ends.ttl_at, ends.transition_at)
            .with_fencing_token(grant.fencing_token)
            .with_metadata(self.metadata());
        self.present.publish(owner, Some(ends.own_until));
        ends.renew_at
    }

    fn ends(&self, grant: &Grant) -> Ends {
        let early = |duration: Duration| duration - duration / EARLY;
        let ContendOptions { ttl, transition, pacing, .. } = self.options;
        let ttl_at = grant.asked_at + early(ttl);
        let (renew_at, own_until) = match pacing {
            Pacing::Push => (grant.asked_at + ttl / 3, ttl_at),
            Pacing::Poll => (ttl_at, ttl_at + early(transition) / 2),
        };
        Ends { renew_at, own_until, ttl_at, transition_at: grant.asked_at + early(ttl + transition) }
    }

    fn lose(&mut self, asked_for: Option<Renewal>) {
        self.present.publish(MutexOwner::NONE, None);
        answer_renewal(asked_for, Err(self.not_owner()));
        while let Ok(renewal) = self.renewals.try_recv() {
            answer_renewal(Some(renewal), Err(self.not_owner()));
        }
    }

    fn not_owner(&self) -> ContentionError {
        let (mutex, contender_id) = (self.contender.mutex().to_owned(), self.contender.contender_id().to_owned());
        ContentionError::NotOwner { mutex, contender_id }
    }

    /// Tells that there is nobody any more, and only when that has sunk in lets the mutex go.
    async fn give_back(self) -> Result<()> {
        self.present.end().await;
        // Sent also by those who do not know that they own it: an answer may have been lost.
        let release = || self.store.release(self.contender.mutex(), self.contender.contender_id());
        let retries = ExponentialBuilder::default().with_min_delay(FIRST_PAUSE).with_max_times(RELEASE_RETRIES);
        let released = tokio::time::timeout(RELEASE_WITHIN, release.retry(retries).when(Error::is_passing)).await;
        let unanswered =
            || Error::Unreachable(format!("no answer to a release within {} ms", RELEASE_WITHIN.as_millis()));
        released.unwrap_or_else(|_| Err(unanswered())).map(drop)
    }

    /// Asks the store. Nothing when it is told to stop meanwhile: a call that waits is given up, the answer to any
    /// other one is awaited, so that nothing happens after the release that follows.
    async fn ask(&mut self, request: AcquireMutex) -> Option<Result<Acquisition>> {
        let stop = self.present.stop.clone();
        if stop.is_cancelled() {
            return None;
        }
        let mut call = self.store.acquire(&request);
        let refuse = refuse_all(&mut self.renewals, &self.contender);
        tokio::select! {
            biased;
            answer = &mut call => {
                if answer.is_ok() {
                    self.present.called(None);
                }
                return Some(answer);
            }
            () = stop.cancelled() => {}
            () = refuse => {}
        }
        if request.wait.is_zero() {
            // Whatever it says, a release follows.
            let _ = call.await;
        }
        None
    }

    async fn pause(&mut self, pause: Duration) -> Option<()> {
        let stop = self.present.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = tokio::time::sleep(pause) => Some(()),
            () = refuse_all(&mut self.renewals, &self.contender) => None,
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

    /// A contender that fails to say anything of itself contends all the same.
    fn metadata(&self) -> BTreeMap<String, String> {
        catch_unwind(AssertUnwindSafe(|| self.contender.metadata())).unwrap_or_else(|_| {
            tracing::error!(mutex = self.contender.mutex(), "the contender's metadata could not be had: it panicked");
            BTreeMap::new()
        })
    }

    /// Returns how long to pause.
    fn failed(&self, error: &Error, pauses: &mut ExponentialBackoff) -> Duration {
        self.present.called(Some(error));
        tracing::warn!(mutex = self.contender.mutex(), %error, "a call to the lock service failed");
        next_pause(pauses)
    }
}

/// Answers everybody who wants to renew what is not owned. Ends only when nobody can ask any more.
async fn refuse_all(renewals: &mut mpsc::Receiver<Renewal>, contender: &Arc<dyn MutexContender>) {
    while let Some(renewal) = renewals.recv().await {
        let (mutex, contender_id) = (contender.mutex().to_owned(), contender.contender_id().to_owned());
        answer_renewal(Some(renewal), Err(ContentionError::NotOwner { mutex, contender_id }));
    }
    std::future::pending().await
}

fn answer_renewal(renewal: Option<Renewal>, answer: std::result::Result<(), ContentionError>) {
    if let Some(renewal) = renewal {
        // Whoever asked may have gone.
        let _ = renewal.send(answer);
    }
}

/// When a contender that polls looks again. Where nobody owns the mutex somebody else is about to.
fn next_look(period: &ContendPeriod, owner: &MutexOwner, now: Moment) -> Duration {
    if owner.has_owner_at(now) {
        period.ensure_next_delay(owner, now)
    } else {
        period.ensure_next_delay(&MutexOwner::new("", now, now, now), now)
    }
}

pub(super) fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build()
}

pub(super) fn next_pause(pauses: &mut ExponentialBackoff) -> Duration {
    pauses.next().unwrap_or(LONGEST_PAUSE)
}
