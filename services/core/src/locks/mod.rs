//! Locks: who holds which path of which namespace.
//!
//! Invariant: no two owners hold the same path at once unless all of them read. Besides a small record for each open
//! namespace only what is held takes memory: when the last hold of a lock ends, nothing of the lock remains.
//!
//! Paths are independent of one another here. What is in the way of a claim is decided in `conflict.rs` alone, so that
//! ancestors and descendants have one place to come into.

mod acquire;
mod conflict;
mod delete;
mod deliver;
mod expire;
mod hold;
mod namespace;
mod queries;
mod release;
mod snapshot;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::shard_state::{Handled, ShardState};
use crate::{AccountId, Context, Incarnation, LocksCommand, NamespaceRef, Path, Refusal};
use hold::{Deadline, Hold};
use namespace::{Lock, Namespace};

/// The state of a locks shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocksCore {
    pub(crate) state: ShardState,
    /// The open incarnation of each name.
    names: BTreeMap<(AccountId, String), Incarnation>,
    namespaces: BTreeMap<NamespaceKey, Namespace>,
    /// The end of every hold's present phase.
    deadlines: BTreeSet<Deadline>,
}

/// Names an open namespace; an incarnation is unique in its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NamespaceKey {
    account: AccountId,
    incarnation: Incarnation,
}

impl LocksCore {
    pub(crate) fn new(shard_id: &str) -> Self {
        Self {
            state: ShardState::new(shard_id),
            names: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(crate) fn apply(&mut self, context: &Context, command: &LocksCommand) -> Handled {
        let answer = match command {
            LocksCommand::Deliver { source, number, message } => self.deliver(source, *number, message),
            LocksCommand::Acquire(request) => self.acquire(context, request)?,
            LocksCommand::Release(request) => self.release(request)?,
            LocksCommand::Delete { namespace, path } => self.delete(namespace, path)?,
        };
        Ok((answer, None))
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|deadline| deadline.at_ms)
    }

    /// The open namespace that a command is about.
    fn find(&self, wanted: &NamespaceRef) -> Result<(NamespaceKey, &Namespace), Refusal> {
        let key = NamespaceKey { account: wanted.account, incarnation: wanted.incarnation };
        match self.namespaces.get(&key) {
            Some(namespace) if namespace.name == wanted.name => Ok((key, namespace)),
            _ => Err(Refusal::NamespaceNotFound),
        }
    }

    fn open_namespace(&mut self, key: NamespaceKey) -> &mut Namespace {
        self.namespaces.get_mut(&key).expect("the key was just found, and nothing closes a namespace in between")
    }

    /// Adds a hold that conflicts with nothing. The lock changes with the grant.
    fn grant(&mut self, key: NamespaceKey, path: &Path, hold: Hold) {
        let namespace = self.open_namespace(key);
        let path = namespace.shared_path(path);
        let deadline = hold.deadline(key, &path);
        namespace.add(path, hold);
        let is_new = self.deadlines.insert(deadline);
        assert!(is_new, "every hold has a deadline of its own");
    }

    /// Changes a hold that is there, and keeps its deadline in step.
    fn change(&mut self, key: NamespaceKey, path: &Path, index: usize, change: impl FnOnce(&mut Hold)) {
        let namespace = self.open_namespace(key);
        let path = namespace.shared_path(path);
        let hold = namespace.hold_mut(&path, index);
        let before = hold.deadline(key, &path);
        change(hold);
        let after = hold.deadline(key, &path);
        self.drop_deadline(&before);
        self.deadlines.insert(after);
    }

    /// Ends one hold, with a revision of its own.
    fn end(&mut self, key: NamespaceKey, path: &Path, index: usize) {
        let revision = self.state.next_revision();
        let namespace = self.open_namespace(key);
        let path = namespace.shared_path(path);
        let hold = namespace.remove(&path, index, revision);
        self.drop_deadline(&hold.deadline(key, &path));
    }

    /// Ends all holds of a lock that was taken out of its namespace, in order of arrival.
    fn end_all(&mut self, key: NamespaceKey, path: &Arc<Path>, lock: &Lock) {
        for hold in &lock.holds {
            self.state.next_revision();
            self.drop_deadline(&hold.deadline(key, path));
        }
    }

    fn drop_deadline(&mut self, deadline: &Deadline) {
        let was_there = self.deadlines.remove(deadline);
        assert!(was_there, "the end of every hold's present phase is in the index");
    }
}
