//! The names of namespaces, as obviously right as can be.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{AccountId, AccountMessage, Command, Incarnation, NamespacesCommand, RequestId};

/// The answer that a command must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A namespace of this account and name, with this incarnation; of a new one it is not known beforehand.
    Namespace {
        incarnation: Option<Incarnation>,
    },
    Done,
    Taken,
    NotFound,
    AccountNotFound,
}

/// The state of a namespaces shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamespaceModel {
    accounts: BTreeSet<AccountId>,
    names: BTreeMap<(AccountId, String), Incarnation>,
    made: BTreeMap<RequestId, Incarnation>,
    delivered: BTreeMap<String, u64>,
    highest: Option<Incarnation>,
}

impl NamespaceModel {
    /// Runs a command.
    pub(crate) fn apply(&mut self, command: &Command) -> Option<Expected> {
        let command = match command.inner() {
            Command::Namespaces(command) => command,
            Command::OutboxConfirm { .. } | Command::AdvanceNumbers => return Some(Expected::Done),
            _ => return None,
        };
        Some(match command {
            NamespacesCommand::Deliver { source, number, message } => {
                let last = self.delivered.entry(source.clone()).or_default();
                if *number > *last {
                    *last = *number;
                    match message {
                        AccountMessage::Open { account, .. } | AccountMessage::Open2 { account, .. } => {
                            self.accounts.insert(*account)
                        }
                        AccountMessage::Purge { account } => self.accounts.remove(account),
                    };
                }
                Expected::Done
            }
            NamespacesCommand::Create { request_id, account, name, .. }
            | NamespacesCommand::Create2 { request_id, account, name, .. } => {
                if let Some(first) = self.made.get(request_id) {
                    Expected::Namespace { incarnation: Some(*first) }
                } else if !self.accounts.contains(account) {
                    Expected::AccountNotFound
                } else if self.names.contains_key(&(*account, name.clone())) {
                    Expected::Taken
                } else {
                    Expected::Namespace { incarnation: None }
                }
            }
            NamespacesCommand::Update { account, name, .. } => match self.get(*account, name) {
                Some(incarnation) => Expected::Namespace { incarnation: Some(incarnation) },
                None => Expected::NotFound,
            },
            NamespacesCommand::Delete { account, name, incarnation } => match self.get(*account, name) {
                Some(there) if incarnation.is_none_or(|wanted| wanted == there) => {
                    self.names.remove(&(*account, name.clone()));
                    Expected::Done
                }
                _ => Expected::NotFound,
            },
        })
    }

    /// Records the result of a creation. Returns false if the incarnation is not new.
    pub(crate) fn record_created(
        &mut self,
        request: RequestId,
        account: AccountId,
        name: &str,
        life: Incarnation,
    ) -> bool {
        let is_new = self.highest.is_none_or(|highest| life > highest);
        self.highest = self.highest.max(Some(life));
        self.made.insert(request, life);
        self.names.insert((account, name.to_owned()), life);
        is_new
    }

    /// Whether that creation was carried out before.
    pub(crate) fn was_created(&self, request: &RequestId) -> bool {
        self.made.contains_key(request)
    }

    /// The incarnation of a name.
    pub(crate) fn get(&self, account: AccountId, name: &str) -> Option<Incarnation> {
        self.names.get(&(account, name.to_owned())).copied()
    }
}
