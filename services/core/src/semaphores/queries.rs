//! Queries about semaphores, and views of them.

use std::ops::Bound;

use super::item::QueueRank;
use super::{Semaphores, Spot};
use crate::kit::Kit;
use crate::{
    AcquireOutcome, AcquirePermits, CancelPermits, CommandError, Enqueued, FencingToken, Kind, MAX_HOLDERS_IN_REFUSAL,
    NamespaceRef, Path, PermitHolderView, PermitWaitRecord, PermitWaitView, Response, Revision, SemaphoreCommand,
    SemaphoreQuery, SemaphoreView, WaitId, page,
};

/// The highest reported queue position; higher ones are reported as this.
const MAX_QUEUE_POSITION: usize = 10_000;

impl Semaphores {
    /// Replies to a query. `now` is the shard's revision, `visible_ms` the clock by which deadlines count as past.
    pub(crate) fn query(
        &self,
        query: &SemaphoreQuery,
        now: Revision,
        visible_ms: u64,
    ) -> Result<Response, CommandError> {
        match query {
            SemaphoreQuery::Get { path, after, limit, .. } => self.page_of_holders(path, *after, *limit),
            SemaphoreQuery::List { prefix, after, limit, .. } => Ok(self.list(prefix, after.as_ref(), *limit)),
            SemaphoreQuery::Check { path, fencing_token, .. } => {
                let current = self.is_current(path, *fencing_token, visible_ms);
                Ok(Response::SemaphoreChecked { current, semaphore: self.view_at(path, now) })
            }
            SemaphoreQuery::Waits { after, limit, .. } => Ok(self.page_of_waits(*after, *limit)),
            SemaphoreQuery::WaitStatus { wait, .. } => self.wait_status(*wait, now),
        }
    }

    /// Returns whether the hold with that token is held.
    fn is_current(&self, path: &Path, token: FencingToken, visible_ms: u64) -> bool {
        let is_deleting = self.by_path.get(path).is_some_and(|semaphore| semaphore.deleting.is_some());
        self.hold(path, token).filter(|_| !is_deleting).is_some_and(|hold| {
            let is_over = hold.deadline_ms.is_some_and(|at_ms| at_ms <= visible_ms);
            let is_ending = hold.key.session().is_some_and(|number| self.ending.contains(&number));
            hold.is_held() && !is_over && !is_ending
        })
    }

    fn page_of_holders(&self, path: &Path, after: Option<FencingToken>, limit: u32) -> Result<Response, CommandError> {
        let Some(semaphore) = self.by_path.get(path) else {
            return Err(CommandError::PrimitiveNotFound { kind: Kind::Semaphore, path: path.clone() });
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let holds = semaphore.holds.range((start, Bound::Unbounded));
        let (holders, more) = page::collect(holds, limit, |(_, hold)| hold.view());
        Ok(Response::SemaphoreHolders { semaphore: self.view_at(path, 0), holders, more })
    }

    fn list(&self, prefix: &Path, after: Option<&Path>, limit: u32) -> Response {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let rows = self.by_path.range::<Path, _>((start, Bound::Unbounded));
        let rows = rows.take_while(|(path, _)| prefix.is_prefix_of(path));
        let (semaphores, more) = page::collect(rows, limit, |(path, _)| self.view_at(path, 0));
        Response::Semaphores { semaphores, more }
    }

    fn page_of_waits(&self, after: Option<WaitId>, limit: u32) -> Response {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let waits = self.waits.range((start, Bound::Unbounded));
        let waits = waits.filter_map(|(wait, key)| match self.index.get(key)? {
            Spot::Wait(rank) => Some((*wait, *rank, self.wait(&key.path, *rank)?)),
            Spot::Hold(_) => None,
        });
        let (waits, more) = page::collect(waits, limit, |(wait, rank, waiting)| PermitWaitView {
            wait,
            path: Path::clone(&waiting.key.path),
            owner: waiting.key.owner(),
            process_id: waiting.process_id.to_string(),
            request_id: waiting.key.request_id.to_string(),
            weight: waiting.weight,
            priority: rank.priority(),
            queue_position: self.queue_position(&waiting.key.path, rank),
            attempt: waiting.attempts.highest(),
            since_ms: waiting.since_ms,
            ends_at_ms: waiting.ends_at_ms,
        });
        Response::PermitWaits { waits, more }
    }

    fn wait_status(&self, wait: WaitId, now: Revision) -> Result<Response, CommandError> {
        let key = self.waits.get(&wait).ok_or(CommandError::NotWaiting)?;
        let Some(Spot::Wait(rank)) = self.index.get(key) else { return Err(CommandError::NotWaiting) };
        let attempt = self.wait(&key.path, *rank).map_or(0, |waiting| waiting.attempts.highest());
        let not_granted = self.queued(&key.path, *rank);
        let outcome = AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted }));
        let (semaphore, holders) = (self.view_at(&key.path, now), self.heaviest_holders(&key.path));
        Ok(Response::PermitsAcquired { outcome, semaphore, holders })
    }

    /// Returns how many requests are before one, up to a limit.
    pub(super) fn queue_position(&self, path: &Path, rank: QueueRank) -> u64 {
        let semaphore = self.by_path.get(path);
        semaphore.map_or(0, |semaphore| semaphore.queue.range(..rank).take(MAX_QUEUE_POSITION).count() as u64)
    }

    /// Returns the holders with most permits, and of those the earlier ones first.
    pub(super) fn heaviest_holders(&self, path: &Path) -> Vec<PermitHolderView> {
        let Some(semaphore) = self.by_path.get(path) else { return Vec::new() };
        let tokens = semaphore.heaviest.iter().rev().take(MAX_HOLDERS_IN_REFUSAL);
        tokens.filter_map(|(_, token)| Some(semaphore.holds.get(&token.0)?.view())).collect()
    }

    /// Returns the view of a semaphore in a response to a command, unless nobody receives it.
    pub(super) fn view(&self, kit: &Kit<'_>, path: &Path) -> SemaphoreView {
        if kit.with_views { self.view_at(path, kit.revision()) } else { SemaphoreView::absent(path, 0) }
    }

    /// Returns the view of a semaphore; `now` is the revision of one that does not exist.
    pub(crate) fn view_at(&self, path: &Path, now: Revision) -> SemaphoreView {
        let Some(semaphore) = self.by_path.get(path) else { return SemaphoreView::absent(path, now) };
        SemaphoreView {
            path: path.clone(),
            configured: semaphore.is_configured,
            permits: semaphore.permits,
            in_use: semaphore.in_use,
            holders_total: semaphore.holds.len() as u64,
            waiting: semaphore.queue.len() as u64,
            description: semaphore.description.clone(),
            metadata: semaphore.metadata.get(),
            revision: semaphore.revision,
        }
    }

    /// Returns whether a command would create state; repeats and extensions do not. The requester is that of an acquire.
    pub(crate) fn creates_state(&self, command: &SemaphoreCommand, requester: Option<&super::Requester>) -> bool {
        match command {
            SemaphoreCommand::Configure(configure) => !self.by_path.contains_key(&configure.path),
            SemaphoreCommand::Acquire(acquire) => requester.is_none_or(|it| self.find(it, acquire).is_none()),
            SemaphoreCommand::Release(_) | SemaphoreCommand::Delete { .. } | SemaphoreCommand::Cancel(_) => false,
        }
    }

    fn find(&self, requester: &super::Requester, acquire: &AcquirePermits) -> Option<Spot> {
        self.index.get(&requester.key(&acquire.path, &acquire.request_id)).copied()
    }

    /// Returns the wait of a request, if it waits, and the attempts that rely on it and may leave.
    pub(crate) fn queued_wait(
        &self,
        requester: &super::Requester,
        acquire: &AcquirePermits,
    ) -> Option<(WaitId, Vec<u64>)> {
        let Some(Spot::Wait(rank)) = self.find(requester, acquire) else { return None };
        let wait = self.wait(&acquire.path, rank)?;
        Some((rank.wait, wait.attempts.cancellable().collect()))
    }

    /// Returns all waiting requests of a namespace in order of arrival, for a new leader.
    pub(crate) fn waits(&self, namespace: &NamespaceRef) -> impl Iterator<Item = PermitWaitRecord> {
        self.waits.iter().filter_map(|(wait, key)| {
            let Some(Spot::Wait(rank)) = self.index.get(key) else { return None };
            let waiting = self.wait(&key.path, *rank)?;
            let cancel = CancelPermits {
                namespace: namespace.clone(),
                path: Path::clone(&key.path),
                owner: key.owner(),
                request_id: key.request_id.to_string(),
                attempts: waiting.attempts.cancellable().collect(),
            };
            Some(PermitWaitRecord { wait: *wait, attempt: waiting.attempts.highest(), cancel })
        })
    }
}
