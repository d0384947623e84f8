//! A locks shard as it looks after an entry: every hold and every waiting request.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_core::shard::ShardCore;
use holdfast_core::{
    Answer, CancelSeveral, Claim, HolderView, LockView, LocksCommand, Mode, NamespaceRef, Path, Query, Reattach,
    WaitView,
};

use crate::history::{SeenHolder, SeenLock};

/// More than there ever are here.
const ALL: u32 = 1_000;

/// All that is held and waited for in a namespace.
#[derive(Default)]
pub(crate) struct Scene {
    pub(crate) locks: BTreeMap<Path, LockView>,
    pub(crate) waits: Vec<WaitView>,
}

/// All that is held and waited for, by namespace. What nothing has happened to is shared from look to look.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) scenes: BTreeMap<NamespaceRef, Rc<Scene>>,
}

/// Which namespaces a step can have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touched<'a> {
    Nothing,
    One(&'a NamespaceRef),
    Any,
}

impl<'a> Touched<'a> {
    /// By a command.
    pub(crate) fn by(command: &'a LocksCommand) -> Self {
        match command {
            LocksCommand::Acquire(acquire) | LocksCommand::Reattach(Reattach { acquire, .. }) => {
                Self::One(&acquire.namespace)
            }
            LocksCommand::Release(release) => Self::One(&release.namespace),
            LocksCommand::Cancel(cancel) | LocksCommand::CancelSeveral(CancelSeveral { cancel, .. }) => {
                Self::One(&cancel.namespace)
            }
            LocksCommand::Delete { namespace, .. } | LocksCommand::CloseSession { namespace, .. } => {
                Self::One(namespace)
            }
            LocksCommand::OpenSession(open) => Self::One(&open.namespace),
            LocksCommand::LockInfo(info) => Self::One(&info.namespace),
            _ => Self::Any,
        }
    }

    pub(crate) fn is(self, life: &NamespaceRef) -> bool {
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

impl Look {
    /// After a step. Only what it can have changed is looked at anew.
    pub(crate) fn after(
        &self,
        core: &ShardCore,
        open: impl Iterator<Item = NamespaceRef>,
        touched: Touched<'_>,
    ) -> Self {
        let scene = |life: NamespaceRef| match self.scenes.get(&life).filter(|_| !touched.is(&life)) {
            Some(same) => (life, Rc::clone(same)),
            None => {
                let scene = Rc::new(Scene::at(core, &life));
                (life, scene)
            }
        };
        Self { scenes: open.map(scene).collect() }
    }

    /// The namespaces that do not look as they did.
    pub(crate) fn changed<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a NamespaceRef> {
        let is_same = |life: &NamespaceRef| match (before.scenes.get(life), self.scenes.get(life)) {
            (Some(was), Some(is)) => Rc::ptr_eq(was, is),
            _ => false,
        };
        let gone = before.scenes.keys().filter(|life| !self.scenes.contains_key(life));
        gone.chain(self.scenes.keys()).filter(move |life| !is_same(life))
    }

    pub(crate) fn locks(&self, life: &NamespaceRef) -> impl Iterator<Item = (&Path, &LockView)> {
        self.scenes.get(life).into_iter().flat_map(|scene| &scene.locks)
    }

    pub(crate) fn lock(&self, life: &NamespaceRef, path: &Path) -> Option<&LockView> {
        self.scenes.get(life)?.locks.get(path)
    }

    pub(crate) fn holds(&self, life: &NamespaceRef) -> impl Iterator<Item = Hold<'_>> {
        self.locks(life).flat_map(|(path, lock)| {
            let holders = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
            holders.map(move |view| Hold { path, view })
        })
    }

    pub(crate) fn waits(&self, life: &NamespaceRef) -> &[WaitView] {
        self.scenes.get(life).map(|scene| scene.waits.as_slice()).unwrap_or_default()
    }
}

impl Scene {
    fn at(core: &ShardCore, life: &NamespaceRef) -> Self {
        let query = Query::Locks { namespace: life.clone(), prefix: Path::default(), after: None, limit: ALL };
        let locks = match core.query(0, &query).outcome {
            Ok(Answer::Locks { locks, .. }) => locks,
            _ => Vec::new(),
        };
        Self { locks: locks.into_iter().map(|lock| (lock.path.clone(), lock)).collect(), waits: waits(core, life) }
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
