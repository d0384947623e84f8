//! Connections that are told what happens to a session.

use std::collections::HashMap;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::SessionKey;

/// Notices that wait to be sent to one connection; one that takes them slower is cut off and comes back.
const NOTICES_AHEAD: usize = 1_024;

/// Who follows which session.
#[derive(Default)]
pub(crate) struct Follows {
    followers: HashMap<SessionKey, Vec<Follower>>,
}

struct Follower {
    epoch: u64,
    notices: mpsc::Sender<Bytes>,
}

impl Follows {
    /// Follows a session in an epoch. The receiver ends with the leadership, with the session, or when it is too slow.
    pub(crate) fn follow(&mut self, key: SessionKey, epoch: u64) -> mpsc::Receiver<Bytes> {
        let (notices, receiver) = mpsc::channel(NOTICES_AHEAD);
        let followers = self.followers.entry(key).or_default();
        followers.retain(|follower| !follower.notices.is_closed());
        followers.push(Follower { epoch, notices });
        receiver
    }

    /// Something happened to a session.
    pub(crate) fn tell(&mut self, key: &SessionKey, notice: &Bytes) {
        self.tell_some(key, notice, |_| true);
    }

    /// A session was opened in that epoch: those of earlier ones hear of it, and of nothing more.
    pub(crate) fn superseded(&mut self, key: &SessionKey, epoch: u64, notice: &Bytes) {
        self.tell_some(key, notice, |follower| follower.epoch < epoch);
        if let Some(followers) = self.followers.get_mut(key) {
            followers.retain(|follower| follower.epoch >= epoch);
        }
    }

    /// A session is gone.
    pub(crate) fn ended(&mut self, key: &SessionKey, notice: &Bytes) {
        self.tell(key, notice);
        self.followers.remove(key);
    }

    /// A connection no longer follows.
    pub(crate) fn forget_gone(&mut self, key: &SessionKey) {
        if let Some(followers) = self.followers.get_mut(key) {
            followers.retain(|follower| !follower.notices.is_closed());
            if followers.is_empty() {
                self.followers.remove(key);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.followers.is_empty()
    }

    fn tell_some(&mut self, key: &SessionKey, notice: &Bytes, whom: impl Fn(&Follower) -> bool) {
        if let Some(followers) = self.followers.get_mut(key) {
            followers.retain(|follower| !whom(follower) || follower.notices.try_send(notice.clone()).is_ok());
        }
    }
}
