//! Signals conditions, and hands signals on.

use holdfast_mutations::{Mutation, is_enabled};

use super::WakeCall;
use super::came_from::SignalAnswer;
use crate::locks::owner::{NO_OWNER, OwnerId};
use crate::locks::tree::NodeId;
use crate::locks::txn::NamespaceTxn;
use crate::{CommandError, FencingToken, Mode, Owner, Path, Response, SignalCondition, WaitId, Woken};

/// A signal, whichever command carries it, as [`SignalCondition`] describes it.
pub(super) struct SignalRequest<'a> {
    pub(super) owner: &'a Owner,
    pub(super) path: &'a Path,
    pub(super) condition: &'a str,
    pub(super) all: bool,
    pub(super) token: Option<FencingToken>,
    pub(super) signal_id: Option<&'a str>,
}

impl<'a> From<&'a SignalCondition> for SignalRequest<'a> {
    fn from(signal: &'a SignalCondition) -> Self {
        Self {
            owner: &signal.owner,
            path: &signal.path,
            condition: &signal.condition,
            all: signal.all,
            token: signal.fencing_token,
            signal_id: signal.signal_id.as_deref(),
        }
    }
}

impl NamespaceTxn<'_> {
    pub(super) fn signal(&mut self, request: &SignalRequest<'_>) -> Result<Response, CommandError> {
        let is_long = |id: &str| id.len() > crate::MAX_SIGNAL_ID_BYTES;
        if request.signal_id.is_some_and(is_long) || request.condition.len() > crate::MAX_CONDITION_BYTES {
            return Err(CommandError::Malformed("a condition or a signal has too long a name".into()));
        }
        let held = self.hold_of_signaller(request);
        if held.is_none() && !is_enabled(Mutation::CondSignalUnowned) {
            return Ok(self.signalled(request, (false, 0, 0)));
        }
        let repeated = held.zip(request.signal_id).and_then(|((node, owner), id)| {
            let signals = self.ns.hold(node, owner)?.signals();
            signals.iter().find(|answer| *answer.id == *id).map(|answer| (answer.signalled, answer.awaiting))
        });
        if let Some((signalled, awaiting)) = repeated {
            return Ok(self.signalled(request, (true, signalled, awaiting)));
        }
        if self.ns.is_frozen() {
            return Err(CommandError::Busy("the namespace is being reset".into()));
        }
        // What is due goes first, also where earlier work has kept it from its turn.
        let due = self.ns.conditions.due_of(request.path, self.common.clock_ms);
        self.ns.spend(due.len());
        due.into_iter().for_each(|wait| self.call_await(wait, Woken::Elapsed, false));
        let woken: Vec<WaitId> = match request.all {
            true => self.ns.conditions.all_of(request.path, request.condition),
            false => self.ns.conditions.first_of(request.path, request.condition).into_iter().collect(),
        };
        // An await that is woken frees more than it takes to remember the signal.
        if let Some(((node, owner), id)) = held.zip(request.signal_id).filter(|_| woken.is_empty()) {
            let more = self.ns.hold(node, owner).map_or(0, |hold| hold.charge_of_signal(id));
            if let Err(full) = self.check_capacity(|_| more) {
                self.run_grant_loop();
                return Err(full);
            }
        }
        self.ns.spend(woken.len());
        woken.iter().for_each(|wait| self.call_await(*wait, Woken::Signalled, !request.all));
        let signalled = woken.len() as u64;
        let awaiting = self.ns.conditions.awaiting(request.path, request.condition);
        if let Some(((node, owner), id)) = held.zip(request.signal_id) {
            let answer = SignalAnswer { id: id.into(), signalled, awaiting };
            self.change_hold(node, owner, |hold| hold.remember_signal(answer));
        }
        self.run_grant_loop();
        Ok(self.signalled(request, (true, signalled, awaiting)))
    }

    fn signalled(&mut self, request: &SignalRequest<'_>, (success, signalled, awaiting): (bool, u64, u64)) -> Response {
        Response::Signalled { success, signalled, awaiting, locks: self.views(&[request.path], NO_OWNER, false) }
    }

    /// Returns the WRITE hold of the signalling owner, if it may signal.
    fn hold_of_signaller(&self, request: &SignalRequest<'_>) -> Option<(NodeId, OwnerId)> {
        let owner = self.ns.owner_id(request.owner);
        let node = self.ns.tree.find(request.path).filter(|_| owner != NO_OWNER)?;
        let hold = self.ns.hold(node, owner)?;
        let is_it = hold.mode == Mode::Write && request.token.is_none_or(|token| token == hold.token);
        (is_it && self.ns.is_current(node, hold)).then_some((node, owner))
    }

    /// Calls an await. It is moved to the queue of its lock with the next grants.
    pub(super) fn call_await(&mut self, wait: WaitId, woken: Woken, passes_on: bool) {
        let at = self.common.next_revision();
        self.ns.conditions.call(wait, WakeCall { at, woken, passes_on });
        self.update_first_due();
    }

    /// Calls the await whose time is over first.
    pub(in crate::locks) fn call_elapsed(&mut self) {
        if let Some((_, wait)) = self.ns.conditions.first_due() {
            self.call_await(wait, Woken::Elapsed, false);
        }
    }

    /// Hands on the signals whose receivers ended without the lock. A signal that no owner awaits is dropped.
    pub(super) fn hand_on(&mut self) {
        while let Some((path, condition)) = self.ns.conditions.take_owed() {
            self.ns.spend(1);
            if let Some(wait) = self.ns.conditions.first_of(&path, &condition) {
                self.call_await(wait, Woken::Signalled, true);
            }
        }
    }
}
