//! The latest changes, for gateways that cache accounts and keys.

use std::collections::VecDeque;

use crate::{AccountChange, CommandError, Revision};

/// Changes in order of revision; evicts the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeLog {
    latest: VecDeque<(Revision, AccountChange)>,
    /// The revision of the last evicted change; 0 if there is none.
    compacted: Revision,
}

impl ChangeLog {
    /// Adds a change, keeping at most `max`.
    pub(super) fn push(&mut self, revision: Revision, change: AccountChange, max: usize) {
        assert!(self.latest.back().is_none_or(|(last, _)| *last < revision), "changes have rising revisions");
        self.latest.push_back((revision, change));
        while self.latest.len() > max {
            if let Some((revision, _)) = self.latest.pop_front() {
                self.compacted = revision;
            }
        }
    }

    /// Returns the changes after a revision. A revision that was never reached is an error too: the reader has a
    /// history that this shard does not have, and should drop its cache.
    pub(super) fn after(&self, after: Revision, now: Revision) -> Result<Vec<AccountChange>, CommandError> {
        if after < self.compacted || after > now {
            return Err(CommandError::ChangesCompacted { oldest: self.compacted, now });
        }
        let first = self.latest.partition_point(|(revision, _)| *revision <= after);
        Ok(self.latest.range(first..).map(|(_, change)| change.clone()).collect())
    }

    pub(super) fn compacted_revision(&self) -> Revision {
        self.compacted
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Revision, AccountChange)> {
        self.latest.iter()
    }

    pub(super) fn restore_compacted_revision(&mut self, forgotten: Revision) {
        self.compacted = forgotten;
    }

    /// Adds a change of a snapshot. Returns false if it is out of order or exceeds `max`.
    pub(super) fn restore(&mut self, revision: Revision, change: AccountChange, max: usize) -> bool {
        let last = self.latest.back().map_or(self.compacted, |(last, _)| *last);
        let fits = revision > last && self.latest.len() < max;
        if fits {
            self.latest.push_back((revision, change));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AccountId;

    const MAX: usize = 5;

    #[test]
    fn changes_that_were_forgotten_are_refused_and_the_rest_is_answered() {
        let total = MAX as u64 + 3;
        let mut changes = ChangeLog::default();
        for revision in 1..=total {
            changes.push(revision, AccountChange::Account(AccountId(revision)), MAX);
        }
        assert_eq!(changes.after(2, total), Err(CommandError::ChangesCompacted { oldest: 3, now: total }));
        assert_eq!(changes.after(3, total).unwrap().len(), MAX);
        assert_eq!(changes.after(total - 1, total).unwrap(), [AccountChange::Account(AccountId(total))]);
        assert_eq!(changes.after(total, total).unwrap(), []);
        assert!(changes.after(total + 1, total).is_err());
    }
}
