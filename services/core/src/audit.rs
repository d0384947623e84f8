//! The audit log of a shard: the latest actions and their actors.
//!
//! Two bounds apply: one per account and one per shard. So neither one account nor all together fill a shard. Once the
//! shard as a whole is full, the account with the most records loses its oldest one.

use std::sync::Arc;

use holdfast_primitives::kit::REVISION_LIMIT;
use holdfast_primitives::page;

use crate::recent_by_account::{Capacity, RecentByAccount};
use crate::{
    AccountId, AccountStatus, AccountsCommand, AuditAction, AuditCursor, AuditRecord, Audited, BarrierCommand, Bounds,
    Command, EntryContext, Kind, LocksCommand, MAX_PAGE_SIZE, NamespacesCommand, Path, PermitCommand, Response,
    TableCommand,
};

/// How many records of an account are searched for a repeat of a call.
const REPEAT_LOOKBACK: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditLog {
    records: RecentByAccount<Arc<AuditRecord>>,
}

/// An action that a command performs and that is recorded.
struct AuditEvent {
    account: AccountId,
    action: AuditAction,
    key_id: Option<String>,
    namespace: Option<String>,
    path: Option<Path>,
    detail: String,
}

impl AuditLog {
    /// Records a command that was not rejected. Repeats of a call, which changed nothing, are recorded once. Forced
    /// actions that affected no owner, and configurations that changed nothing, are not recorded: otherwise a caller
    /// with that scope could evict the record of a forced action by forcing free locks. `rose` tells whether the
    /// shard's revision rose, as it does with every end of a hold or a session, and every change of a semaphore, of a
    /// pool or of a barrier.
    pub(crate) fn record(
        &mut self,
        bounds: &Bounds,
        context: &EntryContext,
        audited: &Audited,
        answer: &Response,
        rose: bool,
    ) {
        let Some(act) = event_of(&audited.command, answer) else { return };
        let is_configured = matches!(
            act.action,
            AuditAction::SemaphoreConfigured | AuditAction::PoolConfigured | AuditAction::BarrierConfigured
        );
        let must_rise = is_forced(act.action) || is_configured;
        if must_rise && !rose && !ends_waits(answer) {
            return;
        }
        let last = self.records.last().map(|(number, record)| (number, record.at_ms));
        let (last_number, last_ms) = last.unwrap_or_default();
        let record = AuditRecord {
            number: last_number + 1,
            at_ms: context.wall_ms.max(last_ms),
            account: act.account,
            actor: audited.actor.clone(),
            request_id: audited.request_id.clone(),
            action: act.action,
            key_id: act.key_id,
            namespace: act.namespace,
            path: act.path,
            detail: act.detail,
        };
        if !self.is_repeat(&record) {
            self.push(record, bounds);
        }
    }

    /// Returns whether the record repeats an earlier one. Forced deletions and resets are never retried, so they never
    /// count as repeats.
    fn is_repeat(&self, record: &AuditRecord) -> bool {
        if is_forced(record.action) {
            return false;
        }
        let mut noted = self.records.of_account(record.account).rev().take(REPEAT_LOOKBACK);
        noted.any(|noted| {
            let same = AuditRecord { number: noted.number, at_ms: noted.at_ms, ..record.clone() };
            **noted == same
        })
    }

    fn push(&mut self, record: AuditRecord, bounds: &Bounds) {
        let capacity = Capacity { per_account: bounds.audit_records_per_account, total: bounds.audit_records };
        self.records.push(record.number, record.account, Arc::new(record), capacity);
    }

    /// Appends a record of a snapshot. Returns false if it is out of order.
    pub(crate) fn restore(&mut self, record: AuditRecord, bounds: &Bounds) -> bool {
        let is_next = self.records.last().is_none_or(|(last, _)| last < record.number);
        let fits = is_next && record.number < REVISION_LIMIT;
        if fits {
            self.push(record, bounds);
        }
        fits
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &AuditRecord> {
        self.records.iter().map(|(_, record)| record.as_ref())
    }

    /// Takes the latest records before a cursor, newest first, of one account or of all.
    pub(crate) fn page(&self, account: Option<AccountId>, before: Option<AuditCursor>, limit: u32) -> AuditPage {
        let is_before = |record: &&Arc<AuditRecord>| {
            before.is_none_or(|before| AuditCursor { at_ms: record.at_ms, number: record.number } < before)
        };
        // One more tells whether more follow.
        let rows = limit.clamp(1, MAX_PAGE_SIZE) as usize + 1;
        let records = match account {
            None => {
                let all = self.records.iter().rev().map(|(_, record)| record);
                all.filter(is_before).take(rows).cloned().collect()
            }
            Some(account) => self.records.of_account(account).rev().filter(is_before).take(rows).cloned().collect(),
        };
        AuditPage { records, limit }
    }
}

/// Records of the audit log, detached from the state.
#[derive(Debug)]
pub(crate) struct AuditPage {
    records: Vec<Arc<AuditRecord>>,
    limit: u32,
}

impl AuditPage {
    pub(crate) fn response(self) -> Response {
        let (records, more) = page::collect(self.records.iter(), self.limit, |record| AuditRecord::clone(record));
        Response::AuditRecords { records, more }
    }
}

fn is_forced(action: AuditAction) -> bool {
    matches!(
        action,
        AuditAction::LockDeleted
            | AuditAction::SemaphoreDeleted
            | AuditAction::PoolDeleted
            | AuditAction::BarrierDeleted
            | AuditAction::NamespaceReset
            | AuditAction::ReleaseForced
    )
}

/// Waits end without a revision.
fn ends_waits(answer: &Response) -> bool {
    matches!(answer, Response::Reset { removed_waiters: 1.., .. })
}

fn event_of(command: &Command, answer: &Response) -> Option<AuditEvent> {
    match (command, answer) {
        (Command::Accounts(command), answer) => account_event(command, answer),
        (Command::Namespaces(command), _) => namespace_event(command),
        (Command::Locks(command), answer) => locks_event(command, answer),
        (Command::OutboxConfirm { .. } | Command::AdvanceNumbers | Command::Audited(_), _) => None,
        #[cfg(feature = "extra-command")]
        (Command::Extra, _) => None,
    }
}

fn account_event(command: &AccountsCommand, answer: &Response) -> Option<AuditEvent> {
    let act =
        |account, action, key_id, detail| AuditEvent { account, action, key_id, namespace: None, path: None, detail };
    Some(match (command, answer) {
        (AccountsCommand::Create { .. }, Response::Account(account)) => {
            act(account.id, AuditAction::AccountCreated, None, account.email.clone())
        }
        (AccountsCommand::Update { id, full_name, status, max_number_of_namespaces: max, limits }, _) => {
            let detail = changed_fields(full_name.is_some(), *status, *max, limits.is_some());
            act(*id, AuditAction::AccountUpdated, None, detail)
        }
        (AccountsCommand::Update2 { id, full_name, status, max_number_of_namespaces: max, limits: _ }, _) => {
            act(*id, AuditAction::AccountUpdated, None, changed_fields(full_name.is_some(), *status, *max, true))
        }
        (AccountsCommand::Delete { id }, _) => act(*id, AuditAction::AccountDeleted, None, String::new()),
        (AccountsCommand::CreateApiKey { .. }, Response::ApiKey(key)) => {
            act(key.account, AuditAction::ApiKeyCreated, Some(key.key_id.clone()), key.scopes.names().join(" "))
        }
        (AccountsCommand::DeleteApiKey { account, key_id }, _) => {
            act(*account, AuditAction::ApiKeyDeleted, Some(key_id.clone()), String::new())
        }
        _ => return None,
    })
}

/// Returns which fields of an account changed.
fn changed_fields(
    full_name: bool,
    status: Option<AccountStatus>,
    max_number_of_namespaces: Option<u32>,
    limits: bool,
) -> String {
    let mut changed = Vec::new();
    changed.extend(full_name.then(|| "full_name".to_owned()));
    changed.extend(
        status.map(|status| format!("status {}", if status == AccountStatus::Active { "ACTIVE" } else { "SUSPENDED" })),
    );
    changed.extend(max_number_of_namespaces.map(|max| format!("max_number_of_namespaces {max}")));
    changed.extend(limits.then(|| "limits".to_owned()));
    changed.join(", ")
}

fn namespace_event(command: &NamespacesCommand) -> Option<AuditEvent> {
    let (account, name, action) = match command {
        NamespacesCommand::Create { account, name, .. } | NamespacesCommand::Create2 { account, name, .. } => {
            (account, name, AuditAction::NamespaceCreated)
        }
        NamespacesCommand::Update { account, name, .. } => (account, name, AuditAction::NamespaceUpdated),
        NamespacesCommand::Delete { account, name, .. } => (account, name, AuditAction::NamespaceDeleted),
        NamespacesCommand::Deliver { .. } => return None,
    };
    let namespace = Some(name.clone());
    Some(AuditEvent { account: *account, action, key_id: None, namespace, path: None, detail: String::new() })
}

fn locks_event(command: &LocksCommand, answer: &Response) -> Option<AuditEvent> {
    let (namespace, action, path, detail) = match (command, answer) {
        (LocksCommand::Delete { namespace, path }, _) => {
            (namespace, AuditAction::LockDeleted, Some(path.clone()), String::new())
        }
        (LocksCommand::Table(TableCommand::Forfeit(forfeit)), _) => {
            (&forfeit.namespace, AuditAction::LockDeleted, Some(forfeit.path.clone()), String::new())
        }
        (LocksCommand::Permit(PermitCommand::Configure(configure)), _) => {
            let (path, detail) = (configure.path.clone(), format!("{} permits", configure.permits));
            (&configure.namespace, AuditAction::SemaphoreConfigured, Some(path), detail)
        }
        (LocksCommand::Permit(PermitCommand::ConfigurePool(configure)), _) => {
            let (path, detail) = (configure.path.clone(), format!("{} members", configure.members.len()));
            (&configure.namespace, AuditAction::PoolConfigured, Some(path), detail)
        }
        (LocksCommand::Permit(PermitCommand::ChangePool(change)), _) => {
            let detail = format!(
                "{} added, {} removed, {} disabled, {} enabled",
                change.add.len(),
                change.remove.len(),
                change.disable.len(),
                change.enable.len()
            );
            (&change.namespace, AuditAction::PoolConfigured, Some(change.path.clone()), detail)
        }
        (LocksCommand::Permit(PermitCommand::Delete { namespace, kind, path }), _) => {
            let action = if *kind == Kind::Pool { AuditAction::PoolDeleted } else { AuditAction::SemaphoreDeleted };
            (namespace, action, Some(path.clone()), String::new())
        }
        (LocksCommand::AskRelease(ask), Response::ReleaseAsked { asked, .. }) if ask.force => {
            let (kind, within_ms) = (ask.kind.name(), ask.within_ms.unwrap_or(0));
            let detail = format!("{kind}, {asked} holds, within {within_ms} ms");
            (&ask.namespace, AuditAction::ReleaseForced, Some(ask.path.clone()), detail)
        }
        (LocksCommand::Barrier(BarrierCommand::Configure(configure)), _) => {
            let (path, detail) = (configure.path.clone(), format!("{} parties", configure.parties));
            (&configure.namespace, AuditAction::BarrierConfigured, Some(path), detail)
        }
        (LocksCommand::Barrier(BarrierCommand::Delete { namespace, path }), _) => {
            (namespace, AuditAction::BarrierDeleted, Some(path.clone()), String::new())
        }
        (LocksCommand::Reset(reset), Response::Reset { removed_holds, removed_waiters }) => {
            let detail = format!("{removed_holds} holds and {removed_waiters} waiting requests removed");
            (&reset.namespace, AuditAction::NamespaceReset, None, detail)
        }
        _ => return None,
    };
    let (account, namespace) = (namespace.account, Some(namespace.name.clone()));
    Some(AuditEvent { account, action, key_id: None, namespace, path, detail })
}
