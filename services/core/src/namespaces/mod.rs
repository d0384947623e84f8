//! Namespaces: names, and the incarnations that their locks belong to.
//!
//! Invariant: every namespace has its account, which the accounts shard opened and did not purge yet; every incarnation
//! is opened and purged in its locks shard through the outbox, in that order.

mod create;
mod delete;
mod deliver;
mod ended_keys;
mod queries;
mod snapshot;
mod update;

use std::collections::BTreeMap;

use crate::Application;
use crate::RequestId;
use crate::idempotency_cache::IdempotencyCache;
use crate::shard_common::{CommandResult, ShardCommon};
use crate::{
    AccountId, Command, CommandError, Durability, EntryContext, Limits, LocksCommand, Namespace, NamespaceMessage,
    NamespaceRef, NamespacesCommand, shard_key,
};
use ended_keys::EndedKeys;

/// The state of a namespaces shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacesState {
    pub(crate) common: ShardCommon,
    accounts: BTreeMap<AccountId, AccountRecord>,
    creations: IdempotencyCache<(AccountId, RequestId), Namespace>,
}

/// What a namespaces shard knows about an account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AccountRecord {
    max_number_of_namespaces: u32,
    limits: Limits,
    namespaces: BTreeMap<String, Namespace>,
    /// Where the locks shards are that know what the account used in deleted namespaces.
    ended_keys: EndedKeys,
}

impl NamespacesState {
    pub(crate) fn new(common: ShardCommon) -> Self {
        Self { common, accounts: BTreeMap::new(), creations: IdempotencyCache::default() }
    }

    pub(crate) fn apply(&mut self, context: &EntryContext, command: &NamespacesCommand) -> CommandResult {
        match command {
            NamespacesCommand::Deliver { source, number, message } => {
                Ok(self.deliver(context, source, *number, message))
            }
            NamespacesCommand::Create { request_id, account, name, description } => {
                self.create(context, *request_id, *account, (name, description), Durability::Full)
            }
            NamespacesCommand::Create2 { request_id, account, name, description, durability } => {
                self.create(context, *request_id, *account, (name, description), *durability)
            }
            NamespacesCommand::Update { account, name, description } => {
                self.update(context, *account, name, description.as_deref())
            }
            NamespacesCommand::Delete { account, name, incarnation } => self.delete(*account, name, *incarnation),
        }
    }

    /// An unknown account has no namespaces, so the error is the same as for an unknown namespace.
    fn namespace(&self, account: AccountId, name: &str) -> Result<&Namespace, CommandError> {
        let record = self.accounts.get(&account).ok_or(CommandError::NamespaceNotFound)?;
        record.namespaces.get(name).ok_or(CommandError::NamespaceNotFound)
    }

    /// Sends a message to the namespace's locks shard, and returns the number of the message.
    fn enqueue(&mut self, account: AccountId, name: &str, message: NamespaceMessage) -> u64 {
        self.enqueue_to(account, shard_key(Application::Locks, account.0, name), message)
    }

    /// Sends a message to the locks shard of a key.
    fn enqueue_to(&mut self, account: AccountId, key: u32, message: NamespaceMessage) -> u64 {
        let source = self.common.id.clone();
        self.common.outbox.push(Application::Locks, key, account, |number| {
            Command::Locks(LocksCommand::Deliver { source, number, message })
        })
    }

    /// Sends the open message of every namespace again.
    pub(crate) fn enqueue_all(&mut self) {
        let namespaces = self
            .accounts
            .values()
            .flat_map(|record| record.namespaces.values().map(|namespace| (namespace.clone(), record.limits.clone())));
        for (namespace, limits) in namespaces.collect::<Vec<_>>() {
            self.enqueue_open(&namespace, &limits);
        }
    }

    fn enqueue_open(&mut self, namespace: &Namespace, limits: &Limits) -> u64 {
        let message = NamespaceMessage::open_durable(namespace_ref(namespace), limits.clone(), namespace.durability);
        self.enqueue(namespace.account, &namespace.name, message)
    }

    fn enqueue_purge(&mut self, namespace: &Namespace) -> u64 {
        self.enqueue(
            namespace.account,
            &namespace.name,
            NamespaceMessage::Purge { namespace: namespace_ref(namespace) },
        )
    }
}

fn namespace_ref(namespace: &Namespace) -> NamespaceRef {
    NamespaceRef { account: namespace.account, name: namespace.name.clone(), incarnation: namespace.incarnation }
}

/// Gateways reject longer descriptions as invalid; this check stops descriptions from a gateway that does not know the
/// latest limits.
fn check_description(description: &str, limits: &Limits) -> Result<(), CommandError> {
    let max = u64::from(limits.max_description_bytes);
    if description.len() as u64 <= max {
        return Ok(());
    }
    Err(CommandError::QuotaExceeded {
        what: "the length of a description in bytes".into(),
        max,
        hint: "make it shorter or have the limit raised".into(),
    })
}
