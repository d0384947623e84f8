//! Accounts and their API keys.
//!
//! Invariant: every account has its e-mail in the index and every key has its account; each change has its own
//! revision, and is retained for gateways that follow changes.

mod changes;
mod create;
mod create_api_key;
mod delete;
mod delete_api_key;
mod key_use;
mod queries;
mod snapshot;
mod update;

use std::collections::BTreeMap;

use crate::Application;
use crate::idempotency_cache::IdempotencyCache;
use crate::shard_common::{CommandResult, ShardCommon};
use crate::{
    Account, AccountChange, AccountId, AccountMessage, AccountsCommand, ApiKey, Command, CommandError, EntryContext,
    NamespacesCommand, RequestId, Revision, Rules, shard_key,
};
use changes::ChangeLog;

/// The state of the accounts shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountsState {
    pub(crate) common: ShardCommon,
    accounts: BTreeMap<AccountId, Account>,
    emails: BTreeMap<String, AccountId>,
    keys: BTreeMap<String, StoredKey>,
    /// The ids of each account's keys by the revision of their creation.
    keys_by_account: BTreeMap<AccountId, BTreeMap<Revision, String>>,
    changes: ChangeLog,
    creations: IdempotencyCache<RequestId, Account>,
    /// Deleted keys: a repeat of their creation must not make them valid again.
    deleted_keys: IdempotencyCache<String, ()>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredKey {
    key: ApiKey,
    created: Revision,
    /// Wall clock in milliseconds since 1970.
    last_used_ms: Option<u64>,
}

impl AccountsState {
    pub(crate) fn new(common: ShardCommon) -> Self {
        Self {
            common,
            accounts: BTreeMap::new(),
            emails: BTreeMap::new(),
            keys: BTreeMap::new(),
            keys_by_account: BTreeMap::new(),
            changes: ChangeLog::default(),
            creations: IdempotencyCache::default(),
            deleted_keys: IdempotencyCache::default(),
        }
    }

    pub(crate) fn apply(&mut self, context: &EntryContext, command: &AccountsCommand) -> CommandResult {
        match command {
            AccountsCommand::Create { request_id, id, email, full_name, max_number_of_namespaces, limits } => {
                let new = create::NewAccount {
                    id: *id,
                    email: stored_email(email, context.rules),
                    full_name: full_name.clone(),
                    max_number_of_namespaces: *max_number_of_namespaces,
                    limits: limits.first(),
                };
                self.create(context, *request_id, new)
            }
            AccountsCommand::Update { id, full_name, status, max_number_of_namespaces, limits } => {
                let before = &self.account(*id)?.limits;
                let limits = limits.as_ref().map(|limits| limits.with_later_of(before));
                let changes = update::AccountUpdate { full_name, status, max_number_of_namespaces, limits: &limits };
                self.update(context, *id, &changes)
            }
            AccountsCommand::Update2 { id, full_name, status, max_number_of_namespaces, limits } => {
                let limits = &Some(limits.clone());
                let changes = update::AccountUpdate { full_name, status, max_number_of_namespaces, limits };
                self.update(context, *id, &changes)
            }
            AccountsCommand::Delete { id } => self.delete(context.rules, *id),
            AccountsCommand::CreateApiKey { key } => self.create_api_key(context, key),
            AccountsCommand::DeleteApiKey { account, key_id } => self.delete_api_key(context.rules, *account, key_id),
            AccountsCommand::RecordKeyUse { used } => self.record_key_use(used),
        }
    }

    fn account(&self, id: AccountId) -> Result<&Account, CommandError> {
        self.accounts.get(&id).ok_or(CommandError::AccountNotFound(id))
    }

    /// Assigns a revision to a change and retains it.
    fn record_change(&mut self, change: AccountChange) -> Revision {
        let revision = self.common.next_revision();
        self.changes.push(revision, change, self.common.bounds.retained_changes);
        revision
    }

    /// Sends a message to the account's namespaces shard, and returns the number of the message.
    fn enqueue(&mut self, account: AccountId, message: AccountMessage) -> u64 {
        let source = self.common.id.clone();
        let key = shard_key(Application::Namespaces, account.0, "");
        self.common.outbox.push(Application::Namespaces, key, account, |number| {
            Command::Namespaces(NamespacesCommand::Deliver { source, number, message })
        })
    }

    /// Sends the open message of every account again.
    pub(crate) fn enqueue_all(&mut self) {
        let accounts: Vec<Account> = self.accounts.values().cloned().collect();
        for account in &accounts {
            self.enqueue_open(account);
        }
    }

    fn enqueue_open(&mut self, account: &Account) -> u64 {
        let message = AccountMessage::open(account.id, account.max_number_of_namespaces, account.limits.clone());
        self.enqueue(account.id, message)
    }

    /// Removes an existing key from all tables.
    fn remove_key(&mut self, rules: Rules, key_id: &str) {
        let stored = self.keys.remove(key_id).expect("only keys that were just found are removed");
        let account = stored.key.account;
        let of_account = self.keys_by_account.get_mut(&account).expect("every key is noted under its account");
        let noted = of_account.remove(&stored.created);
        assert_eq!(noted.as_deref(), Some(key_id), "a key is noted by the revision of its creation");
        if of_account.is_empty() {
            self.keys_by_account.remove(&account);
        }
        self.deleted_keys.insert(account, key_id.to_owned(), (), self.common.cache_capacity());
        self.record_change(key_change(rules, account, key_id));
    }
}

/// Returns the change of a key. Before rules 2 it does not name the account.
fn key_change(rules: Rules, account: AccountId, key_id: &str) -> AccountChange {
    let key_id = key_id.to_owned();
    if rules >= Rules::TWO { AccountChange::KeyOfAccount { account, key_id } } else { AccountChange::ApiKey(key_id) }
}

/// Returns the form in which e-mails are compared and stored: as gateways send them, trimmed and lower-cased. By the
/// first rules, the core normalizes them again, although the result depends on the Unicode tables of the build.
fn stored_email(email: &str, rules: Rules) -> String {
    if rules >= Rules::TWO { email.to_owned() } else { email.trim().to_lowercase() }
}
