//! A locks shard as it looks after an entry: every hold and every waiting request.

use std::collections::BTreeMap;

use holdfast_core::shard::ShardCore;
use holdfast_core::{Answer, Claim, HolderView, LockView, Mode, NamespaceRef, Path, Query, WaitView};

use crate::history::{SeenHolder, SeenLock};

/// More than there ever are here.
const ALL: u32 = 1_000;

/// All that is held and waited for.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) locks: BTreeMap<(NamespaceRef, Path), LockView>,
    pub(crate) waits: BTreeMap<NamespaceRef, Vec<WaitView>>,
}

/// One hold.
pub(crate) struct Hold<'a> {
    pub(crate) path: &'a Path,
    pub(crate) view: &'a HolderView,
}

impl Look {
    pub(crate) fn at(core: &ShardCore, open: impl Iterator<Item = NamespaceRef>) -> Self {
        let mut look = Self::default();
        for life in open {
            let query = Query::Locks { namespace: life.clone(), prefix: Path::default(), after: None, limit: ALL };
            if let Ok(Answer::Locks { locks, .. }) = core.query(0, &query).outcome {
                look.locks.extend(locks.into_iter().map(|lock| ((life.clone(), lock.path.clone()), lock)));
            }
            let waits = waits(core, &life);
            look.waits.insert(life, waits);
        }
        look
    }

    pub(crate) fn holds(&self, life: &NamespaceRef) -> impl Iterator<Item = Hold<'_>> {
        let here = self.locks.iter().filter(move |((of, _), _)| of == life);
        here.flat_map(|((_, path), lock)| {
            let holders = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
            holders.map(move |view| Hold { path, view })
        })
    }

    pub(crate) fn waits(&self, life: &NamespaceRef) -> &[WaitView] {
        self.waits.get(life).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Everybody who waits in a namespace, in order of arrival.
pub(crate) fn waits(core: &ShardCore, life: &NamespaceRef) -> Vec<WaitView> {
    let query = Query::Waits { namespace: life.clone(), after: None, limit: ALL };
    match core.query(0, &query).outcome {
        Ok(Answer::Waits { waits, .. }) => waits,
        _ => Vec::new(),
    }
}

/// Whether two claims of different owners exclude one another: told anew here, and not by the core.
pub(crate) fn conflict(one: &Claim, other: &Claim) -> bool {
    let related = one.path.0.starts_with(&other.path.0) || other.path.0.starts_with(&one.path.0);
    related && (one.mode == Mode::Write || other.mode == Mode::Write)
}

/// What a hold claims.
pub(crate) fn claim_of(hold: &Hold<'_>) -> Claim {
    Claim { path: hold.path.clone(), mode: hold.view.mode }
}

/// A lock as clients see it.
pub(crate) fn seen(view: &LockView) -> SeenLock {
    let holders = view.write_lock_holder.iter().chain(&view.read_lock_holders);
    let holders = holders.map(|holder| SeenHolder {
        owner: holder.owner.clone(),
        mode: holder.mode,
        token: holder.fencing_token,
        phase: holder.phase,
    });
    SeenLock { path: view.path.clone(), state: view.state, revision: view.revision, holders: holders.collect() }
}
