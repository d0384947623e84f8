//! The cost, the account and the urgency of a command before it is applied, and the account and the urgency of a query.
//! Queues share a shard among accounts by it; nothing in the state depends on it.

use super::{
    AccountId, AccountsCommand, AcquireAtLeast, BarrierCommand, BarrierQuery, Claim, Command, ConditionQuery, Jobs,
    LatchCommand, LatchQuery, LocksCommand, MAX_ARRIVALS_IN_REPLY, NamespacesCommand, PermitCommand, PermitQuery,
    Query, Reattach, Release, ReleaseTarget, SessionRequest, Topic,
};

/// Minimum cost of every command, in units.
const BASE_UNITS: u64 = 8;

/// Commands of which one costs about as many times its minimum as another of the same account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostKind {
    /// Acquires of locks.
    Acquire,
    /// Releases and cancels of single requests for locks, and requests to release.
    Release,
    /// What ends all that somebody has, or all holds of a path.
    EndAll,
    /// Openings of sessions and reports of what they have.
    Session,
    /// Requests for permits and members.
    AcquirePermits,
    /// Their ends.
    ReleasePermits,
    /// Changes of semaphores and pools themselves.
    Configure,
    /// All about latches and barriers.
    LatchOrBarrier,
    /// All about conditions of locks.
    Condition,
    /// All else, and commands of several kinds together.
    Other,
}

impl Command {
    /// Returns the account that the command works for. `None` for commands that leaders of shards issue themselves:
    /// expiry, and messages between shards, of which each pair of shards has one in flight.
    pub fn account(&self) -> Option<AccountId> {
        match self.inner() {
            Self::Accounts(command) => match command {
                AccountsCommand::Create { id, .. }
                | AccountsCommand::Update { id, .. }
                | AccountsCommand::Update2 { id, .. }
                | AccountsCommand::Delete { id } => Some(*id),
                AccountsCommand::CreateApiKey { key } => Some(key.account),
                AccountsCommand::DeleteApiKey { account, .. } => Some(*account),
                AccountsCommand::RecordKeyUse { .. } => None,
            },
            Self::Namespaces(command) => match command {
                NamespacesCommand::Create { account, .. }
                | NamespacesCommand::Create2 { account, .. }
                | NamespacesCommand::Update { account, .. }
                | NamespacesCommand::Delete { account, .. } => Some(*account),
                NamespacesCommand::Deliver { .. } => None,
            },
            Self::Locks(command) => command.account(),
            Self::OutboxConfirm { .. } | Self::AdvanceNumbers | Self::Audited(_) => None,
            #[cfg(feature = "extra-command")]
            Self::Extra => None,
        }
    }

    /// Returns whether the command ends or keeps holds of its owner. Such calls are sent first and rejected last.
    pub fn is_urgent(&self) -> bool {
        matches!(self.inner(), Self::Locks(command) if command.is_urgent())
    }

    /// Returns the minimum cost in units, computed from the command alone: 8, and for each claim its depth + 1.
    pub fn min_units(&self) -> u64 {
        match self.inner() {
            Self::Locks(command) => command.min_units(),
            _ => BASE_UNITS,
        }
    }

    /// Returns the kind that its cost is estimated by.
    pub fn cost_kind(&self) -> CostKind {
        match self.inner() {
            Self::Locks(command) => command.cost_kind(),
            _ => CostKind::Other,
        }
    }
}

impl Query {
    /// Returns whether the query keeps holds of its owner, as the commands do for which [`Command::is_urgent`] is true.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::KeepAlive { .. } | Self::KeepAlives { .. })
    }

    /// Returns the most rows of the reply of a query that lists things for a person; 0 for all others.
    pub fn max_rows(&self) -> u32 {
        match self {
            Self::Accounts { limit, .. }
            | Self::Namespaces { limit, .. }
            | Self::Locks { limit, .. }
            | Self::Sessions { limit, .. }
            | Self::Waits { limit, .. }
            | Self::Queue { limit, .. }
            | Self::Audit { limit, .. }
            | Self::Latch(LatchQuery::Get { limit, .. } | LatchQuery::List { limit, .. })
            | Self::Permit(
                PermitQuery::Get { limit, .. }
                | PermitQuery::List { limit, .. }
                | PermitQuery::Waits { limit, .. }
                | PermitQuery::Members { limit, .. },
            )
            | Self::Barrier(BarrierQuery::List { limit, .. })
            | Self::Condition(ConditionQuery::List { limit, .. } | ConditionQuery::Waits { limit, .. }) => *limit,
            Self::Barrier(BarrierQuery::Get { .. }) => MAX_ARRIVALS_IN_REPLY,
            _ => 0,
        }
    }

    /// Returns the account that the query works for. `None` for queries about all accounts, for the look-up of a key that
    /// may be of none, and for keep-alives of many.
    pub fn account(&self) -> Option<AccountId> {
        match self {
            Self::Account { id: account }
            | Self::ApiKeys { account }
            | Self::KeyUse { account }
            | Self::AccountUsage { account }
            | Self::AccountState { account }
            | Self::Namespace { account, .. }
            | Self::Namespaces { account, .. } => Some(*account),
            Self::Audit { account, .. } => *account,
            Self::Lock { namespace, .. }
            | Self::Locks { namespace, .. }
            | Self::Check { namespace, .. }
            | Self::Session { namespace, .. }
            | Self::Sessions { namespace, .. }
            | Self::Waits { namespace, .. }
            | Self::Events { namespace, .. }
            | Self::Usage { namespace }
            | Self::TableState { namespace }
            | Self::KeepAlive { namespace, .. }
            | Self::ReconcileHolds { namespace, .. }
            | Self::ReconcilePermits { namespace, .. }
            | Self::WaitStatus { namespace, .. }
            | Self::Queue { namespace, .. }
            | Self::Holds { namespace, .. } => Some(namespace.account),
            Self::Latch(query) => Some(query.namespace().account),
            Self::Permit(query) => Some(query.namespace().account),
            Self::Barrier(query) => Some(query.namespace().account),
            Self::Condition(query) => Some(query.namespace().account),
            Self::Accounts { .. } | Self::ApiKey { .. } | Self::AccountChanges { .. } | Self::KeepAlives { .. } => None,
        }
    }
}

impl Topic {
    /// Returns the account that a subscription works for. `None` for those of a gateway itself.
    pub fn account(&self) -> Option<AccountId> {
        match self {
            Self::Session { namespace, .. } | Self::Events { namespace } => Some(namespace.account),
            Self::AccountChanges | Self::ClusterConfig => None,
        }
    }
}

impl LocksCommand {
    /// Returns whether the command ends or keeps holds of its owner; a report after a resume keeps them. A batch is
    /// urgent if any of its commands is.
    pub fn is_urgent(&self) -> bool {
        match self {
            Self::Release(_)
            | Self::CloseSession { .. }
            | Self::LockInfo(_)
            | Self::LockInfoPart(_)
            | Self::ReportPermits(_)
            | Self::Permit(PermitCommand::Release(_))
            | Self::Barrier(BarrierCommand::Leave(_)) => true,
            Self::Permit(PermitCommand::Acquire(acquire)) => acquire.fencing_token.is_some(),
            Self::Acquire(acquire) | Self::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => {
                acquire.fencing_token.is_some()
            }
            Self::OpenSession(open) => open.resume,
            Self::Table(command) => command.is_urgent(),
            Self::Session(command) => command.is_release(),
            Self::Batch(commands) => commands.iter().any(Self::is_urgent),
            _ => false,
        }
    }

    fn account(&self) -> Option<AccountId> {
        let namespace = match self {
            Self::Acquire(acquire)
            | Self::Reattach(Reattach { acquire, .. })
            | Self::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => &acquire.namespace,
            Self::AskRelease(ask) => &ask.namespace,
            Self::Release(release) => &release.namespace,
            Self::Delete { namespace, .. } | Self::CloseSession { namespace, .. } => namespace,
            Self::Cancel(cancel) => &cancel.namespace,
            Self::CancelAttempts(cancel) => &cancel.cancel.namespace,
            Self::Reset(reset) => &reset.namespace,
            Self::OpenSession(open) => &open.namespace,
            Self::LockInfo(info) | Self::LockInfoPart(info) => &info.namespace,
            Self::ReportPermits(report) => &report.namespace,
            Self::Latch(command) => command.namespace(),
            Self::Permit(command) => command.namespace(),
            Self::Barrier(command) => command.namespace(),
            Self::Condition(command) => command.namespace(),
            Self::Table(command) => return command.namespace().map(|namespace| namespace.account),
            Self::Session(command) => return Some(command.account),
            Self::Deliver { .. } | Self::ExpireSessions { .. } => return None,
            // Those of a batch belong to one connection, or are cancels that a leader has gathered.
            Self::Batch(commands) => {
                let account = commands.first().and_then(Self::account);
                return account.filter(|_| commands.iter().all(|command| command.account() == account));
            }
        };
        Some(namespace.account)
    }

    /// As [`Command::cost_kind`].
    pub fn cost_kind(&self) -> CostKind {
        match self {
            Self::Acquire(_) | Self::Reattach(_) | Self::AcquireAtLeast(_) => CostKind::Acquire,
            Self::Release(Release { what: ReleaseTarget::All, .. }) => CostKind::EndAll,
            Self::Release(_) | Self::Cancel(_) | Self::CancelAttempts(_) | Self::AskRelease(_) => CostKind::Release,
            Self::Delete { .. } | Self::CloseSession { .. } | Self::ExpireSessions { .. } | Self::Reset(_) => {
                CostKind::EndAll
            }
            Self::Session(command) => match &command.request {
                SessionRequest::Acquire(_) | SessionRequest::AcquireWith { .. } => CostKind::Acquire,
                SessionRequest::Release { .. } | SessionRequest::ReleaseUnheard { .. } => CostKind::Release,
                SessionRequest::Await(_) | SessionRequest::Signal(_) => CostKind::Condition,
            },
            Self::OpenSession(_)
            | Self::LockInfo(_)
            | Self::LockInfoPart(_)
            | Self::ReportPermits(_)
            | Self::Table(_) => CostKind::Session,
            Self::Permit(PermitCommand::Acquire(_)) => CostKind::AcquirePermits,
            Self::Permit(PermitCommand::Release(_) | PermitCommand::Cancel(_)) => CostKind::ReleasePermits,
            Self::Permit(_) => CostKind::Configure,
            Self::Latch(_) | Self::Barrier(_) => CostKind::LatchOrBarrier,
            Self::Condition(_) => CostKind::Condition,
            Self::Batch(commands) => Self::cost_kind_of(commands),
            Self::Deliver { .. } => CostKind::Other,
        }
    }

    /// Returns the kind of some commands together.
    pub fn cost_kind_of(commands: &[Self]) -> CostKind {
        let mut kinds = commands.iter().map(|command| match command {
            // There are none in a list; whoever sends some is not to have them looked at again and again.
            Self::Batch(_) => CostKind::Other,
            command => command.cost_kind(),
        });
        let first = kinds.next().unwrap_or(CostKind::Other);
        if kinds.all(|kind| kind == first) { first } else { CostKind::Other }
    }

    /// As [`Command::min_units`].
    pub fn min_units(&self) -> u64 {
        let claims = |claims: &[Claim]| claims.iter().map(|claim| claim.path.0.len() as u64 + 1).sum::<u64>();
        let of_parts = match self {
            Self::Acquire(acquire)
            | Self::Reattach(Reattach { acquire, .. })
            | Self::AcquireAtLeast(AcquireAtLeast { acquire, .. }) => claims(&acquire.claims),
            Self::AskRelease(ask) => ask.path.0.len() as u64 + 1,
            Self::Release(release) => match &release.what {
                ReleaseTarget::Paths { paths, .. } => paths.iter().map(|path| path.0.len() as u64 + 1).sum(),
                ReleaseTarget::Request { .. } | ReleaseTarget::All => 1,
            },
            Self::Session(command) => match &command.request {
                SessionRequest::Acquire(acquire) | SessionRequest::AcquireWith { acquire, .. } => {
                    claims(&acquire.claims)
                }
                SessionRequest::Release { .. } | SessionRequest::ReleaseUnheard { .. } | SessionRequest::Signal(_) => 1,
                SessionRequest::Await(_) => 2,
            },
            Self::Cancel(cancel) => claims(&cancel.claims),
            Self::CancelAttempts(cancel) => claims(&cancel.cancel.claims),
            Self::Delete { path, .. } => path.0.len() as u64 + 1,
            Self::Reset(reset) => reset.live_owners.len() as u64,
            Self::LockInfo(info) | Self::LockInfoPart(info) => (info.held.len() + info.pending.len()) as u64,
            Self::ExpireSessions { ids, .. } => ids.len() as u64,
            Self::Batch(commands) => return commands.iter().map(Self::min_units).sum(),
            Self::Latch(LatchCommand::CountDown(count)) => count.jobs.units(),
            Self::Permit(PermitCommand::Acquire(acquire)) => acquire.wanted.units(),
            Self::Permit(command) => command.units(),
            Self::Condition(command) => command.path().0.len() as u64 + 1,
            Self::Latch(_) | Self::Barrier(_) => 1,
            Self::Table(command) => command.units(),
            Self::ReportPermits(report) => report.held.len() as u64,
            Self::Deliver { .. } | Self::OpenSession(_) | Self::CloseSession { .. } => 0,
        };
        BASE_UNITS + of_parts
    }
}

/// A range of numbers costs a unit for so many: their bits are set by words.
const INDEXES_PER_UNIT: u64 = 4_096;

impl Jobs {
    /// Returns the cost of counting them, in units.
    pub fn units(&self) -> u64 {
        match self {
            Self::Named(ids) => ids.len() as u64,
            Self::Indexed(ranges) => {
                let units = |(from, to): &(u64, u64)| 1 + to.saturating_sub(*from) / INDEXES_PER_UNIT;
                ranges.iter().map(units).fold(0, u64::saturating_add)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcquirePermits, Cancel, Incarnation, Kind, LockInfo, MAX_MEMBERS_PER_TAKE, Metadata, Mode, NamespaceRef, Owner,
        Path, ReleasePermits, Wait, Wanted,
    };

    fn namespace(account: u64) -> NamespaceRef {
        NamespaceRef { account: AccountId(account), name: "n".into(), incarnation: Incarnation(1) }
    }

    fn cancel(account: u64) -> LocksCommand {
        LocksCommand::Cancel(Cancel {
            namespace: namespace(account),
            owner: Owner::Process("p".into()),
            request_id: None,
            claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
            attempt: 1,
        })
    }

    #[test]
    fn a_batch_is_of_an_account_if_all_of_its_commands_are() {
        let account = |commands| Command::Locks(LocksCommand::Batch(commands)).account();
        assert_eq!(account(vec![cancel(1), cancel(1)]), Some(AccountId(1)));
        assert_eq!(account(vec![cancel(1), cancel(2)]), None);
        assert_eq!(account(vec![]), None);
    }

    #[test]
    fn a_batch_costs_as_its_commands_do_if_they_are_alike() {
        let (namespace, owner) = (namespace(1), Owner::Process("p".into()));
        let release = |what| {
            let (namespace, owner) = (namespace.clone(), owner.clone());
            LocksCommand::Release(Release { namespace, owner, what, message: None })
        };
        let of_request = release(ReleaseTarget::Request { request_id: "r".into() });
        let take = take(Wanted::Member("a".into()));
        let kind = |commands| Command::Locks(LocksCommand::Batch(commands)).cost_kind();
        assert_eq!(kind(vec![cancel(1), of_request]), CostKind::Release);
        assert_eq!(kind(vec![release(ReleaseTarget::All)]), CostKind::EndAll);
        assert_eq!(kind(vec![take.clone()]), CostKind::AcquirePermits);
        assert_eq!(kind(vec![cancel(1), take]), CostKind::Other);
        assert_eq!(kind(vec![LocksCommand::Batch(vec![cancel(1)])]), CostKind::Other);
        assert_eq!(kind(vec![]), CostKind::Other);
    }

    #[test]
    fn what_ends_or_keeps_holds_is_urgent() {
        let (namespace, owner) = (namespace(1), Owner::Process("p".into()));
        let release = Release { namespace: namespace.clone(), owner, what: ReleaseTarget::All, message: None };
        let session_id = "s".to_owned();
        let info = LockInfo { namespace, session_id: session_id.clone(), message: None, held: vec![], pending: vec![] };
        let is_urgent = |command| Command::Locks(command).is_urgent();
        assert!(is_urgent(LocksCommand::LockInfo(info.clone())) && is_urgent(LocksCommand::LockInfoPart(info.clone())));
        assert!(is_urgent(LocksCommand::Batch(vec![cancel(1), LocksCommand::Release(release)])));
        assert!(!is_urgent(cancel(1)) && !is_urgent(LocksCommand::Batch(vec![cancel(1)])));
        let keep_alive = Query::KeepAlive { namespace: info.namespace.clone(), session_id, epoch: None };
        assert!(keep_alive.is_urgent() && !Query::Usage { namespace: info.namespace }.is_urgent());
    }

    fn take(wanted: Wanted) -> LocksCommand {
        LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits {
            namespace: namespace(1),
            path: Path::flat("p"),
            owner: Owner::Process("p".into()),
            request_id: "r".into(),
            wanted,
            priority: 0,
            ttl_ms: Some(1),
            transition_ms: 0,
            wait: Wait::No,
            metadata: Metadata::new(),
            fencing_token: None,
            attempt: 0,
            abandoned: vec![],
            message: None,
        }))
    }

    #[test]
    fn every_member_costs_a_unit_up_to_as_many_as_a_hold_can_have() {
        let count = |count| take(Wanted::Members { count, prefer: None }).min_units();
        assert_eq!((count(1), count(64)), (BASE_UNITS + 1, BASE_UNITS + 64));
        assert_eq!(count(u64::MAX), BASE_UNITS + MAX_MEMBERS_PER_TAKE, "more is refused");
        assert_eq!(take(Wanted::Member("a".into())).min_units(), BASE_UNITS + 1);
        let release = |members: &[&str]| {
            LocksCommand::Permit(PermitCommand::Release(ReleasePermits {
                namespace: namespace(1),
                kind: Kind::Pool,
                path: Path::flat("p"),
                owner: Owner::Process("p".into()),
                request_id: Some("r".into()),
                fencing_token: None,
                members: members.iter().map(|name| (*name).to_owned()).collect(),
                message: None,
            }))
        };
        assert_eq!(release(&["a", "b", "c"]).min_units() - release(&[]).min_units(), 3);
    }

    #[test]
    fn queries_and_subscriptions_name_the_account_that_they_are_for() {
        assert_eq!(Query::Usage { namespace: namespace(7) }.account(), Some(AccountId(7)));
        assert_eq!(Query::Audit { account: None, before: None, limit: 1 }.account(), None);
        assert_eq!(Query::ApiKey { key_id: "k".into() }.account(), None);
        assert_eq!(Topic::Events { namespace: namespace(7) }.account(), Some(AccountId(7)));
        assert_eq!(Topic::AccountChanges.account(), None);
    }
}
