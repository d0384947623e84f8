//! Messages between shards: the outbox of the sender and the inbox of the receiver. Both are part of the replicated
//! state.
//!
//! The leader's node delivers each destination's messages in order and retries them until the receiver replies; then it
//! proposes [`Command::OutboxConfirm`]. The receiver ignores messages that it has already accepted, so each takes
//! effect once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Application;
use crate::limit::{self, Reached};
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
    /// The message's own number, or the highest number that stands for this message and others of its account.
    pub awaited_through: u64,
}

/// The messages of a shard to other shards, in order. Whatever is asked about an account costs the same however many
/// messages of others are pending.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    next_number: u64,
    messages: BTreeMap<u64, OutboxMessage>,
    by_account: BTreeMap<AccountId, AccountMessages>,
    /// The account of each number that stands for several messages.
    barriers: BTreeMap<u64, AccountId>,
}

/// The pending messages of an account.
#[derive(Clone, Debug, Default)]
struct AccountMessages {
    pending: BTreeSet<u64>,
    /// The numbers that replies may await and that stand for all messages up to them, pending or not themselves. After
    /// a restore only the latest is known: nobody has a reply that awaits an earlier one.
    barriers: BTreeSet<u64>,
}

/// How many barriers an account has: far more than its calls can await within their deadlines. The oldest is dropped
/// first, and then stands for its own message only.
const MAX_BARRIERS: usize = 256;

/// Two outboxes are equal if their snapshots are.
impl PartialEq for Outbox {
    fn eq(&self, other: &Self) -> bool {
        (self.next_number, &self.messages) == (other.next_number, &other.messages)
    }
}

impl Eq for Outbox {}

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
        if self.messages.contains_key(&number) {
            return false;
        }
        let account = self.barriers.get(&number).and_then(|account| self.by_account.get(account));
        account.is_none_or(|account| account.pending.first().is_none_or(|first| *first > number))
    }

    /// Rejects new work on an account with `max` pending messages. Messages that must not be rejected skip this check.
    pub(crate) fn check_capacity(&self, account: AccountId, max: usize) -> Result<(), CommandError> {
        if self.by_account.get(&account).is_none_or(|account| account.pending.len() < max) {
            return Ok(());
        }
        let reached = Reached { limit: &limit::PENDING_CHANGES, max: max as u64 };
        Err(CommandError::Busy(reached.to_string()))
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
        self.insert(number, message);
        self.next_number = number.checked_add(1).expect("a shard sends far fewer than 2^64 messages");
        number
    }

    /// Returns the number of the last pending message that concerns the account.
    pub(crate) fn last_of(&self, account: AccountId) -> Option<u64> {
        self.by_account.get(&account)?.pending.last().copied()
    }

    /// Makes one number stand for all pending messages of the account, whatever their destinations, and returns it.
    pub(crate) fn await_all_of(&mut self, account: AccountId) -> Option<u64> {
        let of_account = self.by_account.get_mut(&account)?;
        let last = of_account.pending.last().copied()?;
        for number in &of_account.pending {
            if let Some(message) = self.messages.get_mut(number) {
                message.awaited_through = message.awaited_through.max(last);
            }
        }
        self.barriers.insert(last, account);
        of_account.barriers.insert(last);
        if of_account.barriers.len() > MAX_BARRIERS
            && let Some(oldest) = of_account.barriers.pop_first()
        {
            self.barriers.remove(&oldest);
        }
        Some(last)
    }

    /// Drops messages that the receivers confirmed.
    pub(crate) fn confirm(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(message) = self.messages.remove(number) {
                self.remove_from_account(*number, message.account);
            }
        }
    }

    fn insert(&mut self, number: u64, message: OutboxMessage) {
        let of_account = self.by_account.entry(message.account).or_default();
        of_account.pending.insert(number);
        if message.awaited_through != number {
            of_account.barriers.insert(message.awaited_through);
            self.barriers.insert(message.awaited_through, message.account);
        }
        self.messages.insert(number, message);
    }

    /// Removes a message that is not pending any more, and the barriers that it was the last to hold up.
    fn remove_from_account(&mut self, number: u64, account: AccountId) {
        let Some(of_account) = self.by_account.get_mut(&account) else { return };
        of_account.pending.remove(&number);
        let first = of_account.pending.first().copied();
        while let Some(barrier) = of_account.barriers.first().copied()
            && first.is_none_or(|first| barrier < first)
        {
            of_account.barriers.remove(&barrier);
            self.barriers.remove(&barrier);
        }
        if of_account.pending.is_empty() {
            self.by_account.remove(&account);
        }
    }

    pub(crate) fn restore_next_number(&mut self, next_number: u64) {
        self.next_number = next_number;
    }

    /// Adds a message of a snapshot. Returns false if its number was never assigned.
    pub(crate) fn restore_message(&mut self, number: u64, message: OutboxMessage) -> bool {
        let is_new = number >= 1 && number < self.next_number && !self.messages.contains_key(&number);
        if is_new {
            self.insert(number, message);
        }
        is_new
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
    fn others_do_not_wait_for_what_an_account_awaits() {
        let mut outbox = Outbox::default();
        for account in [1, 2, 1] {
            push(&mut outbox, account);
        }
        assert_eq!(outbox.await_all_of(AccountId(1)), Some(3));
        outbox.confirm(&[2]);
        assert!(outbox.is_confirmed(2), "the first message of the other account is pending, and no matter");
        outbox.confirm(&[3]);
        assert!(!outbox.is_confirmed(3));
    }

    #[test]
    fn an_earlier_number_stands_for_its_messages_though_a_later_one_stands_for_them_too() {
        let mut outbox = Outbox::default();
        (0..2).for_each(|_| assert!(push(&mut outbox, 1) > 0));
        assert_eq!(outbox.await_all_of(AccountId(1)), Some(2));
        push(&mut outbox, 1);
        assert_eq!(outbox.await_all_of(AccountId(1)), Some(3));
        outbox.confirm(&[2, 3]);
        assert!(!outbox.is_confirmed(2) && !outbox.is_confirmed(3));
        let restored = {
            let mut restored = Outbox::default();
            restored.restore_next_number(outbox.raw_next_number());
            let all = outbox.messages().iter();
            all.for_each(|(number, message)| assert!(restored.restore_message(*number, message.clone())));
            restored
        };
        assert!(restored == outbox && !restored.is_confirmed(3));
        outbox.confirm(&[1]);
        assert!(outbox.is_confirmed(2) && outbox.is_confirmed(3));
        assert!(outbox.barriers.is_empty() && outbox.by_account.is_empty());
    }

    #[test]
    fn an_account_whose_oldest_message_stays_keeps_a_bounded_number_of_barriers() {
        let mut outbox = Outbox::default();
        let first = push(&mut outbox, 1);
        for _ in 0..=MAX_BARRIERS {
            let number = push(&mut outbox, 1);
            assert_eq!(outbox.await_all_of(AccountId(1)), Some(number));
            outbox.confirm(&[number]);
            assert!(!outbox.is_confirmed(number));
        }
        assert_eq!(outbox.barriers.len(), MAX_BARRIERS);
        outbox.confirm(&[first]);
        assert!(outbox.barriers.is_empty());
    }

    #[test]
    fn new_work_on_an_account_is_refused_while_too_much_of_it_is_pending() {
        let mut outbox = Outbox::default();
        let check = |outbox: &Outbox, account| outbox.check_capacity(AccountId(account), 3);
        for _ in 0..3 {
            assert_eq!(check(&outbox, 1), Ok(()));
            push(&mut outbox, 1);
        }
        assert!(matches!(check(&outbox, 1), Err(CommandError::Busy(_))));
        assert_eq!(check(&outbox, 2), Ok(()), "whatever is pending of others");
        outbox.confirm(&[1]);
        assert_eq!(check(&outbox, 1), Ok(()));
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
