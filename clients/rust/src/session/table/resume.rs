//! Starts a new connection of the session, or ends the session.

use holdfast_proto::v1;
use holdfast_proto::v1::client_message::{self as client, pending::Message as Unanswered};

use prost::Message;

use super::entry::{Entry, PermitMessage, Phase};
use super::{AwaitedPaths, Effect, Event, RequestNo, RequestTable, format_request_id};
use crate::error::{EndReason, Error, LossReason};
use crate::locks::LockStatus;
use crate::view::Path;

/// Maximum requests and holds in one message: the service's default of `max_lock_info`.
const MAX_ENTRIES: usize = 10_000;
/// Maximum bytes of the granted requests in one message, which may have 1 MiB.
const MAX_GRANTED_BYTES: usize = 900_000;

impl RequestTable {
    /// Returns all requests and holds of the session, to be sent first on a new connection, in as many messages as it
    /// takes. No other message is then left to send.
    pub(crate) fn lock_info(&mut self) -> Vec<client::LockInfo> {
        self.to_say.clear();
        self.to_repeat.clear();
        self.repeat_signals();
        self.released_tokens.clear();
        let held = self.held.iter_mut().map(|((_, path), held)| {
            held.is_listed = true;
            let mode = v1::Mode::from(held.mode).into();
            client::Held { path: path.0.clone(), mode, fencing_token: held.token }
        });
        let held: Vec<client::Held> = held.collect();
        let (mut things, mut pending) = self.list_arrivals();
        let mut granted = Vec::new();
        for (no, entry) in &mut self.entries {
            things.extend(entry.held_permits(*no));
            granted.extend(entry.to_granted_message(*no));
            let (ticket, receipt) = entry.known_position();
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
            pending.push(client::Pending { message: Some(message), ticket, receipt });
        }
        split(held, things, pending, granted)
    }

    /// Keeps what proves a grant.
    pub(super) fn store_receipt(&mut self, no: RequestNo, token: u64, receipt: Vec<u8>) {
        if let Some(entry) = self.entries.get_mut(&no)
            && matches!(entry.phase, Phase::Held)
            && entry.token == token
            && !receipt.is_empty()
        {
            entry.receipt = receipt;
        }
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
        self.released_tokens.clear();
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

impl Entry {
    /// Returns the granted request with its receipt, if it has one. What of it was lost is not in the list of holds.
    fn to_granted_message(&self, no: RequestNo) -> Option<client::Granted> {
        if !matches!(self.phase, Phase::Held) || self.receipt.is_empty() {
            return None;
        }
        let resource = |claim: &super::Claim| client::Held {
            path: claim.path.0.clone(),
            mode: v1::Mode::from(claim.mode).into(),
            fencing_token: self.tokens.get(&claim.path).copied().unwrap_or_default(),
        };
        Some(client::Granted {
            request_id: format_request_id(no),
            holder: self.request.owner.as_deref().map(str::to_owned),
            resources: self.request.claims.iter().map(resource).collect(),
            receipt: self.receipt.clone(),
        })
    }

    /// Returns the place of a waiting request, and what proves it.
    fn known_position(&self) -> (Option<u64>, Vec<u8>) {
        match (&self.phase, &self.place) {
            (Phase::Requested | Phase::Waiting(_), Some((ticket, receipt))) => (Some(*ticket), receipt.clone()),
            _ => (None, Vec::new()),
        }
    }
}

/// Splits a list into messages, pending ones first.
fn split(
    held: Vec<client::Held>,
    things: Vec<client::Thing>,
    pending: Vec<client::Pending>,
    granted: Vec<client::Granted>,
) -> Vec<client::LockInfo> {
    let (mut held, mut things, mut pending) = (held.into_iter(), things.into_iter(), pending.into_iter());
    let mut parts = Vec::new();
    while parts.is_empty() || held.len() + things.len() + pending.len() > 0 {
        let pending: Vec<client::Pending> = pending.by_ref().take(MAX_ENTRIES).collect();
        let held: Vec<client::Held> = held.by_ref().take(MAX_ENTRIES - pending.len()).collect();
        let things = things.by_ref().take(MAX_ENTRIES - pending.len() - held.len()).collect();
        parts.push(client::LockInfo { held, things, pending, ..Default::default() });
    }
    // Receipts repeat the paths of holds: they go beside them only if there are few.
    let (mut entries, mut bytes) = (MAX_ENTRIES, MAX_GRANTED_BYTES);
    if let [one] = parts.as_slice() {
        (entries, bytes) = (one.held.len() + one.things.len() + one.pending.len(), one.encoded_len());
    }
    for granted in granted {
        let size = granted.encoded_len();
        if entries == MAX_ENTRIES || bytes + size > MAX_GRANTED_BYTES {
            parts.push(client::LockInfo::default());
            (entries, bytes) = (0, 0);
        }
        (entries, bytes) = (entries + 1, bytes + size);
        parts.last_mut().expect("there is one").granted.push(granted);
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
            let parts = split(vec![client::Held::default(); held], Vec::new(), pending, Vec::new());
            let shape = parts.iter().map(|it| (it.pending.len(), it.held.len(), it.part, it.parts));
            shape.collect::<Vec<_>>()
        };
        assert_eq!(shape(0, 0), [(0, 0, 0, 0)]);
        assert_eq!(shape(9_999, 1), [(1, 9_999, 0, 0)]);
        assert_eq!(shape(15_000, 10_001), [(10_000, 0, 1, 3), (1, 9_999, 2, 3), (0, 5_001, 3, 3)]);
        let things = vec![client::Thing::default(); 3];
        let parts = split(vec![client::Held::default(); 9_999], things, Vec::new(), Vec::new());
        let things: Vec<usize> = parts.iter().map(|part| part.things.len()).collect();
        assert_eq!(things, [1, 2]);
    }

    #[test]
    fn many_receipts_come_in_messages_of_their_own() {
        let granted = |count, bytes| vec![client::Granted { receipt: vec![0; bytes], ..Default::default() }; count];
        let shape = |held: usize, granted| {
            let parts = split(vec![client::Held::default(); held], Vec::new(), Vec::new(), granted);
            assert!(parts.iter().all(|part| part.encoded_len() < 1_000_000));
            parts.iter().map(|part| (part.held.len(), part.granted.len())).collect::<Vec<_>>()
        };
        assert_eq!(shape(2, granted(3, 20)), [(2, 3)]);
        assert_eq!(shape(9_999, granted(3, 20)), [(9_999, 1), (0, 2)]);
        assert_eq!(shape(10_001, granted(1, 20)), [(10_000, 0), (1, 0), (0, 1)]);
        assert_eq!(shape(0, granted(3, 400_000)), [(0, 2), (0, 1)]);
    }
}
