//! Counts the calls that wait for a lock table in the leader's memory. While a table is rebuilt, every session of its
//! namespace may wait: they take no room from calls about other namespaces of the shard, nor those for all tables of an
//! account from calls of other accounts.

use std::collections::BTreeMap;

use holdfast_core::NamespaceRef;
use parking_lot::Mutex;

/// Calls that wait for one table. Further ones are refused at once, and sent again later.
const MAX_OF_TABLE: usize = 1_024;
/// Calls of one account that wait for its tables in a shard, however many those are.
const MAX_OF_ACCOUNT: usize = 2_048;
/// Calls that wait for all tables of a shard: half of the maximum number of calls in progress.
const MAX_OF_SHARD: usize = 8_192;

/// The calls that wait, by the account and the incarnation of their namespace.
#[derive(Debug, Default)]
pub(crate) struct TableWaits(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of_shard: usize,
    of_account: BTreeMap<u64, usize>,
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
        let of_table = counts.of_table.get(&table).copied().unwrap_or_default();
        let of_account = counts.of_account.get(&table.0).copied().unwrap_or_default();
        if of_table >= MAX_OF_TABLE || of_account >= MAX_OF_ACCOUNT || counts.of_shard >= MAX_OF_SHARD {
            return None;
        }
        counts.of_table.insert(table, of_table + 1);
        counts.of_account.insert(table.0, of_account + 1);
        counts.of_shard += 1;
        Some(TableWait { waits: self, table })
    }
}

impl Drop for TableWait<'_> {
    fn drop(&mut self) {
        let mut counts = self.waits.0.lock();
        counts.of_shard -= 1;
        leave(&mut counts.of_table, self.table);
        leave(&mut counts.of_account, self.table.0);
    }
}

/// Counts one less. Nothing is kept of what nobody waits for.
fn leave<K: Ord + Copy>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(there) = counts.get_mut(&key) {
        *there -= 1;
        if *there == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Incarnation};

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
        let is_empty = |counts: &Counts| counts.of_table.is_empty() && counts.of_account.is_empty();
        assert!(is_empty(&waits.0.lock()), "nothing is kept of tables that nobody waits for");
    }

    #[test]
    fn calls_of_an_account_for_many_tables_leave_room_for_those_of_others() {
        let waits = TableWaits::default();
        let of = |account, number| NamespaceRef {
            account: AccountId(account),
            incarnation: Incarnation(number),
            ..namespace()
        };
        let first: Vec<_> = (0..MAX_OF_ACCOUNT as u64).map(|number| waits.enter(&of(1, number))).collect();
        assert!(first.iter().all(Option::is_some));
        assert!(waits.enter(&of(1, 9_999)).is_none() && waits.enter(&of(2, 9_999)).is_some());

        let numbers = (MAX_OF_ACCOUNT..MAX_OF_SHARD).map(|number| number / MAX_OF_TABLE + 2);
        let others: Vec<_> = numbers.map(|account| waits.enter(&of(account as u64, 1))).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(waits.enter(&of(99, 1)).is_none(), "other calls to the shard have the rest");
        drop((first, others));
        assert!(waits.enter(&of(99, 1)).is_some());
    }
}
