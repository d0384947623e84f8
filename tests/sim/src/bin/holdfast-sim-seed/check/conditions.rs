//! What must hold of conditions after a step, by rules of its own, without the core: a signal wakes one that awaited
//! the condition, or the next one if that ends without the lock, and whoever is woken has the lock behind all who
//! waited.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    AccountId, AcquireOutcome, AwaitCondition, AwaitView, CancelAwait, ConditionCommand, Effect, LocksCommand, Mode,
    NamespaceRef, Owner, Path, Phase, Reply, Response, SignalCondition, Wait, WaitId, Woken,
};

use super::invariants::Step;
use super::locks_replay::call_of;
use super::permits::{StepContext, is_without_session};
use super::session_requests::{Meant, SessionRequests};
use super::shard_view::{Hold, ShardView};
use crate::condition_calls::AwaitOp;
use crate::history::Call;

/// A condition of a lock.
type Condition = (NamespaceRef, (Path, String));

/// Signals to a condition that have called somebody who is not moved to the queue of the lock yet, at most.
#[derive(Debug, Default)]
struct Called {
    count: u64,
    /// Some of them may be handed on, and some may not, since they woke all.
    may_pass_on: bool,
    may_stay: bool,
}

/// Somebody whom a signal woke.
#[derive(Debug, Clone)]
struct Receiver {
    condition: Condition,
    /// Whether the signal is handed on if its owner ends without the lock; absent if that can't be told.
    passes_on: Option<bool>,
}

/// What a step did with the signals to a condition.
#[derive(Debug, Default)]
struct Moves {
    woken: u64,
    /// How many must be handed on, and how many more may be.
    owed: u64,
    may_be_owed: u64,
}

/// All signals, and those whom they woke.
#[derive(Default)]
pub(crate) struct Signals {
    called: BTreeMap<Condition, Called>,
    /// Those who wait for their lock.
    receivers: BTreeMap<(NamespaceRef, WaitId), Receiver>,
    /// Those who have it, by path and token.
    holders: BTreeMap<(NamespaceRef, Path, u64), Vec<Receiver>>,
    /// The answers to signals with an id, by path, token of the hold and id.
    answers: BTreeMap<(NamespaceRef, Path, u64, String), (u64, u64)>,
    /// The calls that gave a lock up.
    began: BTreeSet<usize>,
    /// The shortest times to await a condition and then to wait for the lock, of all calls that named a token: the
    /// newest one sets them.
    shortest: BTreeMap<(AccountId, String, Path, u64), (u64, u64)>,
    /// What commands of connected sessions are about.
    requests: SessionRequests,
    /// The clock of the step.
    clock_ms: u64,
}

impl Signals {
    /// Whether a call gave a lock up.
    pub(crate) fn has_begun(&self, call: usize) -> bool {
        self.began.contains(&call)
    }

    /// Returns the shortest times in milliseconds to await a condition, and then to wait for the lock, of all calls
    /// that name a token as this one does.
    pub(crate) fn shortest_times(&self, call: &Call, awaits: &AwaitOp) -> (u64, u64) {
        let key = (call.account, call.namespace.clone(), awaits.path.clone(), awaits.token);
        self.shortest.get(&key).copied().unwrap_or_default()
    }

    /// Checks a step and the reply to its command.
    pub(crate) fn check(
        &mut self,
        step: &Step<'_>,
        context: &StepContext<'_>,
        reply: Option<&Reply>,
        find: &mut dyn FnMut(String),
    ) {
        let mut moves: BTreeMap<Condition, Moves> = BTreeMap::new();
        self.requests.record(step.effects);
        self.clock_ms = context.clock_ms;
        if let (Some(command), Some(Ok(response))) = (context.command, reply.map(|reply| &reply.outcome)) {
            match self.requests.translate(command) {
                None => self.check_command(step, (command, response), &mut moves, find),
                Some(Meant::Command(meant)) => self.check_command(step, (&meant, response), &mut moves, find),
                Some(Meant::Unheard(life, owner)) => self.grant_was_unheard(step, (&life, &owner), &mut moves),
            }
        }
        for effect in step.effects {
            self.check_effect(step, effect, context.clock_ms, &mut moves, find);
        }
        for (condition, moved) in moves {
            self.none_is_lost(step, condition, &moved, find);
        }
        for life in step.after.changed(step.before) {
            let holds = |path: &Path, token| step.after.holds(life).any(|it| is_hold(&it, path, token));
            self.holders.retain(|(of, path, token), _| of != life || holds(path, *token));
            if context.is_settled {
                nobody_stays(step.after, life, context, find);
            }
        }
    }

    fn check_command(
        &mut self,
        step: &Step<'_>,
        (command, response): (&LocksCommand, &Response),
        moves: &mut BTreeMap<Condition, Moves>,
        find: &mut dyn FnMut(String),
    ) {
        match (command, response) {
            (LocksCommand::Condition(ConditionCommand::Await(awaits)), Response::Awaited { outcome, woken, .. }) => {
                self.gives_up_once(step, awaits, (outcome, *woken), moves, find)
            }
            (
                LocksCommand::Condition(ConditionCommand::Signal(signal)),
                Response::Signalled { success: true, signalled, awaiting, .. },
            ) => self.is_signalled_rightly(step, signal, (*signalled, *awaiting), moves, find),
            (
                LocksCommand::Condition(ConditionCommand::Cancel(CancelAwait { namespace, owner, .. })),
                Response::Cancelled { grant_released: true, .. },
            ) => self.grant_was_unheard(step, (namespace, owner), moves),
            (LocksCommand::Cancel(cancel), Response::Cancelled { grant_released: true, .. }) => {
                self.grant_was_unheard(step, (&cancel.namespace, &cancel.owner), moves);
            }
            (LocksCommand::CancelAttempts(cancel), Response::Cancelled { grant_released: true, .. }) => {
                self.grant_was_unheard(step, (&cancel.cancel.namespace, &cancel.cancel.owner), moves);
            }
            // What a client does not list when it resumes, it has not heard of.
            (LocksCommand::LockInfo(info), _) => {
                let id = &info.session_id;
                let is_own = |owner: &&Owner| matches!(owner, Owner::Session { session_id, .. } if session_id == id);
                let holds = step.before.holds(&info.namespace).map(|hold| &hold.view.owner);
                let owners: BTreeSet<&Owner> = holds.filter(is_own).collect();
                for owner in owners {
                    self.grant_was_unheard(step, (&info.namespace, owner), moves);
                }
            }
            _ => {}
        }
    }

    /// An await gives up the hold that it names, and a repeat of it gives up nothing.
    fn gives_up_once(
        &mut self,
        step: &Step<'_>,
        awaits: &AwaitCondition,
        (outcome, woken): (&AcquireOutcome, Option<Woken>),
        moves: &mut BTreeMap<Condition, Moves>,
        find: &mut dyn FnMut(String),
    ) {
        let life = &awaits.namespace;
        let wait_ms = if let Wait::For(wait_ms) = awaits.wait { wait_ms } else { u64::MAX };
        let key = (life.account, life.name.clone(), awaits.path.clone(), awaits.fencing_token);
        let shortest = self.shortest.entry(key).or_insert((u64::MAX, u64::MAX));
        *shortest = (shortest.0.min(wait_ms), shortest.1.min(awaits.relock_ms.unwrap_or(u64::MAX)));
        let held = write_hold(step.before, life, (&awaits.path, &awaits.owner));
        let Some(token) = held.filter(|token| *token == awaits.fencing_token) else {
            let holds = write_hold(step.after, life, (&awaits.path, &awaits.owner));
            if held.is_some() && holds != held {
                find(format!("[signals] {awaits:?} gives up {held:?}, which it does not name"));
            }
            let is_known = |wait| step.before.awaits(life).iter().any(|known| known.wait == wait);
            if let Some(new) = step.after.awaits(life).iter().find(|it| !is_known(it.wait)) {
                find(format!("[signals] {awaits:?} has given up no hold, and {new:?} begins"));
            }
            return;
        };
        if let AcquireOutcome::Refused(_) = outcome
            && woken.is_none()
        {
            return;
        }
        self.began.extend(awaits.metadata.as_ref().and_then(call_of));
        // At times it is woken in the same step.
        let condition = (life.clone(), (awaits.path.clone(), awaits.condition.clone()));
        if woken == Some(Woken::Signalled) {
            let receiver = self.wake(condition, moves);
            match outcome {
                AcquireOutcome::Granted { fencing_token } => {
                    let key = (life.clone(), awaits.path.clone(), *fencing_token);
                    self.holders.entry(key).or_default().push(receiver);
                }
                AcquireOutcome::Enqueued(enqueued) => {
                    self.receivers.insert((life.clone(), enqueued.wait), receiver);
                }
                AcquireOutcome::Refused(_) => self.owe(&receiver, moves),
            }
        } else if write_hold(step.after, life, (&awaits.path, &awaits.owner)) == Some(token) {
            find(format!("[signals] {awaits:?} has begun, and its owner still holds the lock"));
        }
    }

    /// A signal is one of somebody who holds the lock; it wakes the first, or all, and a repeat wakes nobody.
    fn is_signalled_rightly(
        &mut self,
        step: &Step<'_>,
        signal: &SignalCondition,
        counts: (u64, u64),
        moves: &mut BTreeMap<Condition, Moves>,
        find: &mut dyn FnMut(String),
    ) {
        let life = &signal.namespace;
        let held = write_hold(step.before, life, (&signal.path, &signal.owner));
        let Some(token) = held.filter(|token| signal.fencing_token.is_none_or(|meant| meant == *token)) else {
            find(format!("[signals] {signal:?} was accepted, and its owner does not hold the lock"));
            return;
        };
        if let Some(id) = &signal.signal_id {
            let key = (life.clone(), signal.path.clone(), token, id.clone());
            if let Some(first) = self.answers.get(&key) {
                if *first != counts {
                    find(format!("[signals] a repeat of {signal:?} was answered {counts:?}, after {first:?}"));
                }
                return;
            }
            self.answers.insert(key, counts);
        }
        let condition = (life.clone(), (signal.path.clone(), signal.condition.clone()));
        let awaiting = step.before.awaiting(life, &condition.1);
        // Those who are due go first, also where earlier work has kept them from their turn. Some may be called already.
        let is_due = |awaits: &&AwaitView| {
            let is_of_it = (&awaits.path, &awaits.condition) == (&condition.1.0, &condition.1.1);
            is_of_it && awaits.ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= self.clock_ms)
        };
        let due = step.before.awaits(life).iter().filter(is_due).count() as u64;
        let is_right = |awaiting: u64| {
            let woken = if signal.all { awaiting } else { awaiting.min(1) };
            counts == (woken, awaiting - woken)
        };
        if !(awaiting.saturating_sub(due)..=awaiting).any(is_right) {
            find(format!("[signals] {awaiting} await {condition:?}, and {signal:?} was answered {counts:?}"));
        }
        let called = self.called.entry(condition.clone()).or_default();
        called.count += counts.0;
        called.may_pass_on |= !signal.all && counts.0 > 0;
        called.may_stay |= signal.all && counts.0 > 0;
        moves.entry(condition).or_default();
    }

    /// The signals of holds of which their owner never heard are handed on.
    fn grant_was_unheard(
        &mut self,
        step: &Step<'_>,
        (life, owner): (&NamespaceRef, &Owner),
        moves: &mut BTreeMap<Condition, Moves>,
    ) {
        let is_there =
            |hold: &Hold<'_>| step.after.holds(life).any(|there| is_hold(&there, hold.path, hold.view.fencing_token));
        for hold in step.before.holds(life).filter(|hold| hold.view.owner == *owner && !is_there(hold)) {
            let key = (life.clone(), hold.path.clone(), hold.view.fencing_token);
            for receiver in self.holders.remove(&key).unwrap_or_default() {
                self.owe(&receiver, moves);
            }
        }
    }

    fn check_effect(
        &mut self,
        step: &Step<'_>,
        effect: &Effect,
        clock_ms: u64,
        moves: &mut BTreeMap<Condition, Moves>,
        find: &mut dyn FnMut(String),
    ) {
        match effect {
            Effect::AwaitWoken { namespace, from, wait, woken, .. } => {
                let life = namespace;
                if let Some(first) = step.before.waits(life).iter().find(|known| known.wait >= *wait) {
                    find(format!("[first come first served] {effect:?} goes before {first:?}"));
                }
                let Some(awaits) = step.before.awaits(life).iter().find(|it| it.wait == *from) else { return };
                let condition = (life.clone(), (awaits.path.clone(), awaits.condition.clone()));
                if *woken == Woken::Elapsed {
                    if awaits.ends_at_ms.is_none_or(|ends_at_ms| ends_at_ms > clock_ms) {
                        find(format!("[signals] the time of {awaits:?} was over at {clock_ms}"));
                    }
                    return;
                }
                let is_passed = |it: &&AwaitView| it.wait < *from && is_of(it, &condition.1);
                if let Some(first) = step.after.awaits(life).iter().find(is_passed) {
                    find(format!("[first come first served] {awaits:?} was signalled before {first:?}"));
                }
                let receiver = self.wake(condition, moves);
                self.receivers.insert((life.clone(), *wait), receiver);
            }
            Effect::AwaitResolved { namespace, wait, owner, fencing_token, outcome, lock, .. } => {
                let receiver = self.receivers.remove(&(namespace.clone(), *wait));
                match outcome {
                    AcquireOutcome::Granted { fencing_token: token } => {
                        let held = write_hold(step.after, namespace, (&lock.path, owner));
                        if held != Some(*token) || token <= fencing_token {
                            find(format!("[signals] {effect:?}, and its owner holds {held:?}"));
                        }
                        let key = (namespace.clone(), lock.path.clone(), *token);
                        self.holders.entry(key).or_default().extend(receiver);
                    }
                    _ => receiver.iter().for_each(|receiver| self.owe(receiver, moves)),
                }
            }
            _ => {}
        }
    }

    fn wake(&mut self, condition: Condition, moves: &mut BTreeMap<Condition, Moves>) -> Receiver {
        moves.entry(condition.clone()).or_default().woken += 1;
        let called = self.called.entry(condition.clone()).or_default();
        let passes_on = match (called.may_pass_on, called.may_stay) {
            (is_one, false) => Some(is_one),
            (false, true) => Some(false),
            (true, true) => None,
        };
        Receiver { condition, passes_on }
    }

    /// A signal woke somebody who does not get the lock.
    fn owe(&mut self, receiver: &Receiver, moves: &mut BTreeMap<Condition, Moves>) {
        let moved = moves.entry(receiver.condition.clone()).or_default();
        match receiver.passes_on {
            Some(true) => moved.owed += 1,
            Some(false) => return,
            None => moved.may_be_owed += 1,
        }
        self.called.entry(receiver.condition.clone()).or_default().may_pass_on = true;
    }

    /// As many are woken as signals called somebody, and no signal is lost while somebody awaits the condition.
    fn none_is_lost(&mut self, step: &Step<'_>, condition: Condition, moved: &Moves, find: &mut dyn FnMut(String)) {
        let called = self.called.entry(condition.clone()).or_default();
        let (life, of_lock) = (&condition.0, &condition.1);
        let unmoved = |view: &ShardView| {
            let all = view.awaits(life).iter().filter(|it| is_of(it, of_lock)).count() as u64;
            all.saturating_sub(view.awaiting(life, of_lock))
        };
        let at_most = called.count + moved.owed + moved.may_be_owed;
        if moved.woken > at_most {
            find(format!("[signals] {} were woken of {condition:?} by {at_most} signals: {moved:?}", moved.woken));
        }
        let known = |wait| step.before.awaits(life).iter().any(|it| it.wait == wait);
        let mut left = step.after.awaits(life).iter().filter(|it| is_of(it, of_lock) && known(it.wait));
        let is_lost = called.count + moved.owed > moved.woken;
        if unmoved(step.before) == 0
            && unmoved(step.after) == 0
            && is_lost
            && let Some(left) = left.next()
        {
            find(format!("[signals] one of {:?} and {moved:?} is lost, though {left:?} awaits it", called));
        }
        called.count = at_most.saturating_sub(moved.woken).min(unmoved(step.after));
        if called.count == 0 {
            self.called.remove(&condition);
        }
    }
}

fn is_of(awaits: &AwaitView, (path, condition): &(Path, String)) -> bool {
    awaits.path == *path && awaits.condition == *condition
}

fn is_hold(hold: &Hold<'_>, path: &Path, token: u64) -> bool {
    hold.path == path && hold.view.fencing_token == token
}

/// The token under which an owner holds a lock to write.
fn write_hold(view: &ShardView, life: &NamespaceRef, (path, owner): (&Path, &Owner)) -> Option<u64> {
    let is_it = |hold: &Hold<'_>| {
        let is_held = hold.view.mode == Mode::Write && hold.view.phase == Phase::Held;
        is_held && hold.path == path && hold.view.owner == *owner
    };
    view.holds(life).find(is_it).map(|hold| hold.view.fencing_token)
}

/// Whoever awaits a condition can be signalled, until its time is over or its session ends.
fn nobody_stays(view: &ShardView, life: &NamespaceRef, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    let mut counts: BTreeMap<(Path, String), u64> = BTreeMap::new();
    for awaits in view.awaits(life) {
        *counts.entry((awaits.path.clone(), awaits.condition.clone())).or_default() += 1;
        let is_over = awaits.ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= context.clock_ms);
        if is_over || is_without_session(&awaits.owner, context) {
            find(format!("[waits end] {awaits:?} is still there at {}", context.clock_ms));
        }
        if write_hold(view, life, (&awaits.path, &awaits.owner)) == Some(awaits.fencing_token) {
            find(format!("[signals] {awaits:?} holds what it has given up"));
        }
    }
    for (condition, count) in counts {
        let awaiting = view.awaiting(life, &condition);
        if awaiting != count {
            find(format!("[signals] {count} await {condition:?}, of whom {awaiting} can be signalled"));
        }
    }
}
