//! The state of a locks shard after an entry: every hold and every waiting request.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_core::shard::ShardState;
use holdfast_core::{
    ArrivalView, AwaitView, BarrierQuery, BarrierView, CancelAttempts, Claim, ConditionQuery, EndedGeneration,
    HolderView, Kind, LatchQuery, LatchView, LockView, LocksCommand, MemberView, Mode, NamespaceRef, Path,
    PermitHolderView, PermitQuery, PermitWaitView, PoolView, Query, Reattach, Response, SemaphoreView, WaitView,
};

use super::barriers::BarrierMoment;
use crate::ask_calls::ObservedAsk;
use crate::history::{ObservedHolder, ObservedLock};
use crate::things::{ObservedLatch, ObservedPool, ObservedSemaphore};

/// More than there ever are here.
const PAGE_LIMIT: u32 = 1_000;

/// All that is held and waited for in a namespace.
#[derive(Default)]
pub(crate) struct NamespaceView {
    pub(crate) locks: BTreeMap<Path, LockView>,
    pub(crate) waits: Vec<WaitView>,
    pub(crate) semaphores: BTreeMap<Path, SemaphoreState>,
    pub(crate) pools: BTreeMap<Path, PoolState>,
    /// For semaphores and pools, in order of arrival.
    pub(crate) permit_waits: Vec<PermitWaitView>,
    pub(crate) latches: BTreeMap<Path, LatchView>,
    pub(crate) barriers: BTreeMap<Path, BarrierState>,
    /// In order of arrival: those that were called and not moved to the queue of their lock yet, too.
    pub(crate) awaits: Vec<AwaitView>,
    /// How many await each condition that were not called.
    pub(crate) conditions: BTreeMap<(Path, String), u64>,
}

/// A barrier, all that are in it, and the latest generations that ended.
#[derive(Debug)]
pub(crate) struct BarrierState {
    pub(crate) view: BarrierView,
    /// Those who have come in order of arrival, and then those inside.
    pub(crate) arrivals: Vec<ArrivalView>,
    /// The last one first.
    pub(crate) ended: Vec<EndedGeneration>,
}

/// A semaphore and all that hold permits of it.
#[derive(Debug)]
pub(crate) struct SemaphoreState {
    pub(crate) view: SemaphoreView,
    pub(crate) holders: Vec<PermitHolderView>,
}

/// A pool with its members and all that hold some of them.
#[derive(Debug)]
pub(crate) struct PoolState {
    pub(crate) view: PoolView,
    pub(crate) members: BTreeMap<String, MemberView>,
    /// In order of token, each with its members.
    pub(crate) holders: Vec<PermitHolderView>,
}

/// All holds and waiting requests, by namespace. Views share what has not changed.
#[derive(Default)]
pub(crate) struct ShardView {
    pub(crate) namespaces: BTreeMap<NamespaceRef, Rc<NamespaceView>>,
}

/// Which namespaces a step can have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffectedNamespaces<'a> {
    Nothing,
    One(&'a NamespaceRef),
    Any,
}

impl<'a> AffectedNamespaces<'a> {
    /// By a command.
    pub(crate) fn of_command(command: &'a LocksCommand) -> Self {
        match command {
            LocksCommand::Acquire(acquire) | LocksCommand::Reattach(Reattach { acquire, .. }) => {
                Self::One(&acquire.namespace)
            }
            LocksCommand::Release(release) => Self::One(&release.namespace),
            LocksCommand::Cancel(cancel) | LocksCommand::CancelAttempts(CancelAttempts { cancel, .. }) => {
                Self::One(&cancel.namespace)
            }
            LocksCommand::Delete { namespace, .. } | LocksCommand::CloseSession { namespace, .. } => {
                Self::One(namespace)
            }
            LocksCommand::OpenSession(open) => Self::One(&open.namespace),
            LocksCommand::LockInfo(info) => Self::One(&info.namespace),
            LocksCommand::Permit(command) => Self::One(command.namespace()),
            LocksCommand::Latch(command) => Self::One(command.namespace()),
            LocksCommand::Barrier(command) => Self::One(command.namespace()),
            LocksCommand::Condition(command) => Self::One(command.namespace()),
            LocksCommand::AskRelease(ask) => Self::One(&ask.namespace),
            _ => Self::Any,
        }
    }

    pub(crate) fn contains(self, life: &NamespaceRef) -> bool {
        match self {
            Self::Nothing => false,
            Self::One(namespace) => namespace == life,
            Self::Any => true,
        }
    }
}

/// One hold.
pub(crate) struct Hold<'a> {
    pub(crate) path: &'a Path,
    pub(crate) view: &'a HolderView,
}

impl ShardView {
    /// Returns the view after a step, which reads only what the step can have changed.
    pub(crate) fn next(
        &self,
        core: &ShardState,
        open: impl Iterator<Item = NamespaceRef>,
        touched: AffectedNamespaces<'_>,
    ) -> Self {
        let scene = |life: NamespaceRef| match self.namespaces.get(&life).filter(|_| !touched.contains(&life)) {
            Some(same) => (life, Rc::clone(same)),
            None => {
                let scene = Rc::new(NamespaceView::query(core, &life));
                (life, scene)
            }
        };
        Self { namespaces: open.map(scene).collect() }
    }

    /// Returns the namespaces that have changed.
    pub(crate) fn changed<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a NamespaceRef> {
        let is_same = |life: &NamespaceRef| match (before.namespaces.get(life), self.namespaces.get(life)) {
            (Some(was), Some(is)) => Rc::ptr_eq(was, is),
            _ => false,
        };
        let gone = before.namespaces.keys().filter(|life| !self.namespaces.contains_key(life));
        gone.chain(self.namespaces.keys()).filter(move |life| !is_same(life))
    }

    pub(crate) fn locks(&self, life: &NamespaceRef) -> impl Iterator<Item = (&Path, &LockView)> {
        self.namespaces.get(life).into_iter().flat_map(|scene| &scene.locks)
    }

    pub(crate) fn holds(&self, life: &NamespaceRef) -> impl Iterator<Item = Hold<'_>> {
        self.locks(life).flat_map(|(path, lock)| {
            let holders = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
            holders.map(move |view| Hold { path, view })
        })
    }

    pub(crate) fn waits(&self, life: &NamespaceRef) -> &[WaitView] {
        self.namespaces.get(life).map(|scene| scene.waits.as_slice()).unwrap_or_default()
    }

    pub(crate) fn semaphores(&self, life: &NamespaceRef) -> impl Iterator<Item = (&Path, &SemaphoreState)> {
        self.namespaces.get(life).into_iter().flat_map(|scene| &scene.semaphores)
    }

    pub(crate) fn semaphore(&self, life: &NamespaceRef, path: &Path) -> Option<&SemaphoreState> {
        self.namespaces.get(life)?.semaphores.get(path)
    }

    pub(crate) fn pools(&self, life: &NamespaceRef) -> impl Iterator<Item = (&Path, &PoolState)> {
        self.namespaces.get(life).into_iter().flat_map(|scene| &scene.pools)
    }

    pub(crate) fn pool(&self, life: &NamespaceRef, path: &Path) -> Option<&PoolState> {
        self.namespaces.get(life)?.pools.get(path)
    }

    /// Returns the holds of all semaphores and pools.
    pub(crate) fn permit_holders(&self, life: &NamespaceRef) -> impl Iterator<Item = &PermitHolderView> {
        let of_semaphores = self.semaphores(life).flat_map(|(_, semaphore)| &semaphore.holders);
        of_semaphores.chain(self.pools(life).flat_map(|(_, pool)| &pool.holders))
    }

    /// Returns the holds of a semaphore or of a pool.
    pub(crate) fn holders_of(&self, life: &NamespaceRef, kind: Kind, path: &Path) -> &[PermitHolderView] {
        let holders = match kind {
            Kind::Pool => self.pool(life, path).map(|pool| pool.holders.as_slice()),
            _ => self.semaphore(life, path).map(|semaphore| semaphore.holders.as_slice()),
        };
        holders.unwrap_or_default()
    }

    pub(crate) fn permit_waits(&self, life: &NamespaceRef) -> &[PermitWaitView] {
        self.namespaces.get(life).map(|scene| scene.permit_waits.as_slice()).unwrap_or_default()
    }

    /// Returns the locks of a namespace as clients see them.
    pub(crate) fn observed_locks(&self, life: &NamespaceRef) -> BTreeMap<&Path, ObservedLock> {
        self.locks(life).map(|(path, lock)| (path, to_observed_lock(lock))).collect()
    }

    /// Returns the semaphores of a namespace as clients see them.
    pub(crate) fn observed_semaphores(&self, life: &NamespaceRef) -> BTreeMap<&Path, ObservedSemaphore> {
        self.semaphores(life).map(|(path, semaphore)| (path, (&semaphore.view).into())).collect()
    }

    /// Returns the pools of a namespace as clients see them.
    pub(crate) fn observed_pools(&self, life: &NamespaceRef) -> BTreeMap<&Path, ObservedPool> {
        self.pools(life).map(|(path, pool)| (path, (&pool.view).into())).collect()
    }

    pub(crate) fn barriers(&self, life: &NamespaceRef) -> impl Iterator<Item = (&Path, &BarrierState)> {
        self.namespaces.get(life).into_iter().flat_map(|scene| &scene.barriers)
    }

    pub(crate) fn barrier(&self, life: &NamespaceRef, path: &Path) -> Option<&BarrierState> {
        self.namespaces.get(life)?.barriers.get(path)
    }

    /// Returns the barriers of a namespace as clients see them, with those who have come.
    pub(crate) fn observed_barriers(&self, life: &NamespaceRef) -> BTreeMap<&Path, BarrierMoment> {
        self.barriers(life).map(|(path, barrier)| (path, barrier.into())).collect()
    }

    pub(crate) fn awaits(&self, life: &NamespaceRef) -> &[AwaitView] {
        self.namespaces.get(life).map(|scene| scene.awaits.as_slice()).unwrap_or_default()
    }

    /// Returns how many await a condition that were not called.
    pub(crate) fn awaiting(&self, life: &NamespaceRef, condition: &(Path, String)) -> u64 {
        self.namespaces.get(life).and_then(|scene| scene.conditions.get(condition)).copied().unwrap_or_default()
    }

    /// Returns the latches of a namespace as clients see them.
    pub(crate) fn observed_latches(&self, life: &NamespaceRef) -> BTreeMap<&Path, ObservedLatch> {
        let latches = self.namespaces.get(life).into_iter().flat_map(|scene| &scene.latches);
        latches.map(|(path, latch)| (path, latch.into())).collect()
    }
}

impl NamespaceView {
    fn query(core: &ShardState, life: &NamespaceRef) -> Self {
        let query = Query::Locks { namespace: life.clone(), prefix: Path::default(), after: None, limit: PAGE_LIMIT };
        let locks = match core.query(0, &query).outcome {
            Ok(Response::Locks { locks, .. }) => locks,
            _ => Vec::new(),
        };
        Self {
            locks: locks.into_iter().map(|lock| (lock.path.clone(), lock)).collect(),
            waits: waits(core, life),
            semaphores: semaphores(core, life),
            pools: pools(core, life),
            permit_waits: permit_waits(core, life),
            latches: latches(core, life),
            barriers: barriers(core, life),
            awaits: awaits(core, life),
            conditions: conditions(core, life),
        }
    }
}

impl BarrierState {
    /// Returns those in the generation that gathers, in order of arrival.
    pub(crate) fn gathered(&self) -> impl Iterator<Item = &ArrivalView> {
        self.arrivals.iter().filter(|arrival| !arrival.inside)
    }

    pub(crate) fn inside(&self) -> impl Iterator<Item = &ArrivalView> {
        self.arrivals.iter().filter(|arrival| arrival.inside)
    }
}

impl PoolState {
    pub(crate) fn new(view: PoolView, members: Vec<MemberView>) -> Self {
        let mut holders: BTreeMap<u64, PermitHolderView> = BTreeMap::new();
        for member in &members {
            if let Some(holder) = &member.holder {
                let holder = holders.entry(holder.fencing_token).or_insert_with(|| holder.clone());
                holder.members.push(member.name.clone());
            }
        }
        let members = members.into_iter().map(|member| (member.name.clone(), member)).collect();
        Self { view, members, holders: holders.into_values().collect() }
    }
}

fn pools(core: &ShardState, life: &NamespaceRef) -> BTreeMap<Path, PoolState> {
    let (namespace, prefix) = (life.clone(), Path::default());
    let (kind, limit) = (Kind::Pool, PAGE_LIMIT);
    let list = Query::Permit(PermitQuery::List { namespace, kind, prefix, after: None, limit });
    let Ok(Response::Pools { pools, .. }) = core.query(0, &list).outcome else { return BTreeMap::new() };
    let with_members = |view: PoolView| {
        let (namespace, path) = (life.clone(), view.path.clone());
        let query = Query::Permit(PermitQuery::Members { namespace, path, after: None, limit: PAGE_LIMIT });
        let members = match core.query(0, &query).outcome {
            Ok(Response::PoolMembers { members, .. }) => members,
            _ => Vec::new(),
        };
        (view.path.clone(), PoolState::new(view, members))
    };
    pools.into_iter().map(with_members).collect()
}

fn semaphores(core: &ShardState, life: &NamespaceRef) -> BTreeMap<Path, SemaphoreState> {
    let (namespace, prefix) = (life.clone(), Path::default());
    let (kind, limit) = (Kind::Semaphore, PAGE_LIMIT);
    let list = Query::Permit(PermitQuery::List { namespace, kind, prefix, after: None, limit });
    let Ok(Response::Semaphores { semaphores, .. }) = core.query(0, &list).outcome else { return BTreeMap::new() };
    let with_holders = |view: SemaphoreView| {
        let (namespace, path) = (life.clone(), view.path.clone());
        let get = Query::Permit(PermitQuery::Get { namespace, path, after: None, limit: PAGE_LIMIT });
        let holders = match core.query(0, &get).outcome {
            Ok(Response::SemaphoreHolders { holders, .. }) => holders,
            _ => Vec::new(),
        };
        (view.path.clone(), SemaphoreState { view, holders })
    };
    semaphores.into_iter().map(with_holders).collect()
}

/// Returns all requests that wait for permits or members in a namespace, in order of arrival.
fn permit_waits(core: &ShardState, life: &NamespaceRef) -> Vec<PermitWaitView> {
    let query = PermitQuery::Waits { namespace: life.clone(), after: None, limit: PAGE_LIMIT };
    match core.query(0, &Query::Permit(query)).outcome {
        Ok(Response::PermitWaits { waits, .. }) => waits,
        _ => Vec::new(),
    }
}

fn latches(core: &ShardState, life: &NamespaceRef) -> BTreeMap<Path, LatchView> {
    let (namespace, prefix) = (life.clone(), Path::default());
    let query = Query::Latch(LatchQuery::List { namespace, prefix, after: None, limit: PAGE_LIMIT });
    match core.query(0, &query).outcome {
        Ok(Response::Latches { latches, .. }) => latches.into_iter().map(|latch| (latch.path.clone(), latch)).collect(),
        _ => BTreeMap::new(),
    }
}

fn barriers(core: &ShardState, life: &NamespaceRef) -> BTreeMap<Path, BarrierState> {
    let (namespace, prefix) = (life.clone(), Path::default());
    let list = Query::Barrier(BarrierQuery::List { namespace, prefix, after: None, limit: PAGE_LIMIT });
    let Ok(Response::Barriers { barriers, .. }) = core.query(0, &list).outcome else { return BTreeMap::new() };
    let with_arrivals = |view: BarrierView| {
        let get = BarrierQuery::Get { namespace: life.clone(), path: view.path.clone() };
        let (arrivals, ended) = match core.query(0, &Query::Barrier(get)).outcome {
            Ok(Response::BarrierArrivals { arrivals, outcomes, .. }) => (arrivals, outcomes),
            _ => (Vec::new(), Vec::new()),
        };
        (view.path.clone(), BarrierState { view, arrivals, ended })
    };
    barriers.into_iter().map(with_arrivals).collect()
}

fn awaits(core: &ShardState, life: &NamespaceRef) -> Vec<AwaitView> {
    let query = ConditionQuery::Waits { namespace: life.clone(), path: None, after: None, limit: PAGE_LIMIT };
    match core.query(0, &Query::Condition(query)).outcome {
        Ok(Response::Awaits { waits, .. }) => waits,
        _ => Vec::new(),
    }
}

fn conditions(core: &ShardState, life: &NamespaceRef) -> BTreeMap<(Path, String), u64> {
    let (namespace, prefix) = (life.clone(), Path::default());
    let query = ConditionQuery::List { namespace, prefix, after: None, limit: PAGE_LIMIT };
    match core.query(0, &Query::Condition(query)).outcome {
        Ok(Response::Conditions { conditions, .. }) => {
            conditions.into_iter().map(|it| ((it.path, it.condition), it.awaiting)).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Returns all waiting requests of a namespace, in order of arrival.
pub(crate) fn waits(core: &ShardState, life: &NamespaceRef) -> Vec<WaitView> {
    let query = Query::Waits { namespace: life.clone(), after: None, limit: PAGE_LIMIT };
    match core.query(0, &query).outcome {
        Ok(Response::Waits { waits, .. }) => waits,
        _ => Vec::new(),
    }
}

/// Whether two claims of different owners conflict; decided here, without the core.
pub(crate) fn conflict(one: &Claim, other: &Claim) -> bool {
    let related = one.path.0.starts_with(&other.path.0) || other.path.0.starts_with(&one.path.0);
    related && (one.mode == Mode::Write || other.mode == Mode::Write)
}

/// Returns the claim of a hold.
pub(crate) fn claim_of(hold: &Hold<'_>) -> Claim {
    Claim { path: hold.path.clone(), mode: hold.view.mode }
}

/// A lock as clients see it.
pub(crate) fn to_observed_lock(view: &LockView) -> ObservedLock {
    let holders = view.write_lock_holder.iter().chain(&view.read_lock_holders);
    let holders = holders.map(|holder| ObservedHolder {
        owner: holder.owner.clone(),
        mode: holder.mode,
        token: holder.fencing_token,
        phase: holder.phase,
        asked: holder.release_requested.as_deref().map(ObservedAsk::from),
    });
    ObservedLock { path: view.path.clone(), state: view.state, revision: view.revision, holders: holders.collect() }
}
