//! Locks as they are shown.

use super::namespace::Lock;
use super::{LocksCore, NamespaceKey};
use crate::{LockState, LockView, Mode, Path, Revision};

impl LocksCore {
    /// A lock as it is now, with at most so many readers.
    pub(super) fn view(&self, key: NamespaceKey, path: &Path, max_readers: usize) -> LockView {
        match self.namespaces.get(&key).and_then(|namespace| namespace.locks.get(path)) {
            Some(lock) => view_of_held(path, lock, max_readers),
            None => view_of_free(path, self.state.revision),
        }
    }
}

pub(super) fn view_of_held(path: &Path, lock: &Lock, max_readers: usize) -> LockView {
    let first = lock.holds.first().expect("a lock without holds is not kept");
    let mut view = LockView {
        path: path.clone(),
        state: LockState::WriteLocked,
        locked_at_ms: Some(first.locked_at_ms),
        write_lock_holder: None,
        read_lock_holders: Vec::new(),
        holders_total: lock.holds.len() as u64,
        waiting: 0,
        revision: lock.revision,
    };
    if first.mode == Mode::Write {
        view.write_lock_holder = Some(first.view());
    } else {
        view.state = LockState::ReadLocked;
        view.read_lock_holders = lock.holds.iter().take(max_readers).map(|hold| hold.view()).collect();
    }
    view
}

fn view_of_free(path: &Path, revision: Revision) -> LockView {
    LockView {
        path: path.clone(),
        state: LockState::Unlocked,
        locked_at_ms: None,
        write_lock_holder: None,
        read_lock_holders: Vec::new(),
        holders_total: 0,
        waiting: 0,
        revision,
    }
}
