//! Applies messages from the accounts shard.

use std::collections::BTreeMap;

use super::ended_keys::EndedKeys;
use super::{AccountRecord, NamespacesState};
use crate::{AccountId, AccountMessage, EntryContext, Limits, Namespace, NamespaceMessage, Response, Rules};

impl NamespacesState {
    /// A message is confirmed when all messages that follow from it are. So the deletion of an account is acknowledged
    /// after its locks are gone. A repeat awaits all messages that are still pending for the account.
    pub(super) fn deliver(
        &mut self,
        context: &EntryContext,
        source: &str,
        number: u64,
        message: &AccountMessage,
    ) -> (Response, Option<u64>) {
        let is_new = self.common.inbox.accept(source, number);
        let account = match message {
            AccountMessage::Open { account, max_number_of_namespaces, limits } => {
                if is_new {
                    self.open_account(*account, *max_number_of_namespaces, &limits.first());
                }
                *account
            }
            AccountMessage::Open2 { account, max_number_of_namespaces, limits } => {
                if is_new {
                    self.open_account(*account, *max_number_of_namespaces, limits);
                }
                *account
            }
            AccountMessage::Purge { account } => {
                if is_new {
                    self.purge_account(*account, context.rules);
                }
                *account
            }
        };
        (Response::Done, self.common.outbox.await_all_of(account))
    }

    fn open_account(&mut self, account: AccountId, max_number_of_namespaces: u32, limits: &Limits) {
        let record = self.accounts.entry(account).or_insert_with(|| AccountRecord {
            max_number_of_namespaces,
            limits: limits.clone(),
            namespaces: BTreeMap::new(),
            ended_keys: EndedKeys::default(),
        });
        record.max_number_of_namespaces = max_number_of_namespaces;
        if record.limits == *limits {
            return;
        }
        record.limits = limits.clone();
        let namespaces: Vec<Namespace> = record.namespaces.values().cloned().collect();
        for namespace in &namespaces {
            self.enqueue_open(namespace, limits);
        }
    }

    fn purge_account(&mut self, account: AccountId, rules: Rules) {
        let Some(record) = self.accounts.remove(&account) else { return };
        let mut keys = record.ended_keys;
        for namespace in record.namespaces.values() {
            self.enqueue_purge(namespace);
            keys.insert(account, &namespace.name);
        }
        // After the purges, which add to what the account used.
        if rules >= Rules::TWO {
            for key in keys.iter() {
                self.enqueue_to(account, key, NamespaceMessage::PurgeAccount { account });
            }
        }
    }
}
