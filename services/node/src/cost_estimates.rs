//! What the commands of an account are expected to cost, by what those before took.

use std::collections::HashMap;

use holdfast_core::{AccountId, Command};
use holdfast_replication::CommandCost;

/// Accounts that are remembered, each of which lately had commands much dearer than they look.
const MAX_ACCOUNTS: usize = 1_024;
/// Ratios are kept in sixteenths.
const ONE: u64 = 16;
/// The newest counts for a quarter.
const SMOOTHING: u64 = 4;

/// By how much the commands of each account are dearer than [`Command::min_units`] says. Accounts that are not listed have
/// commands that cost less than twice that.
#[derive(Debug, Default)]
pub(crate) struct CostEstimates {
    ratios: HashMap<AccountId, u64>,
}

impl CostEstimates {
    /// What a command is expected to cost.
    pub(crate) fn of(&self, command: &Command) -> CommandCost {
        let account = command.account();
        let ratio = account.and_then(|account| self.ratios.get(&account)).copied().unwrap_or(ONE);
        CommandCost { account: account.map_or(0, |account| account.0), units: command.min_units() * ratio / ONE }
    }

    /// Learns what a command took.
    pub(crate) fn record(&mut self, account: AccountId, expected_units: u64, units: u64) {
        let newest = units * ONE / expected_units.max(1);
        let known = self.ratios.get(&account).copied();
        if known.is_none() && newest < 2 * ONE {
            return;
        }
        let known = known.unwrap_or(ONE);
        let ratio = (known * (SMOOTHING - 1) + newest) / SMOOTHING;
        if ratio < 2 * ONE {
            self.ratios.remove(&account);
            return;
        }
        if self.ratios.len() >= MAX_ACCOUNTS && !self.ratios.contains_key(&account) {
            let least = self.ratios.iter().min_by_key(|(_, ratio)| **ratio).map(|(account, _)| *account);
            least.and_then(|least| self.ratios.remove(&least));
        }
        self.ratios.insert(account, ratio);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{LocksCommand, NamespaceRef, Path};

    use super::*;

    fn command(account: u64) -> Command {
        let namespace = NamespaceRef { account: AccountId(account), ..crate::testing::namespace() };
        Command::Locks(LocksCommand::Delete { namespace, path: Path::flat("a") })
    }

    #[test]
    fn dear_commands_make_those_of_the_same_account_dear_until_they_are_cheap_again() {
        let mut estimates = CostEstimates::default();
        let cheap = estimates.of(&command(1));
        for _ in 0..20 {
            estimates.record(AccountId(1), cheap.units, cheap.units * 100);
        }
        assert!(estimates.of(&command(1)).units > cheap.units * 90);
        assert_eq!(estimates.of(&command(2)).units, cheap.units);
        for _ in 0..20 {
            estimates.record(AccountId(1), cheap.units, cheap.units);
        }
        assert_eq!(estimates.of(&command(1)).units, cheap.units);
        assert!(estimates.ratios.is_empty());
    }

    #[test]
    fn only_so_many_accounts_are_remembered_and_the_dearest_of_them() {
        let mut estimates = CostEstimates::default();
        for account in 0..2 * MAX_ACCOUNTS as u64 {
            estimates.record(AccountId(account), 10, 1_000 + account);
        }
        assert_eq!(estimates.ratios.len(), MAX_ACCOUNTS);
    }
}
