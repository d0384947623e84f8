//! Usage of accounts. The step that causes usage also counts it, so it is the same on every replica and costs no entry.

use super::LocksState;
use super::namespace::Namespace;
use crate::{
    AccountId, AcquireAtLeast, ConditionCommand, Incarnation, Kind, LocksCommand, NamespaceUsage, PermitCommand,
    Reattach, Response, UsageTotals,
};

impl LocksState {
    /// Counts a caller's command that was not rejected.
    pub(super) fn count_operation(&mut self, command: &LocksCommand) {
        if let LocksCommand::Session(command) = command {
            if let Ok((slot, _)) = self.session_of(command) {
                self.count_operation_in(slot);
            }
            return;
        }
        let namespace = match command {
            LocksCommand::Acquire(acquire)
            | LocksCommand::Reattach(Reattach { acquire, .. })
            | LocksCommand::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => &acquire.namespace,
            LocksCommand::AskRelease(ask) => &ask.namespace,
            LocksCommand::Release(release) => &release.namespace,
            LocksCommand::Delete { namespace, .. } | LocksCommand::CloseSession { namespace, .. } => namespace,
            LocksCommand::Reset(reset) => &reset.namespace,
            LocksCommand::OpenSession(open) => &open.namespace,
            LocksCommand::LockInfo(info) => &info.namespace,
            LocksCommand::Latch(command) => command.namespace(),
            LocksCommand::Condition(command @ (ConditionCommand::Await(_) | ConditionCommand::Signal(_))) => {
                command.namespace()
            }
            LocksCommand::Permit(
                command @ (PermitCommand::Configure(_)
                | PermitCommand::ConfigurePool(_)
                | PermitCommand::ChangePool(_)
                | PermitCommand::Acquire(_)
                | PermitCommand::Release(_)
                | PermitCommand::Delete { .. }),
            ) => command.namespace(),
            LocksCommand::Barrier(command) => command.namespace(),
            LocksCommand::Table(command) => match command.namespace() {
                Some(namespace) => namespace,
                None => return,
            },
            // These commands come from nodes and not from callers, or were counted one by one.
            LocksCommand::Deliver { .. }
            | LocksCommand::Cancel(_)
            | LocksCommand::CancelAttempts(_)
            | LocksCommand::ExpireSessions { .. }
            | LocksCommand::LockInfoPart(_)
            | LocksCommand::Permit(PermitCommand::Cancel(_))
            | LocksCommand::Condition(ConditionCommand::Cancel(_))
            | LocksCommand::ReportPermits(_)
            | LocksCommand::Session(_)
            | LocksCommand::Batch(_) => return,
        };
        if let Ok(slot) = self.slot(namespace) {
            self.count_operation_in(slot);
        }
    }

    fn count_operation_in(&mut self, slot: u32) {
        let usage = &mut self.namespaces.get_mut(slot).usage;
        usage.operations = usage.operations.saturating_add(1);
    }

    /// Retains the usage of a namespace that is gone.
    pub(super) fn retain_usage(&mut self, account: AccountId, gone: &Namespace) {
        if gone.usage != UsageTotals::default() {
            self.ended_usage.entry(account).or_default().add(&gone.usage);
        }
    }

    /// Returns the charges of an account in this shard.
    pub(super) fn account_state(&self, account: AccountId) -> Response {
        let state_of = |(name, _, namespace): (&String, _, &Namespace)| (name.clone(), namespace.state_bytes());
        Response::AccountState(self.namespaces_of(account).map(state_of).collect())
    }

    /// Returns the usage of an account in this shard.
    pub(super) fn account_usage(&self, account: AccountId) -> Response {
        let usage_of = |(name, incarnation, namespace): (&String, Incarnation, &Namespace)| NamespaceUsage {
            name: name.clone(),
            incarnation,
            holds: namespace.hold_count,
            waiting: namespace.waits.len() as u64,
            sessions: namespace.sessions.len() as u64,
            tangled_owners: namespace.max_tangled_owners(),
            latches: namespace.latches.latch_count() as u64,
            semaphores: namespace.permits.count_of(Kind::Semaphore) as u64,
            permit_holds: namespace.permits.holds(),
            permit_waits: namespace.permits.waiting(),
            pools: namespace.permits.count_of(Kind::Pool) as u64,
            table_bytes: namespace.table_bytes(),
            barriers: namespace.barriers.barrier_count() as u64,
            arrivals: namespace.barriers.arrivals(),
            awaiting: namespace.conditions.len() as u64,
            totals: namespace.usage,
        };
        let namespaces = self.namespaces_of(account).map(usage_of).collect();
        Response::AccountUsage { namespaces, ended: self.ended_usage.get(&account).copied().unwrap_or_default() }
    }

    /// Iterates over the open namespaces of an account in order of name.
    fn namespaces_of(&self, account: AccountId) -> impl Iterator<Item = (&String, Incarnation, &Namespace)> {
        let names = self.names.range((account, String::new())..).take_while(move |((owner, _), _)| *owner == account);
        names.filter_map(move |((_, name), incarnation)| {
            let key = super::NamespaceKey { account, incarnation: *incarnation };
            Some((name, *incarnation, self.namespaces.get(*self.slots.get(&key)?)))
        })
    }
}
