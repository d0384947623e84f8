//! Queries about semaphores and pools, and views of them.

use std::ops::Bound;
use std::sync::Arc;

use super::item::QueueRank;
use super::key::Name;
use super::members::Member;
use super::source::{Source, Stock};
use super::{HoldOrWait, PermitTable};
use crate::kit::{Kit, Sight};
use crate::page::PageBudget;
use crate::reply_size::{reason_only, within_reply};
use crate::{
    AcquireOutcome, AcquirePermits, CancelPermits, CommandError, Enqueued, FencingToken, Kind, MAX_HOLDERS_IN_REFUSAL,
    MemberView, NamespaceRef, Path, PermitCommand, PermitHolderView, PermitQuery, PermitWaitRecord, PermitsView, Phase,
    PoolView, Reason, Refused, Response, Revision, SemaphoreView, WaitId, Wanted, codec, page,
};

/// Visits for one page of waiting requests. Beyond them it ends, but has at least one row.
const VISITS_PER_PAGE: usize = 4_096;
/// A row costs a visit for so many requests before it, which are counted in chunks.
const COUNTED_PER_VISIT: usize = 8;

impl PermitTable {
    /// Replies to a query. `now` is the shard's revision, and the requester is the owner that the query names.
    pub fn query(
        &self,
        query: &PermitQuery,
        now: Revision,
        sight: Sight<'_>,
        requester: Option<&super::Requester>,
    ) -> Result<Response, CommandError> {
        match query {
            PermitQuery::Get { path, after, limit, .. } => self.page_of_holders(path, *after, *limit, sight),
            PermitQuery::List { kind, prefix, after, limit, .. } => {
                Ok(self.list(*kind, prefix, after.as_ref(), *limit))
            }
            PermitQuery::Check { kind, path, fencing_token, member, .. } => {
                let hold = self.hold(&Name::new(*kind, path), *fencing_token);
                let hold = hold.filter(|hold| {
                    member.as_deref().is_none_or(|member| hold.members().iter().any(|its| **its == *member))
                });
                let current = hold.is_some_and(|hold| self.phase_of(hold, sight).0 == Phase::Held);
                Ok(Response::PermitsChecked { current, view: self.view_at(*kind, path, now) })
            }
            PermitQuery::Members { path, after, limit, .. } => {
                self.page_of_members(path, after.as_deref(), *limit, sight)
            }
            PermitQuery::Waits { after, limit, .. } => Ok(self.page_of_waits(*after, *limit, sight)),
            PermitQuery::WaitStatus { wait, .. } => self.wait_status(*wait, now, sight),
            PermitQuery::HasHold { kind, path, request_id, .. } => {
                let found = requester.and_then(|requester| self.find(requester, *kind, path, request_id));
                Ok(Response::Holds(matches!(found, Some(HoldOrWait::Hold(_)))))
            }
        }
    }

    fn page_of_holders(
        &self,
        path: &Path,
        after: Option<FencingToken>,
        limit: u32,
        sight: Sight<'_>,
    ) -> Result<Response, CommandError> {
        let name = Name::new(Kind::Semaphore, path);
        let (Some(source), Some(semaphore)) = (self.by_name.get(&name), self.semaphore_view(&name)) else {
            return Err(CommandError::PrimitiveNotFound { kind: Kind::Semaphore, path: path.clone() });
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let holds = source.holds.range((start, Bound::Unbounded));
        let (holders, more) = page::collect(holds, limit, |(_, hold)| self.view_of_hold(hold, sight));
        Ok(Response::SemaphoreHolders { semaphore, holders, more })
    }

    fn page_of_members(
        &self,
        path: &Path,
        after: Option<&str>,
        limit: u32,
        sight: Sight<'_>,
    ) -> Result<Response, CommandError> {
        let name = Name::new(Kind::Pool, path);
        let found = self.by_name.get(&name).and_then(|source| Some((source, source.members()?)));
        let (Some((source, members)), Some(pool)) = (found, self.pool_view(&name)) else {
            return Err(CommandError::PrimitiveNotFound { kind: Kind::Pool, path: path.clone() });
        };
        let show = |(name, member): (&Arc<str>, &Member)| self.view_of_member(source, name, member, sight);
        let (members, more) = page::collect(members.after(after), limit, show);
        Ok(Response::PoolMembers { pool, members, more })
    }

    fn view_of_member(&self, source: &Source, name: &str, member: &Member, sight: Sight<'_>) -> MemberView {
        let hold = member.hold.and_then(|token| source.holds.get(&token));
        MemberView {
            name: name.to_owned(),
            disabled: member.is_disabled,
            leaving: member.is_leaving,
            metadata: member.metadata.get(),
            free_since: member.free_since,
            resting_until_ms: member.resting_until_ms,
            holder: hold.map(|hold| self.view_of_holder(hold, sight)),
        }
    }

    fn list(&self, kind: Kind, prefix: &Path, after: Option<&Path>, limit: u32) -> Response {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(Name::new(kind, after)),
            _ => Bound::Included(Name::new(kind, prefix)),
        };
        let names = self.by_name.range((start, Bound::Unbounded)).map(|(name, _)| name);
        let names = names.take_while(|name| name.kind == kind && prefix.is_prefix_of(&name.path));
        if kind == Kind::Pool {
            let (pools, more) = page::collect(names, limit, |name| self.pool_view(name));
            return Response::Pools { pools: pools.into_iter().flatten().collect(), more };
        }
        let (semaphores, more) = page::collect(names, limit, |name| self.semaphore_view(name));
        Response::Semaphores { semaphores: semaphores.into_iter().flatten().collect(), more }
    }

    fn page_of_waits(&self, after: Option<WaitId>, limit: u32, sight: Sight<'_>) -> Response {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.waits.range((start, Bound::Unbounded));
        let all = all.filter_map(|(wait, key)| match self.index.get(key)? {
            HoldOrWait::Wait(rank) => Some((*wait, *rank, self.wait(&key.name, *rank)?)),
            HoldOrWait::Hold(_) => None,
        });
        let (mut budget, mut visits, mut waits) = (PageBudget::of(limit), 0, Vec::new());
        for (wait, rank, waiting) in all {
            if budget.is_full() || visits >= VISITS_PER_PAGE {
                return Response::PermitWaits { waits, more: true };
            }
            let queue_position = self.queue_position(&waiting.key.name, rank, sight);
            visits += 1 + usize::try_from(queue_position).unwrap_or(usize::MAX) / COUNTED_PER_VISIT;
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
        let waiting = self.wait(&key.name, *rank).ok_or(CommandError::NotWaiting)?;
        let attempt = waiting.attempts.highest();
        let position = self.queue_position(&key.name, *rank, sight);
        let not_granted = Refused { queue_position: Some(position), ..reason_only(Reason::Queued) };
        let outcome = AcquireOutcome::Enqueued(Box::new(Enqueued { wait, attempt, not_granted }));
        let view = self.view_at(key.name.kind, &key.name.path, now);
        let of = (&*key.name, &waiting.wanted);
        let (holders, members) = (self.holders_before(of, codec::size(&view), sight), Vec::new());
        Ok(Response::PermitsAcquired { outcome, members, view, holders, release_requested: None })
    }

    /// Returns how many requests are before one, up to a limit.
    pub(super) fn queue_position(&self, name: &Name, rank: QueueRank, sight: Sight<'_>) -> u64 {
        let source = self.by_name.get(name);
        source.map_or(0, |source| source.ranks.count_before(rank, sight.max_queue_position) as u64)
    }

    /// Returns who has what a request wants: the holder of the member that it names, then those with most permits, and
    /// of those the earlier ones first. As many as fit into a response with a view of that many bytes; if not all fit with
    /// their metadata, all are shown without.
    pub(super) fn holders_before(
        &self,
        (name, wanted): (&Name, &Wanted),
        view: usize,
        sight: Sight<'_>,
    ) -> Vec<PermitHolderView> {
        let Some(found) = self.by_name.get(name) else { return Vec::new() };
        let first = if let Wanted::Member(member) = wanted { found.holder_of(member) } else { None };
        let others = found.heaviest.iter().rev().map(|(_, token)| token.0).filter(|token| Some(*token) != first);
        let tokens = first.into_iter().chain(others).take(MAX_HOLDERS_IN_REFUSAL);
        let holds = tokens.filter_map(|token| found.holds.get(&token));
        let mut holders: Vec<PermitHolderView> = holds.map(|hold| self.view_of_hold(hold, sight)).collect();
        let shown = within_reply(&holders, view);
        if shown == holders.len() {
            return holders;
        }
        holders.iter_mut().for_each(|holder| holder.metadata.clear());
        holders.truncate(within_reply(&holders, view));
        holders
    }

    /// Returns the view of a source in a response to a command, unless nobody receives it.
    pub(super) fn view(&self, kit: &Kit<'_>, name: &Name) -> PermitsView {
        match kit.with_views {
            true => self.view_at(name.kind, &name.path, kit.revision()),
            false => PermitsView::absent(name.kind, &name.path, 0),
        }
    }

    /// Returns the view of a source; `now` is the revision of one that does not exist.
    pub fn view_at(&self, kind: Kind, path: &Path, now: Revision) -> PermitsView {
        let name = Name::new(kind, path);
        let pool = self.pool_view(&name).map(PermitsView::Pool);
        let view = pool.or_else(|| self.semaphore_view(&name).map(PermitsView::Semaphore));
        view.unwrap_or_else(|| PermitsView::absent(kind, path, now))
    }

    /// Returns the view of a semaphore, if there is one.
    pub(super) fn semaphore_view(&self, name: &Name) -> Option<SemaphoreView> {
        let source = self.by_name.get(name)?;
        let Stock::Units { permits, is_configured } = source.stock else { return None };
        Some(SemaphoreView {
            path: name.path.clone(),
            configured: is_configured,
            permits,
            in_use: source.in_use,
            holders_total: source.holds.len() as u64,
            waiting: source.queue.len() as u64,
            description: source.description.clone(),
            metadata: source.metadata.get(),
            revision: source.revision,
        })
    }

    /// Returns the view of a pool, if there is one.
    pub(super) fn pool_view(&self, name: &Name) -> Option<PoolView> {
        let source = self.by_name.get(name)?;
        let members = source.members()?;
        Some(PoolView {
            path: name.path.clone(),
            members_total: members.len() as u64,
            free: members.free(),
            in_use: source.in_use,
            leaving: members.leaving(),
            cooldown_ms: members.cooldown_ms,
            holders_total: source.holds.len() as u64,
            waiting: source.queue.len() as u64,
            description: source.description.clone(),
            metadata: source.metadata.get(),
            revision: source.revision,
        })
    }

    /// Returns whether a command would create state; repeats and extensions do not. The requester is that of an
    /// acquire.
    pub fn creates_state(&self, command: &PermitCommand, requester: Option<&super::Requester>) -> bool {
        match command {
            PermitCommand::Configure(configure) => {
                !self.by_name.contains_key(&Name::new(Kind::Semaphore, &configure.path))
            }
            // One that makes a pool smaller is never refused for want of memory.
            PermitCommand::ConfigurePool(_) | PermitCommand::ChangePool(_) => self.most_added(command).charged > 0,
            PermitCommand::Acquire(acquire) => requester.is_none_or(|it| self.find_request(it, acquire).is_none()),
            PermitCommand::Release(_) | PermitCommand::Delete { .. } | PermitCommand::Cancel(_) => false,
        }
    }

    fn find_request(&self, requester: &super::Requester, acquire: &AcquirePermits) -> Option<HoldOrWait> {
        self.find(requester, acquire.wanted.kind(), &acquire.path, &acquire.request_id)
    }

    fn find(&self, requester: &super::Requester, kind: Kind, path: &Path, request_id: &str) -> Option<HoldOrWait> {
        self.index.get(&requester.key(&Arc::new(Name::new(kind, path)), request_id)).copied()
    }

    /// Returns the wait of a request, if it waits, and the attempts that rely on it and may leave.
    pub fn queued_wait(&self, requester: &super::Requester, acquire: &AcquirePermits) -> Option<(WaitId, Vec<u64>)> {
        let Some(HoldOrWait::Wait(rank)) = self.find_request(requester, acquire) else { return None };
        let name = Name::new(acquire.wanted.kind(), &acquire.path);
        let wait = self.wait(&name, rank)?;
        Some((rank.wait, wait.attempts.cancellable().collect()))
    }

    /// Returns all waiting requests of a namespace in order of arrival, for a new leader.
    pub fn waits(&self, namespace: &NamespaceRef) -> impl Iterator<Item = PermitWaitRecord> {
        self.waits.iter().filter_map(|(wait, key)| {
            let Some(HoldOrWait::Wait(rank)) = self.index.get(key) else { return None };
            let waiting = self.wait(&key.name, *rank)?;
            let cancel = CancelPermits {
                namespace: namespace.clone(),
                kind: key.name.kind,
                path: key.name.path.clone(),
                owner: key.owner(),
                request_id: key.request_id.to_string(),
                attempts: waiting.attempts.cancellable().collect(),
            };
            Some(PermitWaitRecord { wait: *wait, attempt: waiting.attempts.highest(), cancel })
        })
    }
}
