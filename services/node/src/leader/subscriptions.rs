//! Subscribers of the shard's topics.

use std::collections::HashMap;

use bytes::Bytes;
use holdfast_core::recent_by_account::{Capacity, RecentByAccount};
use holdfast_core::{AccountId, Incarnation, NamespaceRef};
use holdfast_rpc::{ByteBudget, Reservation};
use tokio::sync::{mpsc, watch};

use super::{NamespaceKey, SessionKey};

/// Buffered updates of a session per subscriber; a slower one is cut off and subscribes again.
const MAX_BUFFERED_UPDATES: usize = 1_024;
/// The same in bytes. One larger update may be buffered alone.
const MAX_BUFFERED_BYTES: u32 = 1024 * 1024;

/// How many ends of sessions are kept for subscriptions that come after them. A gateway subscribes within milliseconds
/// after it opened a session.
const MAX_ENDED_SESSIONS: Capacity = Capacity { per_account: 256, total: 4_096 };

/// Subscribers of sessions, which receive each update, and of histories, which read what changed at their own pace.
#[derive(Default)]
pub(crate) struct Subscriptions {
    sessions: HashMap<SessionKey, Vec<Subscriber>>,
    /// Events by namespace; account changes have no key.
    histories: HashMap<Option<NamespaceKey>, watch::Sender<()>>,
    /// The final updates of each account's latest ended sessions.
    ended_sessions: RecentByAccount<(SessionKey, Bytes)>,
    /// The number of the latest of them.
    last_ended: u64,
}

struct Subscriber {
    epoch: u64,
    updates: mpsc::Sender<BufferedUpdate>,
    budget: ByteBudget,
}

impl Subscriber {
    /// Buffers an update. Returns false if the subscriber has left, or is too slow.
    fn send(&self, update: &Bytes) -> bool {
        let Some(bytes) = self.budget.try_reserve(update.len()) else { return false };
        self.updates.try_send(BufferedUpdate { update: update.clone(), _bytes: bytes }).is_ok()
    }
}

/// An update, and its share of the subscriber's buffer.
pub(crate) struct BufferedUpdate {
    pub(crate) update: Bytes,
    _bytes: Reservation,
}

impl Subscriptions {
    /// Subscribes to future changes of a namespace's events, or of accounts. The receiver ends with the leadership, and
    /// with the namespace.
    pub(crate) fn subscribe(&mut self, namespace: Option<&NamespaceRef>) -> watch::Receiver<()> {
        let changes = self.histories.entry(namespace.map(NamespaceKey::of));
        changes.or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Notifies subscribers of a change.
    pub(crate) fn notify(&mut self, namespace: Option<&NamespaceRef>) {
        let key = namespace.map(NamespaceKey::of);
        if self.histories.get(&key).is_some_and(|changes| changes.send(()).is_err()) {
            // No subscriber is left.
            self.histories.remove(&key);
        }
    }

    /// Removes what no subscriber is left of: no change may come that would.
    pub(crate) fn remove_unwatched(&mut self, namespace: Option<&NamespaceRef>) {
        let key = namespace.map(NamespaceKey::of);
        if self.histories.get(&key).is_some_and(|changes| changes.receiver_count() == 0) {
            self.histories.remove(&key);
        }
    }

    /// Removes a deleted namespace.
    pub(crate) fn remove(&mut self, namespace: &NamespaceRef) {
        self.histories.remove(&Some(NamespaceKey::of(namespace)));
    }

    /// Subscribes to a session in an epoch. The receiver ends with the leadership, with the session, or when it is too
    /// slow.
    pub(crate) fn subscribe_session(&mut self, key: SessionKey, epoch: u64) -> mpsc::Receiver<BufferedUpdate> {
        let (updates, receiver) = mpsc::channel(MAX_BUFFERED_UPDATES);
        let subscribers = self.sessions.entry(key).or_default();
        subscribers.retain(|subscriber| !subscriber.updates.is_closed());
        subscribers.push(Subscriber { epoch, updates, budget: ByteBudget::new(MAX_BUFFERED_BYTES) });
        receiver
    }

    /// Sends an update to all subscribers of a session. It is encoded only if there are any.
    pub(crate) fn update_session(&mut self, key: &SessionKey, encode: impl FnOnce() -> Bytes) {
        self.send_to(key, encode, |_| true);
    }

    /// Tells subscribers of earlier epochs that the session was opened in this epoch, and ends their subscriptions.
    pub(crate) fn session_superseded(&mut self, key: &SessionKey, epoch: u64, encode: impl FnOnce() -> Bytes) {
        self.send_to(key, encode, |subscriber| subscriber.epoch < epoch);
        if let Some(subscribers) = self.sessions.get_mut(key) {
            subscribers.retain(|subscriber| subscriber.epoch >= epoch);
        }
    }

    /// Ends the subscriptions of all sessions of some namespaces, without an update: their subscribers subscribe again.
    pub(crate) fn end_sessions_of(&mut self, is_one: impl Fn(AccountId, Incarnation) -> bool) {
        self.sessions.retain(|key, _| {
            let (account, incarnation) = key.namespace();
            !is_one(account, incarnation)
        });
    }

    /// Tells subscribers that a session ended, and removes them.
    pub(crate) fn session_ended(&mut self, key: SessionKey, update: Bytes) {
        self.update_session(&key, || update.clone());
        self.sessions.remove(&key);
        self.last_ended += 1;
        let (account, _) = key.namespace();
        self.ended_sessions.push(self.last_ended, account, (key, update), MAX_ENDED_SESSIONS);
    }

    /// Returns the last update of a session that ended lately, for a subscription that came too late for it.
    pub(crate) fn end_of_session(&self, key: &SessionKey) -> Option<mpsc::Receiver<BufferedUpdate>> {
        let (account, _) = key.namespace();
        let (_, update) = self.ended_sessions.of_account(account).rev().find(|(ended, _)| ended == key)?;
        let (updates, receiver) = mpsc::channel(1);
        let subscriber = Subscriber { epoch: 0, updates, budget: ByteBudget::new(MAX_BUFFERED_BYTES) };
        subscriber.send(update).then_some(receiver)
    }

    /// Removes closed subscriptions of a session.
    pub(crate) fn remove_closed(&mut self, key: &SessionKey) {
        if let Some(subscribers) = self.sessions.get_mut(key) {
            subscribers.retain(|subscriber| !subscriber.updates.is_closed());
            if subscribers.is_empty() {
                self.sessions.remove(key);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.histories.is_empty()
    }

    fn send_to(&mut self, key: &SessionKey, encode: impl FnOnce() -> Bytes, selects: impl Fn(&Subscriber) -> bool) {
        let Some(subscribers) = self.sessions.get_mut(key) else { return };
        if subscribers.iter().any(&selects) {
            let update = encode();
            subscribers.retain(|subscriber| !selects(subscriber) || subscriber.send(&update));
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::Incarnation;

    use super::*;
    use crate::testing::namespace;

    fn session() -> SessionKey {
        SessionKey::of(&namespace(), "se_1")
    }

    fn received(updates: &mut mpsc::Receiver<BufferedUpdate>) -> Vec<Bytes> {
        std::iter::from_fn(|| updates.try_recv().ok()).map(|buffered| buffered.update).collect()
    }

    #[test]
    fn a_slow_subscriber_of_a_session_is_cut_off_and_delays_no_other() {
        let mut subscriptions = Subscriptions::default();
        let (mut slow, mut fast) =
            (subscriptions.subscribe_session(session(), 1), subscriptions.subscribe_session(session(), 1));
        let update = Bytes::from_static(b"update");
        for _ in 0..=MAX_BUFFERED_UPDATES {
            subscriptions.update_session(&session(), || update.clone());
            assert_eq!(received(&mut fast).len(), 1);
        }
        assert_eq!(received(&mut slow).len(), MAX_BUFFERED_UPDATES);
        assert!(slow.is_closed() && !fast.is_closed());
    }

    #[test]
    fn large_updates_fill_the_buffer_of_a_slow_subscriber_by_their_bytes() {
        let mut subscriptions = Subscriptions::default();
        let (mut slow, mut fast) =
            (subscriptions.subscribe_session(session(), 1), subscriptions.subscribe_session(session(), 1));
        let update = Bytes::from(vec![0; 64 * 1024]);
        for _ in 0..17 {
            subscriptions.update_session(&session(), || update.clone());
            assert_eq!(received(&mut fast).len(), 1);
        }
        assert_eq!(received(&mut slow).len(), 16, "a mebibyte");
        assert!(slow.is_closed() && !fast.is_closed());
        let larger_than_the_buffer = Bytes::from(vec![0; 2 * 1024 * 1024]);
        subscriptions.update_session(&session(), || larger_than_the_buffer);
        assert_eq!(received(&mut fast).len(), 1);
    }

    #[test]
    fn what_nobody_follows_is_not_encoded() {
        let mut subscriptions = Subscriptions::default();
        let never = || -> Bytes { panic!("nobody follows it") };
        subscriptions.update_session(&session(), never);
        let mut follower = subscriptions.subscribe_session(session(), 2);
        subscriptions.session_superseded(&session(), 2, never);
        assert!(received(&mut follower).is_empty() && !follower.is_closed());
    }

    #[test]
    fn only_connections_of_earlier_epochs_are_superseded() {
        let mut subscriptions = Subscriptions::default();
        let (mut early, mut late) =
            (subscriptions.subscribe_session(session(), 1), subscriptions.subscribe_session(session(), 2));
        let update = Bytes::from_static(b"superseded");
        subscriptions.session_superseded(&session(), 2, || update.clone());
        assert_eq!((received(&mut early), received(&mut late)), (vec![update.clone()], vec![]));
        assert!(early.is_closed() && !late.is_closed());
        subscriptions.session_ended(session(), update.clone());
        assert_eq!(received(&mut late), [update]);
        assert!(late.is_closed() && subscriptions.is_empty());
    }

    #[test]
    fn a_subscription_that_comes_after_the_end_of_its_session_is_told_how_it_ended() {
        let mut subscriptions = Subscriptions::default();
        let key = |number: usize| SessionKey::of(&namespace(), &format!("se_{number}"));
        let update = |number: usize| Bytes::from(format!("end {number}"));
        let of_neighbour = SessionKey::of(&NamespaceRef { account: AccountId(8), ..namespace() }, "se_0");
        subscriptions.session_ended(of_neighbour.clone(), update(0));
        let most = MAX_ENDED_SESSIONS.per_account;
        (0..=most).for_each(|number| subscriptions.session_ended(key(number), update(number)));
        assert!(subscriptions.end_of_session(&key(0)).is_none(), "it is too long ago");
        assert!(subscriptions.end_of_session(&of_neighbour).is_some(), "another account has many");
        for number in [1, most] {
            let mut late = subscriptions.end_of_session(&key(number)).expect("it ended lately");
            assert_eq!(received(&mut late), [update(number)]);
            assert!(late.is_closed());
        }
        assert!(subscriptions.is_empty());
    }

    #[test]
    fn a_change_wakes_the_subscribers_of_its_history_only() {
        let mut subscriptions = Subscriptions::default();
        let other = NamespaceRef { incarnation: Incarnation(2), ..namespace() };
        let accounts = subscriptions.subscribe(None);
        let (events, others) = (subscriptions.subscribe(Some(&namespace())), subscriptions.subscribe(Some(&other)));
        subscriptions.notify(Some(&namespace()));
        let changed = |changes: &watch::Receiver<()>| changes.has_changed().ok();
        assert_eq!([&events, &others, &accounts].map(changed), [Some(true), Some(false), Some(false)]);
        subscriptions.notify(None);
        assert_eq!([&others, &accounts].map(changed), [Some(false), Some(true)]);
        subscriptions.remove(&other);
        assert_eq!(changed(&others), None, "the namespace is gone");
        subscriptions.remove_unwatched(None);
        subscriptions.notify(None);
        assert_eq!(changed(&accounts), Some(true), "it has a subscriber");
        drop((events, accounts));
        subscriptions.remove_unwatched(None);
        subscriptions.notify(Some(&namespace()));
        assert!(subscriptions.is_empty());
    }
}
