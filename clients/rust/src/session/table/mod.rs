//! The requests and holds of a session: pure bookkeeping, without clocks or connections.
//!
//! Invariants:
//! - A request id is used once in the life of a session, so a late reply to a cancelled request matches that request
//!   and no other; a lock granted to a cancelled request is released.
//! - A request stays in the table until the service reported its end. Its next message is queued, or was sent on the
//!   current connection.
//! - The results of a message are returned as effects in the order in which they happened.

mod arrivals;
mod conditions;
mod durability;
mod entry;
mod incoming;
mod resume;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map};

use holdfast_proto::v1::Durability;
use holdfast_proto::v1::client_message::Message as Said;
use tokio::sync::watch;

use super::events::Event;
use crate::error::{EndReason, Error, LossReason, Reason, Refusal, Result};
use crate::locks::LockStatus;
use crate::view::{Mode, Path, WaitStatus};
use arrivals::ArrivalEntry;
pub(crate) use arrivals::{ArrivalRequest, Meeting};
use conditions::PendingSignal;
pub(crate) use entry::{AwaitTerms, Claim, Granted, LockRequest, Owner, PermitTerms, WantedPermits};
use entry::{Entry, HeldPath, OwnedPath, PermitMessage, Phase};

/// The service's limit for a list of everything in a session, with space for the message around it.
const MAX_BYTES: usize = 1_000_000;

/// A caller that waits for a reply.
pub(crate) type WaiterId = u64;
/// A request of this session, by the number in its id.
pub(crate) type RequestNo = u64;

/// The effect of an operation on the table.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The waiter has the lock.
    Granted(WaiterId, Granted),
    /// The waiter's request is in the queue.
    Queued(WaiterId, WaitStatus),
    /// The waiter's request has a new id.
    Renamed(WaiterId, RequestNo),
    /// The waiter's request has failed.
    Failed(WaiterId, Error),
    /// The waiter's signal woke so many.
    Signalled(WaiterId, u64),
    /// The waiter's release is done, or there was nothing to release.
    Released(WaiterId),
    /// An event for handlers.
    Notify(Event),
}

#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    /// Of the namespace.
    durability: Durability,
    last: RequestNo,
    entries: BTreeMap<RequestNo, Entry>,
    /// Arrivals at barriers, whose numbers are of the same sequence.
    arrivals: BTreeMap<RequestNo, ArrivalEntry>,
    /// The request that later re-entrant requests of the same owner for the same paths share: it waits or holds.
    shared: HashMap<(Owner, Vec<Path>), RequestNo>,
    held: HashMap<OwnedPath, HeldPath>,
    /// Tokens that no hold has any more: those of the last list of everything, and those that were lost since. The
    /// service may still name them: of a listed hold it does not know whose release ended it.
    released_tokens: HashSet<u64>,
    awaited: AwaitedPaths,
    /// Requests with a message to send.
    to_say: VecDeque<RequestNo>,
    /// Requests whose message must be sent again, after a delay.
    to_repeat: Vec<RequestNo>,
    /// Signals without an answer, in order.
    signals: VecDeque<PendingSignal>,
    /// The size of a list of everything.
    bytes: usize,
    ended: Option<EndReason>,
}

impl RequestTable {
    /// Adds a request for locks.
    pub(crate) fn request(&mut self, request: LockRequest, waiter: WaiterId) -> Result<(RequestNo, Vec<Effect>)> {
        if let Some(reason) = &self.ended {
            return Err(Error::SessionEnded(reason.clone()));
        }
        self.check_request(&request)?;
        if request.reentrant {
            if let Some(no) = self.shared.get(&request.key()).copied() {
                return self.join(no, &request, waiter);
            }
        } else if let Some(path) = self.already_owned(&request) {
            return Err(Error::AlreadyHeld(path));
        }
        let size = request.size();
        if self.bytes + size > MAX_BYTES {
            return Err(self.too_large());
        }
        self.bytes += size;
        self.last += 1;
        let no = self.last;
        // A try-only request may be refused, and must not affect other requests.
        if !request.only_try && request.permits.is_none() {
            self.shared.insert(request.key(), no);
        }
        self.awaited.add(&request);
        self.entries.insert(no, Entry::new(request, waiter, size));
        self.to_say.push_back(no);
        Ok((no, Vec::new()))
    }

    fn too_large(&self) -> Error {
        let held = self.len();
        Error::Invalid(format!(
            "the session has {held} requests, and cannot list more when it resumes; open another session"
        ))
    }

    /// Returns the first of the request's paths that its owner holds or waits for.
    fn already_owned(&self, request: &LockRequest) -> Option<Path> {
        let mut paths = request.owned_paths();
        paths.find(|key| self.held.contains_key(key) || self.awaited.contains(key)).map(|(_, path)| path)
    }

    /// Joins a request: the owner holds, or waits for, the same locks.
    fn join(&mut self, no: RequestNo, request: &LockRequest, waiter: WaiterId) -> Result<(RequestNo, Vec<Effect>)> {
        let entry = self.entries.get_mut(&no).expect("what is shared is there");
        if !entry.request.covers(request) {
            return Err(Error::Refused(Refusal::of(Reason::Upgrade)));
        }
        let effects = match &entry.phase {
            Phase::Held => {
                let granted = entry.granted(no);
                entry.count += u64::from(!entry.request.persistent);
                vec![Effect::Granted(waiter, granted)]
            }
            _ if request.only_try => return Err(Error::Refused(Refusal::of(Reason::Queued))),
            phase => {
                let standing = match phase {
                    Phase::Waiting(standing) => Some(Effect::Queued(waiter, standing.clone())),
                    _ => None,
                };
                entry.waiters.push(waiter);
                standing.into_iter().collect()
            }
        };
        Ok((no, effects))
    }

    /// Removes a waiter. The last one cancels the request.
    pub(crate) fn cancel(&mut self, no: RequestNo, waiter: WaiterId) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        entry.waiters.retain(|other| *other != waiter);
        entry.releasers.retain(|other| *other != waiter);
        let is_idle = entry.waiters.is_empty() && entry.count == 0 && !entry.request.persistent;
        if is_idle && !matches!(entry.phase, Phase::Releasing) { self.start_release(no) } else { Vec::new() }
    }

    /// Removes a holder of the lock; the last one releases it. `waiter` is notified when that is done.
    pub(crate) fn release(&mut self, no: RequestNo, waiter: Option<WaiterId>) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return waiter.map(Effect::Released).into_iter().collect() };
        entry.count = entry.count.saturating_sub(1);
        if entry.count > 0 || (!entry.request.persistent && !entry.waiters.is_empty()) {
            return waiter.map(Effect::Released).into_iter().collect();
        }
        entry.releasers.extend(waiter);
        if matches!(entry.phase, Phase::Releasing) { Vec::new() } else { self.start_release(no) }
    }

    /// Ends the request at the service, if the service knows it.
    fn start_release(&mut self, no: RequestNo) -> Vec<Effect> {
        self.clear_holds(no);
        let entry = self.entries.get_mut(&no).expect("the caller has just seen it");
        let mut effects: Vec<Effect> = entry.update_status(LockStatus::None).into_iter().collect();
        let of_permits = entry.request.permits.is_some();
        let ended = || Error::Refused(Refusal::of(Reason::Ended).of_permits(of_permits));
        effects.extend(entry.waiters.drain(..).map(|waiter| Effect::Failed(waiter, ended())));
        entry.loss.send_if_modified(|loss| {
            let first = loss.is_none();
            loss.get_or_insert(LossReason::Released);
            first
        });
        entry.phase = Phase::Releasing;
        if entry.was_said {
            // A message that it was to send is its release now.
            if !self.to_say.contains(&no) {
                self.to_say.push_back(no);
            }
        } else {
            effects.extend(self.remove(no));
        }
        effects
    }

    /// Removes the request's holds and waits, and stops sharing it.
    fn clear_holds(&mut self, no: RequestNo) {
        let entry = &self.entries[&no];
        if entry.phase.is_awaited() {
            self.awaited.remove(&entry.request);
        }
        let key = entry.request.key();
        if self.shared.get(&key) == Some(&no) {
            self.shared.remove(&key);
        }
        for key in entry.request.owned_paths() {
            if let Some(held) = self.held.get_mut(&key) {
                held.requests.retain(|other| *other != no);
                if held.requests.is_empty() {
                    self.released_tokens.extend(held.is_listed.then_some(held.token));
                    self.held.remove(&key);
                }
            }
        }
    }

    /// Removes a request that is over, and notifies the waiters for its release.
    fn remove(&mut self, no: RequestNo) -> Vec<Effect> {
        let Some(entry) = self.entries.remove(&no) else { return Vec::new() };
        self.bytes -= entry.size;
        let mut effects = self.fail_signals_of(no);
        effects.extend(entry.releasers.into_iter().map(Effect::Released));
        effects
    }

    /// Returns true if there is a message to send.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.to_say.is_empty() || self.has_signals()
    }

    /// Returns the next message to send.
    pub(crate) fn next_message(&mut self) -> Option<Said> {
        while let Some(no) = self.to_say.pop_front() {
            let Some(entry) = self.entries.get_mut(&no) else {
                match self.arrival_message(no) {
                    Some(said) => return Some(said),
                    None => continue,
                }
            };
            match entry.phase {
                Phase::Requested | Phase::Waiting(_) => {
                    entry.was_said = true;
                    return Some(match &entry.request.permits {
                        None => Said::Lock(entry.to_message(no)),
                        Some(terms) => match entry.to_permit_message(no, terms) {
                            PermitMessage::Acquire(message) => Said::AcquirePermits(message),
                            PermitMessage::Take(message) => Said::Take(message),
                        },
                    });
                }
                Phase::Awaiting(ref terms) => {
                    entry.is_unheard = true;
                    return Some(Said::Await(entry.to_await_message(no, terms)));
                }
                Phase::Releasing => return Some(Said::Release(entry.to_release_message(no))),
                Phase::Held => {}
            }
        }
        self.next_signal().map(Said::Signal)
    }

    /// Queries the status of a waiting request.
    pub(crate) fn refresh_status(&mut self, no: RequestNo) {
        let waits = self.entries.get(&no).is_some_and(|entry| matches!(entry.phase, Phase::Waiting(_)));
        if waits && !self.to_say.contains(&no) {
            self.to_say.push_back(no);
        }
    }

    /// Returns true if a message must be sent again after a delay.
    pub(crate) fn has_retries(&self) -> bool {
        !self.to_repeat.is_empty() || self.has_delayed_signals()
    }

    /// Queues those messages when the delay is over.
    pub(crate) fn retry_all(&mut self) {
        self.to_say.extend(self.to_repeat.drain(..));
        self.retry_signals();
    }

    /// Returns the lock service view's request for a path.
    pub(crate) fn persistent_request(&self, path: &Path) -> Option<(RequestNo, LockStatus)> {
        let no = *self.shared.get(&(None, vec![path.clone()]))?;
        let entry = &self.entries[&no];
        entry.request.persistent.then_some((no, entry.shown))
    }

    /// Returns all requests of the lock service view that are not over.
    pub(crate) fn persistent_requests(&self) -> Vec<RequestNo> {
        let kept = self.entries.iter().filter(|(_, entry)| entry.request.persistent);
        kept.filter(|(_, entry)| !matches!(entry.phase, Phase::Releasing)).map(|(no, _)| *no).collect()
    }

    /// Returns the number of requests that are not over, for tests and diagnostics.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.arrivals.len()
    }
}

/// The paths that owners wait for, with the number of requests.
#[derive(Debug, Default)]
struct AwaitedPaths(HashMap<OwnedPath, usize>);

impl AwaitedPaths {
    fn add(&mut self, request: &LockRequest) {
        for key in request.owned_paths() {
            *self.0.entry(key).or_default() += 1;
        }
    }

    fn remove(&mut self, request: &LockRequest) {
        for key in request.owned_paths() {
            let hash_map::Entry::Occupied(mut count) = self.0.entry(key) else { continue };
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn contains(&self, key: &OwnedPath) -> bool {
        self.0.contains_key(key)
    }
}

/// Returns the id of a request.
fn format_request_id(no: RequestNo) -> String {
    format!("r{no}")
}

/// Returns the request with this id, if it is one of this session's.
fn parse_request_id(name: &str) -> Option<RequestNo> {
    name.strip_prefix('r')?.parse().ok()
}

/// Creates a channel that reports once why a hold is lost.
fn loss_channel() -> watch::Sender<Option<LossReason>> {
    watch::Sender::new(None)
}
