//! What a command would cost and whether it may be proposed: memory, rates, units.

use holdfast_core::{AccountId, Application, Command, CommandError, LocksCommand, Rate, Rules};
use holdfast_replication::{CommandCost, StateMachineError};
use tokio::time::Instant;

use super::{ShardMachine, decode};

impl ShardMachine {
    /// Checks whether there is memory for the state that a command creates.
    ///
    /// # Errors
    /// When there is none, on this node or for the account. Existing state is never rejected, and a replica that does
    /// not lead in this term rejects nothing.
    pub(crate) fn check_capacity(&self, term: u64, command: &LocksCommand) -> Result<(), CommandError> {
        let Some(account) = command.growing_account().filter(|_| self.is_under_pressure()) else { return Ok(()) };
        let refused = self.memory.check(account);
        let inner = self.inner.lock();
        let leads = inner.leader_state.as_ref().is_some_and(|table| table.term == term);
        match &inner.core {
            Some(core) if leads && inner.rules >= Rules::TWO && core.creates_state(command) => refused,
            _ => Ok(()),
        }
    }

    /// Returns whether accounts change keys or namespaces in this shard.
    pub(crate) fn has_rated_changes(&self) -> bool {
        self.application != Application::Locks
    }

    /// Counts a command that changes keys or namespaces, if it is one.
    ///
    /// # Errors
    /// When the account makes too many of them. A replica that does not lead in this term rejects nothing.
    pub(crate) fn check_change_rate(&self, term: u64, command: &Command) -> Result<(), CommandError> {
        let Some((account, limit)) = command.rated_change() else { return Ok(()) };
        let checked = self.inspect_as_leader(term, |core, leads| {
            // The command itself finds out that the account is not there.
            let Some(max) = core.limits_of(account).map(|limits| limit.value_of(limits)) else { return Ok(()) };
            let now = Instant::now().into_std();
            leads.change_rates.admit(account, Rate::per_minute(max), now).map_err(|wait| (max, wait))
        });
        let Some(Err((max, wait))) = checked else { return Ok(()) };
        let what = limit.what.first().copied().unwrap_or(limit.name).to_owned();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Err(CommandError::RateLimited { what, max, wait_ms })
    }

    pub(crate) fn assess(&self, rules: u16, command: &[u8]) -> Result<CommandCost, StateMachineError> {
        let command = decode(Rules(rules), command)?;
        // An operator has it logged for the state that a failed shard is to get.
        if !matches!(command, Command::AdvanceNumbers) {
            self.check_health()?;
        }
        let (account, kind) = (command.account().map(|account| account.0), command.cost_kind() as u8);
        Ok(CommandCost { account, kind, units: command.min_units() })
    }

    pub(crate) fn price(&self, account: u64, kind: u8, min_units: u64) -> u64 {
        self.costs.lock().price((AccountId(account), kind), min_units, Instant::now())
    }

    /// Returns whether the recent commands of an account cost much more than their minimum.
    pub(crate) fn has_expensive_accounts(&self) -> bool {
        !self.costs.lock().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn record_cost(&self, account: AccountId, kind: u8, min_units: u64, units: u64) {
        self.costs.lock().record((account, kind), min_units, units, Instant::now());
    }
}
