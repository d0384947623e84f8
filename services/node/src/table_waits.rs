//! Counts the calls that wait for a lock table in the leader's memory. While a table is rebuilt, every session of its
//! namespace may wait: they take no room from calls about other namespaces of the shard.

use std::collections::BTreeMap;

use holdfast_core::NamespaceRef;
use parking_lot::Mutex;

/// Calls that wait for one table. Further ones are refused at once, and sent again later.
const MAX_OF_TABLE: usize = 1_024;
/// Calls that wait for all tables of a shard: half of those that may be in progress.
const MAX_OF_SHARD: usize = 8_192;

/// The calls that wait, by the account and the incarnation of their namespace.
#[derive(Debug, Default)]
pub(crate) struct TableWaits(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of_shard: usize,
    of_table: BTreeMap<(u64, u64), usize>,
}

/// A call that waits until this is dropped.
#[derive(Debug)]
pub(crate) struct TableWait<'a> {
    waits: &'a TableWaits,
    table: (u64, u64),
}

impl TableWaits {
    /// Counts a call that waits for the table of a namespace; `None` if there are too many.
    pub(crate) fn enter(&self, namespace: &NamespaceRef) -> Option<TableWait<'_>> {
        let table = (namespace.account.0, namespace.incarnation.0);
        let mut counts = self.0.lock();
        let there = counts.of_table.get(&table).copied().unwrap_or_default();
        if there >= MAX_OF_TABLE || counts.of_shard >= MAX_OF_SHARD {
            return None;
        }
        counts.of_table.insert(table, there + 1);
        counts.of_shard += 1;
        Some(TableWait { waits: self, table })
    }
}

impl Drop for TableWait<'_> {
    fn drop(&mut self) {
        let mut counts = self.waits.0.lock();
        counts.of_shard -= 1;
        if let Some(there) = counts.of_table.get_mut(&self.table) {
            *there -= 1;
            if *there == 0 {
                counts.of_table.remove(&self.table);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::Incarnation;

    use super::*;
    use crate::testing::namespace;

    #[test]
    fn calls_for_one_table_leave_room_for_those_of_others() {
        let waits = TableWaits::default();
        let of = |number| NamespaceRef { incarnation: Incarnation(number), ..namespace() };
        let mut first: Vec<_> = (0..MAX_OF_TABLE).map(|_| waits.enter(&of(1)).expect("there is room")).collect();
        assert!(waits.enter(&of(1)).is_none() && waits.enter(&of(2)).is_some());
        first.pop();
        assert!(waits.enter(&of(1)).is_some());
        drop(first);
        assert!(waits.0.lock().of_table.is_empty(), "nothing is kept of tables that nobody waits for");

        let numbers = (0..MAX_OF_SHARD as u64).map(|number| number / MAX_OF_TABLE as u64);
        let all: Vec<_> = numbers.map(|number| waits.enter(&of(number)).expect("there is room")).collect();
        assert!(waits.enter(&of(99)).is_none(), "other calls to the shard have the rest");
        drop(all);
        assert!(waits.enter(&of(99)).is_some());
    }
}
