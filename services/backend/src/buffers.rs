//! Bytes of requests, answers and messages that a gateway keeps of each account until they are done or sent.

use holdfast_routing::ByteBudget;
use holdfast_types::{Account, AccountId};
use moka::sync::Cache;

/// Maximum accounts with a budget. Budgets have no time to live: a connection that stays open uses its account's
/// without looking it up again.
const MAX_ACCOUNTS: u64 = 100_000;

/// The budgets of an account; absent for a caller without one.
#[derive(Clone, Debug, Default)]
pub struct AccountBuffers {
    /// For requests, until their calls end, and messages of clients, until they start.
    pub requests: Option<ByteBudget>,
    /// For answers and messages of the service, until they are sent.
    pub answers: Option<ByteBudget>,
}

/// The budgets of each account.
pub(crate) struct BufferBudgets {
    budgets: Cache<AccountId, AccountBuffers>,
}

impl Default for BufferBudgets {
    fn default() -> Self {
        Self { budgets: Cache::builder().max_capacity(MAX_ACCOUNTS).build() }
    }
}

impl BufferBudgets {
    /// Returns the bytes of an account that are in use, of that direction which has more.
    pub(crate) fn used(&self, account: AccountId) -> u64 {
        self.budgets.get(&account).map_or(0, |buffers| buffers.used())
    }

    /// Returns the budgets of an account. After a change of its limit, what was reserved before no longer counts.
    pub(crate) fn of_account(&self, account: &Account) -> AccountBuffers {
        let max = u32::try_from(account.limits.max_buffered_bytes).unwrap_or(u32::MAX);
        let buffers = self.budgets.get_with(account.id, || AccountBuffers::new(max));
        if buffers.answers.as_ref().is_some_and(|budget| budget.limit() == max) {
            return buffers;
        }
        let buffers = AccountBuffers::new(max);
        self.budgets.insert(account.id, buffers.clone());
        buffers
    }
}

impl AccountBuffers {
    /// Returns the bytes in use, of that direction which has more.
    fn used(&self) -> u64 {
        [&self.requests, &self.answers].into_iter().flatten().map(ByteBudget::used).max().unwrap_or(0)
    }

    fn new(max: u32) -> Self {
        Self { requests: Some(ByteBudget::new(max)), answers: Some(ByteBudget::new(max)) }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{AccountStatus, Limits};

    use super::*;

    fn account(id: u64, max_buffered_bytes: u64) -> Account {
        Account {
            id: AccountId(id),
            email: "a@b".to_owned(),
            full_name: "A".to_owned(),
            max_number_of_namespaces: 1,
            limits: Limits { max_buffered_bytes, ..Limits::default() },
            status: AccountStatus::Active,
            created_at_ms: 0,
            updated_at_ms: 0,
            revision: 1,
        }
    }

    fn answers(budgets: &BufferBudgets, account: Account) -> ByteBudget {
        budgets.of_account(&account).answers.unwrap()
    }

    #[test]
    fn an_account_has_one_budget_and_another_has_its_own() {
        let budgets = BufferBudgets::default();
        let reserve = |id, bytes| answers(&budgets, account(id, 100)).try_reserve(bytes);
        let reserved = reserve(1, 60).unwrap();
        assert!(reserve(1, 41).is_none() && reserve(1, 40).is_some() && reserve(2, 100).is_some());
        let requests = budgets.of_account(&account(1, 100)).requests.unwrap();
        assert!(requests.try_reserve(100).is_some(), "unread answers stop no requests");
        let _request = requests.try_reserve(20).unwrap();
        assert_eq!([1, 2, 3].map(|id| budgets.used(AccountId(id))), [60, 0, 0]);
        drop(reserved);
        assert_eq!(budgets.used(AccountId(1)), 20);
        assert!(reserve(1, 100).is_some());
    }

    #[test]
    fn a_changed_limit_counts_from_then_on() {
        let budgets = BufferBudgets::default();
        let _reserved = answers(&budgets, account(1, 100)).try_reserve(100).unwrap();
        assert!(answers(&budgets, account(1, 200)).try_reserve(200).is_some());
    }
}
