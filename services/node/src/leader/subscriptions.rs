//! Connections subscribed to sessions.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::SessionKey;

/// Buffered updates per connection; a slower subscriber is disconnected and resubscribes.
const MAX_BUFFERED_UPDATES: usize = 1_024;

/// Subscribers per session.
#[derive(Default)]
pub(crate) struct SessionSubscriptions {
    subscribers: HashMap<SessionKey, Vec<Subscriber>>,
}

struct Subscriber {
    epoch: u64,
    updates: mpsc::Sender<Bytes>,
}

impl SessionSubscriptions {
    /// Subscribes to a session in an epoch. The receiver ends with the leadership, with the session, or when it is too
    /// slow.
    pub(crate) fn subscribe(&mut self, key: SessionKey, epoch: u64) -> mpsc::Receiver<Bytes> {
        let (updates, receiver) = mpsc::channel(MAX_BUFFERED_UPDATES);
        let followers = self.subscribers.entry(key).or_default();
        followers.retain(|follower| !follower.updates.is_closed());
        followers.push(Subscriber { epoch, updates });
        receiver
    }

    /// Notifies all subscribers of a session.
    pub(crate) fn notify(&mut self, key: &SessionKey, notice: &Bytes) {
        self.notify_matching(key, notice, |_| true);
    }

    /// Notifies subscribers of earlier epochs that the session was opened in this epoch, and ends their subscriptions.
    pub(crate) fn superseded(&mut self, key: &SessionKey, epoch: u64, notice: &Bytes) {
        self.notify_matching(key, notice, |follower| follower.epoch < epoch);
        if let Some(followers) = self.subscribers.get_mut(key) {
            followers.retain(|follower| follower.epoch >= epoch);
        }
    }

    /// Notifies subscribers that a session ended, and removes them.
    pub(crate) fn ended(&mut self, key: &SessionKey, notice: &Bytes) {
        self.notify(key, notice);
        self.subscribers.remove(key);
    }

    /// Removes closed subscriptions of a session.
    pub(crate) fn remove_closed(&mut self, key: &SessionKey) {
        if let Some(followers) = self.subscribers.get_mut(key) {
            followers.retain(|follower| !follower.updates.is_closed());
            if followers.is_empty() {
                self.subscribers.remove(key);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    fn notify_matching(&mut self, key: &SessionKey, notice: &Bytes, whom: impl Fn(&Subscriber) -> bool) {
        if let Some(followers) = self.subscribers.get_mut(key) {
            followers.retain(|follower| !whom(follower) || follower.updates.try_send(notice.clone()).is_ok());
        }
    }
}
