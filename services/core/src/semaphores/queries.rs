//! Queries about semaphores, and views of them.

use std::ops::Bound;

use super::item::QueueRank;
use super::{HoldOrWait, Semaphores};
use crate::kit::{Kit, Sight};
use crate::locks::{reason_only, within_reply};
use crate::page::PageBudget;
use crate::{
    AcquireOutcome, AcquirePermits, CancelPermits, CommandError, Enqueued, FencingToken, Kind, MAX_HOLDERS_IN_REFUSAL,
    NamespaceRef, Path, PermitHolderView, PermitWaitRecord, Phase, Reason, Refused, Response, Revision,
    SemaphoreCommand, SemaphoreQuery, SemaphoreView, WaitId, codec, page,
};

/// Visits for one page of waiting requests. Beyond them it ends, but has at least one row.
const VISITS_PER_PAGE: usize = 16_384;

impl Semaphores {
    /// Replies to a query. `now` is the shard's revision.
    pub(crate) fn query(
        &self,
        query: &SemaphoreQuery,
        now: Revision,
        sight: Sight<'_>,
    ) -> Result<Response, CommandError> {
        match query {
            SemaphoreQuery::Get { path, after, limit, .. } => self.page_of_holders(path, *after, *limit, sight),
            SemaphoreQuery::List { prefix, after, limit, .. } => Ok(self.list(prefix, after.as_ref(), *limit)),
            SemaphoreQuery::Check { path, fencing_token, .. } => {
                let hold = self.hold(path, *fencing_token);
                let current = hold.is_some_and(|hold| self.phase_of(hold, sight).0 == Phase::Held);
                Ok(Response::SemaphoreChecked { current, semaphore: self.view_at(path, now) })
            }
            SemaphoreQuery::Waits { after, limit, .. } => Ok(self.page_of_waits(*after, *limit, sight)),
            SemaphoreQuery::WaitStatus { wait, .. } => self.wait_status(*wait, now, sight),
        }
    }

    fn page_of_holders(
        &self,
        path: &Path,
        after: Option<FencingToken>,
        limit: u32,
        sight: Sight<'_>,
    ) -> Result<Response, CommandError> {
        let Some(semaphore) = self.by_path.get(path) else {
            return Err(CommandError::PrimitiveNotFound { kind: Kind::Semaphore, path: path.clone() });
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let holds = semaphore.holds.range((start, Bound::Unbounded));
        let (holders, more) = page::collect(holds, limit, |(_, hold)| self.view_of_hold(hold, sight));
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

    fn page_of_waits(&self, after: Option<WaitId>, limit: u32, sight: Sight<'_>) -> Response {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.waits.range((start, Bound::Unbounded));
        let all = all.filter_map(|(wait, key)| match self.index.get(key)? {
            HoldOrWait::Wait(rank) => Some((*wait, *rank, self.wait(&key.path, *rank)?)),
            HoldOrWait::Hold(_) => None,
        });
        let (mut budget, mut visits, mut waits) = (PageBudget::of(limit), 0, Vec::new());
        for (wait, rank, waiting) in all {
            if budget.is_full() || visits >= VISITS_PER_PAGE {
                return Response::PermitWaits { waits, more: true };
            }
            let queue_position = self.queue_position(&waiting.key.path, rank, sight);
            visits = usize::try_from(queue_position).unwrap_or(usize::MAX).saturating_add(visits + 1);
            let row = waiting.view(wait, rank, queue_position);
            if !budget.try_take(codec::size(&row)) {
                return Response::PermitWaits { waits, more: true };
            }
            waits.push(row);
        }
        Response::PermitWaits { waits, more: false }
    }

    fn wait_status(&self, wait: WaitId, now: Revision, sight: Sight<'_>) -> Result<Response, CommandError> {
        let key = self.waits.get(&wait).ok_or(CommandError::NotWaiting)?;
        let Some(HoldOrWait::Wait(rank)) = self.index.get(key) else { return Err(CommandError::NotWaiting) };
        let attempt = self.wait(&key.path, *rank).map_or(0, |waiting| waiting.attempts.highest());
        let position = self.queue_position(&key.path, *rank, sight);
        let not_granted = Refused { queue_position: Some(position), ..reason_only(Reason::Queued) };
        let outcome = AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted }));
        let semaphore = self.view_at(&key.path, now);
        let holders = self.heaviest_holders(&key.path, codec::size(&semaphore), sight);
        Ok(Response::PermitsAcquired { outcome, semaphore, holders })
    }

    /// Returns how many requests are before one, up to a limit.
    pub(super) fn queue_position(&self, path: &Path, rank: QueueRank, sight: Sight<'_>) -> u64 {
        let semaphore = self.by_path.get(path);
        semaphore.map_or(0, |semaphore| semaphore.queue.range(..rank).take(sight.max_queue_position).count() as u64)
    }

    /// Returns the holders with most permits, and of those the earlier ones first: as many as fit into a response with
    /// a semaphore of that many bytes. If not all fit with their metadata, all are shown without.
    pub(super) fn heaviest_holders(&self, path: &Path, semaphore: usize, sight: Sight<'_>) -> Vec<PermitHolderView> {
        let Some(found) = self.by_path.get(path) else { return Vec::new() };
        let tokens = found.heaviest.iter().rev().take(MAX_HOLDERS_IN_REFUSAL);
        let holds = tokens.filter_map(|(_, token)| found.holds.get(&token.0));
        let mut holders: Vec<PermitHolderView> = holds.map(|hold| self.view_of_hold(hold, sight)).collect();
        let shown = within_reply(&holders, semaphore);
        if shown == holders.len() {
            return holders;
        }
        holders.iter_mut().for_each(|holder| holder.metadata.clear());
        holders.truncate(within_reply(&holders, semaphore));
        holders
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

    /// Returns whether a command would create state; repeats and extensions do not. The requester is that of an
    /// acquire.
    pub(crate) fn creates_state(&self, command: &SemaphoreCommand, requester: Option<&super::Requester>) -> bool {
        match command {
            SemaphoreCommand::Configure(configure) => !self.by_path.contains_key(&configure.path),
            SemaphoreCommand::Acquire(acquire) => requester.is_none_or(|it| self.find(it, acquire).is_none()),
            SemaphoreCommand::Release(_) | SemaphoreCommand::Delete { .. } | SemaphoreCommand::Cancel(_) => false,
        }
    }

    fn find(&self, requester: &super::Requester, acquire: &AcquirePermits) -> Option<HoldOrWait> {
        self.index.get(&requester.key(&acquire.path, &acquire.request_id)).copied()
    }

    /// Returns the wait of a request, if it waits, and the attempts that rely on it and may leave.
    pub(crate) fn queued_wait(
        &self,
        requester: &super::Requester,
        acquire: &AcquirePermits,
    ) -> Option<(WaitId, Vec<u64>)> {
        let Some(HoldOrWait::Wait(rank)) = self.find(requester, acquire) else { return None };
        let wait = self.wait(&acquire.path, rank)?;
        Some((rank.wait, wait.attempts.cancellable().collect()))
    }

    /// Returns all waiting requests of a namespace in order of arrival, for a new leader.
    pub(crate) fn waits(&self, namespace: &NamespaceRef) -> impl Iterator<Item = PermitWaitRecord> {
        self.waits.iter().filter_map(|(wait, key)| {
            let Some(HoldOrWait::Wait(rank)) = self.index.get(key) else { return None };
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
