//! Messages between shards: the outbox of the sender and the inbox of the receiver. Both are part of the replicated
//! state.
//!
//! The leader's node delivers each destination's messages in order and retries them until the receiver replies; then it
//! proposes [`Command::OutboxConfirm`]. The receiver ignores messages that it has already accepted, so each takes
//! effect once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Application;
use crate::{AccountId, Command, CommandError};

/// A message that is not confirmed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxMessage {
    /// Identifies the destination, together with the application.
    pub shard_key: u32,
    /// The application of the destination.
    pub application: Application,
    /// The command to propose there: a `Deliver` with this shard's id and the number of the message.
    pub command: Command,
    /// The account that it concerns.
    pub account: AccountId,
    /// A reply that awaits any number from this message's own up to this one also awaits this message.
    pub awaited_through: u64,
}

/// The messages of a shard to other shards, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    next_number: u64,
    messages: BTreeMap<u64, OutboxMessage>,
}

impl Outbox {
    /// Returns the unconfirmed messages by number.
    pub fn messages(&self) -> &BTreeMap<u64, OutboxMessage> {
        &self.messages
    }

    /// Returns the number of the next message, starting from 1.
    pub fn next_number(&self) -> u64 {
        self.next_number.max(1)
    }

    /// Returns whether no message is unconfirmed.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns whether a reply with `awaits: Some(number)` may be sent now.
    pub fn is_confirmed(&self, number: u64) -> bool {
        !self.messages.range(..=number).any(|(_, message)| message.awaited_through >= number)
    }

    /// Rejects new work if `max` messages are pending. Messages that must not be rejected skip this check.
    pub(crate) fn check_capacity(&self, max: usize) -> Result<(), CommandError> {
        if self.messages.len() < max {
            return Ok(());
        }
        Err(CommandError::QuotaExceeded {
            what: "the number of changes that other shards have yet to confirm".into(),
            max: max as u64,
            hint: "try again when they have caught up".into(),
        })
    }

    /// Adds a message and returns its number, which it also passes to `command`.
    pub(crate) fn push(
        &mut self,
        application: Application,
        shard_key: u32,
        account: AccountId,
        command: impl FnOnce(u64) -> Command,
    ) -> u64 {
        let number = self.next_number();
        let message =
            OutboxMessage { shard_key, application, command: command(number), account, awaited_through: number };
        self.messages.insert(number, message);
        self.next_number = number.checked_add(1).expect("a shard sends far fewer than 2^64 messages");
        number
    }

    /// Returns the number of the last pending message that concerns the account.
    pub(crate) fn last_of(&self, account: AccountId) -> Option<u64> {
        self.messages.iter().rev().find(|(_, message)| message.account == account).map(|(number, _)| *number)
    }

    /// Makes one number stand for all pending messages of the account, whatever their destinations, and returns it.
    pub(crate) fn await_all_of(&mut self, account: AccountId) -> Option<u64> {
        let last = self.last_of(account)?;
        for message in self.messages.values_mut().filter(|message| message.account == account) {
            message.awaited_through = message.awaited_through.max(last);
        }
        Some(last)
    }

    /// Drops messages that the receivers confirmed.
    pub(crate) fn confirm(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.messages.remove(number);
        }
    }

    pub(crate) fn restore_next_number(&mut self, next_number: u64) {
        self.next_number = next_number;
    }

    /// Adds a message of a snapshot. Returns false if its number was never assigned.
    pub(crate) fn restore_message(&mut self, number: u64, message: OutboxMessage) -> bool {
        number >= 1 && number < self.next_number && self.messages.insert(number, message).is_none()
    }

    pub(crate) fn raw_next_number(&self) -> u64 {
        self.next_number
    }
}

/// The last message accepted from each sending shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inbox {
    last: BTreeMap<String, u64>,
}

impl Inbox {
    /// Accepts a message and returns whether it is new. Messages of one sender arrive in order, so any number up to the
    /// last accepted one is a repeat.
    pub(crate) fn accept(&mut self, source: &str, number: u64) -> bool {
        if self.last.get(source).is_some_and(|last| number <= *last) {
            return false;
        }
        self.last.insert(source.to_owned(), number);
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, u64)> {
        self.last.iter().map(|(source, number)| (source, *number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(outbox: &mut Outbox, account: u64) -> u64 {
        outbox
            .push(Application::Locks, 7, AccountId(account), |number| Command::OutboxConfirm { numbers: vec![number] })
    }

    #[test]
    fn numbers_rise_from_one_and_are_never_used_again() {
        let mut outbox = Outbox::default();
        assert_eq!((push(&mut outbox, 1), push(&mut outbox, 1)), (1, 2));
        outbox.confirm(&[1, 2, 99]);
        assert!(outbox.is_empty());
        assert_eq!(push(&mut outbox, 1), 3);
    }

    #[test]
    fn a_message_is_settled_when_it_is_confirmed_whatever_else_is_pending() {
        let mut outbox = Outbox::default();
        push(&mut outbox, 1);
        let second = push(&mut outbox, 2);
        assert!(!outbox.is_confirmed(second));
        outbox.confirm(&[second]);
        assert!(outbox.is_confirmed(second));
        assert!(!outbox.is_confirmed(1));
    }

    #[test]
    fn one_number_can_stand_for_all_messages_of_an_account() {
        let mut outbox = Outbox::default();
        for account in [1, 2, 1, 2] {
            push(&mut outbox, account);
        }
        assert_eq!(outbox.await_all_of(AccountId(1)), Some(3));
        outbox.confirm(&[3]);
        assert!(!outbox.is_confirmed(3));
        outbox.confirm(&[1]);
        assert!(outbox.is_confirmed(3));
        assert_eq!(outbox.await_all_of(AccountId(1)), None);
    }

    #[test]
    fn new_work_is_refused_while_too_much_is_pending() {
        let mut outbox = Outbox::default();
        for _ in 0..3 {
            assert_eq!(outbox.check_capacity(3), Ok(()));
            push(&mut outbox, 1);
        }
        assert!(matches!(outbox.check_capacity(3), Err(CommandError::QuotaExceeded { .. })));
        outbox.confirm(&[1]);
        assert_eq!(outbox.check_capacity(3), Ok(()));
    }

    #[test]
    fn a_repeat_is_not_accepted_and_senders_do_not_disturb_one_another() {
        let mut inbox = Inbox::default();
        assert!(inbox.accept("namespaces_00", 5));
        assert!(!inbox.accept("namespaces_00", 5));
        assert!(!inbox.accept("namespaces_00", 4));
        assert!(inbox.accept("namespaces_01", 4));
        assert!(inbox.accept("namespaces_00", 6));
    }
}
