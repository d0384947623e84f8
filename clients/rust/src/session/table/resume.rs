//! Starts a new connection of the session, or ends the session.

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, pending::Message as Unanswered};

use super::entry::{PermitMessage, Phase};
use super::{AwaitedPaths, Effect, Event, RequestTable};
use crate::error::{EndReason, Error, LossReason};
use crate::locks::LockStatus;
use crate::view::Path;

/// Maximum requests and holds in one message: the service's default of `max_lock_info`.
const MAX_ENTRIES: usize = 10_000;

impl RequestTable {
    /// Returns all requests and holds of the session, to be sent first on a new connection, in as many messages as it
    /// takes. No other message is then left to send.
    pub(crate) fn lock_info(&mut self) -> Vec<client::LockInfo> {
        self.to_say.clear();
        self.to_repeat.clear();
        self.repeat_signals();
        let held = self.held.iter().map(|((_, path), held)| client::Held {
            path: path.0.clone(),
            mode: v1::Mode::from(held.mode).into(),
            fencing_token: held.token,
        });
        let held: Vec<client::Held> = held.collect();
        let (mut things, mut pending) = self.list_arrivals();
        for (no, entry) in &mut self.entries {
            things.extend(entry.held_permits(*no));
            let message = match (&entry.phase, &entry.request.permits) {
                (Phase::Held, _) => continue,
                (Phase::Awaiting(terms), _) => Unanswered::Await(entry.to_await_message(*no, terms)),
                (Phase::Requested | Phase::Waiting(_), None) => Unanswered::Lock(entry.to_message(*no)),
                (Phase::Requested | Phase::Waiting(_), Some(terms)) => match entry.to_permit_message(*no, terms) {
                    PermitMessage::Acquire(message) => Unanswered::AcquirePermits(message),
                    PermitMessage::Take(message) => Unanswered::Take(message),
                },
                (Phase::Releasing, _) => Unanswered::Release(entry.to_release_message(*no)),
            };
            entry.was_said = true;
            entry.is_unheard |= matches!(entry.phase, Phase::Awaiting(_));
            pending.push(client::Pending { message: Some(message) });
        }
        split(held, things, pending)
    }

    /// Ends all requests and holds.
    pub(crate) fn end(&mut self, reason: &EndReason) -> Vec<Effect> {
        if self.ended.is_some() {
            return Vec::new();
        }
        self.ended = Some(reason.clone());
        self.end_arrivals(&Error::SessionEnded(reason.clone()));
        let mut effects = Vec::new();
        let lost = LossReason::SessionEnded(reason.clone());
        let mut paths: Vec<_> = self.held.drain().map(|((_, path), _)| path).collect();
        let permits = self.entries.iter().filter_map(|(no, entry)| entry.held_permits(*no));
        paths.extend(permits.map(|hold| Path(hold.path)));
        paths.sort_unstable();
        // A caller that closes a session expects to lose its locks.
        if *reason != EndReason::Closed {
            let tell = |path| Effect::Notify(Event::Lost { path, reason: lost.clone() });
            effects.extend(paths.into_iter().map(tell));
        }
        self.shared.clear();
        self.awaited = AwaitedPaths::default();
        self.to_say.clear();
        self.to_repeat.clear();
        let signals = std::mem::take(&mut self.signals).into_iter();
        effects.extend(signals.map(|signal| Effect::Failed(signal.waiter(), Error::SessionEnded(reason.clone()))));
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

/// Splits a list into messages, pending ones first.
fn split(held: Vec<client::Held>, things: Vec<client::Thing>, pending: Vec<client::Pending>) -> Vec<client::LockInfo> {
    let (mut held, mut things, mut pending) = (held.into_iter(), things.into_iter(), pending.into_iter());
    let mut parts = Vec::new();
    while parts.is_empty() || held.len() + things.len() + pending.len() > 0 {
        let pending: Vec<client::Pending> = pending.by_ref().take(MAX_ENTRIES).collect();
        let held: Vec<client::Held> = held.by_ref().take(MAX_ENTRIES - pending.len()).collect();
        let things = things.by_ref().take(MAX_ENTRIES - pending.len() - held.len()).collect();
        parts.push(client::LockInfo { held, things, pending, part: 0, parts: 0 });
    }
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    if count > 1 {
        (1..).zip(&mut parts).for_each(|(number, part)| (part.part, part.parts) = (number, count));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_split_and_pending_messages_come_first() {
        let shape = |held: usize, pending: usize| {
            let pending = vec![client::Pending::default(); pending];
            let parts = split(vec![client::Held::default(); held], Vec::new(), pending);
            let shape = parts.iter().map(|it| (it.pending.len(), it.held.len(), it.part, it.parts));
            shape.collect::<Vec<_>>()
        };
        assert_eq!(shape(0, 0), [(0, 0, 0, 0)]);
        assert_eq!(shape(9_999, 1), [(1, 9_999, 0, 0)]);
        assert_eq!(shape(15_000, 10_001), [(10_000, 0, 1, 3), (1, 9_999, 2, 3), (0, 5_001, 3, 3)]);
        let parts = split(vec![client::Held::default(); 9_999], vec![client::Thing::default(); 3], Vec::new());
        let things: Vec<usize> = parts.iter().map(|part| part.things.len()).collect();
        assert_eq!(things, [1, 2]);
    }
}
