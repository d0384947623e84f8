//! The scheduling groups of a process, by account and urgency.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::scheduling_group::SchedulingGroup;

/// Accounts after which those without tasks are forgotten.
const MIN_SWEEP: usize = 1_024;

/// Gives all connections of a process the same group for an account, as long as one of them has it.
#[derive(Debug, Default)]
pub struct GroupRegistry(Mutex<Groups>);

#[derive(Debug, Default)]
struct Groups {
    by_account: HashMap<(u64, bool), Weak<SchedulingGroup>>,
    sweep_at: usize,
}

impl GroupRegistry {
    /// Returns the group of an account's urgent tasks, or of its others.
    pub fn group(&self, account: u64, is_urgent: bool) -> Arc<SchedulingGroup> {
        let mut groups = self.0.lock();
        if let Some(group) = groups.by_account.get(&(account, is_urgent)).and_then(Weak::upgrade) {
            return group;
        }
        if groups.by_account.len() >= groups.sweep_at {
            groups.by_account.retain(|_, group| group.strong_count() > 0);
            groups.sweep_at = MIN_SWEEP.max(2 * groups.by_account.len());
        }
        let group = Arc::default();
        groups.by_account.insert((account, is_urgent), Arc::downgrade(&group));
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_one_group_and_nothing_is_kept_of_those_that_are_gone() {
        let registry = GroupRegistry::default();
        let first = registry.group(0, false);
        assert!(!Arc::ptr_eq(&first, &registry.group(0, true)));
        for account in 1..=10_000 {
            assert!(!Arc::ptr_eq(&first, &registry.group(account, false)));
        }
        assert!(Arc::ptr_eq(&first, &registry.group(0, false)));
        assert!(registry.0.lock().by_account.len() <= MIN_SWEEP);
    }
}
