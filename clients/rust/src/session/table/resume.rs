//! Starts a new connection of the session, or ends the session.

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, pending::Message as Unanswered};

use super::entry::Phase;
use super::{Effect, Event, RequestTable, format_request_id};
use crate::error::{EndReason, Error, LossReason};
use crate::locks::LockStatus;

impl RequestTable {
    /// Returns all requests and holds of the session, to be sent first on a new connection. No other message is then
    /// left to send.
    pub(crate) fn lock_info(&mut self) -> client::LockInfo {
        self.to_say.clear();
        self.to_repeat.clear();
        let held = self.held.iter().map(|((_, path), held)| client::Held {
            path: path.0.clone(),
            mode: v1::Mode::from(held.mode).into(),
            fencing_token: held.token,
        });
        let held = held.collect();
        let mut pending = Vec::new();
        for (no, entry) in &mut self.entries {
            let message = match entry.phase {
                Phase::Held => continue,
                Phase::Requested | Phase::Waiting(_) => Unanswered::Lock(entry.to_message(*no)),
                Phase::Releasing => Unanswered::Release(client::Release { request_id: format_request_id(*no) }),
            };
            entry.was_said = true;
            pending.push(client::Pending { message: Some(message) });
        }
        client::LockInfo { held, pending }
    }

    /// Ends all requests and holds.
    pub(crate) fn end(&mut self, reason: &EndReason) -> Vec<Effect> {
        if self.ended.is_some() {
            return Vec::new();
        }
        self.ended = Some(reason.clone());
        let mut effects = Vec::new();
        let lost = LossReason::SessionEnded(reason.clone());
        let mut paths: Vec<_> = self.held.drain().map(|((_, path), _)| path).collect();
        paths.sort_unstable();
        // A caller that closes a session expects to lose its locks.
        if *reason != EndReason::Closed {
            let tell = |path| Effect::Notify(Event::Lost { path, reason: lost.clone() });
            effects.extend(paths.into_iter().map(tell));
        }
        self.shared.clear();
        self.to_say.clear();
        self.to_repeat.clear();
        self.bytes = 0;
        for (_, mut entry) in std::mem::take(&mut self.entries) {
            effects.extend(entry.update_status(LockStatus::None));
            if matches!(entry.phase, Phase::Held) {
                entry.loss.send_if_modified(|loss| {
                    let first = loss.is_none();
                    loss.get_or_insert(lost.clone());
                    first
                });
            }
            let error = || Error::SessionEnded(reason.clone());
            effects.extend(entry.waiters.into_iter().map(|waiter| Effect::Failed(waiter, error())));
            effects.extend(entry.releasers.into_iter().map(Effect::Released));
        }
        effects
    }
}
