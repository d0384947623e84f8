//! The calls of owners: each is made to the shard and to the model, and what it returns is compared.

use std::collections::BTreeSet;

use holdfast_core::{
    Acquire, AcquireOutcome, AwaitCondition, CancelAwait, Claim, ConditionCommand, FencingToken, LocksCommand,
    Metadata, Mode, Path, Reason, Release, ReleaseTarget, Response, SessionAwait, SessionRequest, SessionSignal,
    SignalCondition, Wait,
};

use super::{Run, SMALL_SLICE, is_session, request_of};
use crate::conditions_model::{Awaiting, CameFrom, Lock, QueuedOwner};
use crate::random::{SeededRng, namespace};
use crate::semaphores::owner_of;

/// A token of no hold.
const NEVER_GRANTED: FencingToken = 1 << 40;

/// The time to live that repeats of an await ask for.
const REPEAT_TTL_MS: u64 = 20;

impl Run {
    /// How long a request waits for a lock. Where a slice is small no such wait ends by time: what is due would be over
    /// for what the next slice grants, which the model does not know.
    fn wait_ms(&self, wait_ms: u64) -> u64 {
        if self.bounds.ends_per_slice == SMALL_SLICE { 1_000_000 } else { wait_ms }
    }

    pub(super) fn acquire(&mut self, dice: &mut SeededRng, name: &str, path: &str) {
        let ttl_ms = (!is_session(name)).then(|| 20 + dice.below(60));
        // Whoever waits or awaits asks only for what it can have at once, and a session has one request for a lock.
        let is_named = is_session(name) && (self.model.waits(name) || self.model.holds(name, path));
        if is_named {
            return;
        }
        let wait = match (self.model.waits(name) || dice.one_in(3), is_session(name)) {
            (true, _) => Wait::No,
            (false, true) => Wait::Unlimited,
            (false, false) => Wait::For(self.wait_ms(1 + dice.below(60))),
        };
        let request = Acquire {
            namespace: namespace(),
            owner: owner_of(name),
            claims: vec![Claim { path: Path::flat(path), mode: Mode::Write }],
            ttl_ms,
            transition_ms: 0,
            metadata: Metadata::new(),
            fencing_token: None,
            requested_expires_at_ns: None,
            wait,
            allow_upgrade: false,
            request_id: request_of(name, path),
            attempt: 0,
            message: None,
        };
        // A repeat of a wait is a matter of locks.
        let is_queued = |lock: &Lock| lock.queue.iter().any(|it| it.owner == name && it.came_from.is_none());
        if self.model.locks.get(path).is_some_and(is_queued) {
            return;
        }
        let wait_ms = match wait {
            Wait::No => None,
            Wait::For(wait_ms) => Some(Some(wait_ms)),
            Wait::Unlimited => Some(None),
        };
        let expected = self.model.acquire((name, path), ttl_ms, wait_ms);
        let Response::Acquired { outcome, .. } = self.locks(LocksCommand::Acquire(request.clone())) else {
            panic!("an acquire")
        };
        let fits = match (&expected, &outcome) {
            (Ok(true), AcquireOutcome::Granted { .. }) | (Ok(false), AcquireOutcome::Enqueued(_)) => true,
            (Err(reason), AcquireOutcome::Refused(refused)) => refused.reason == *reason,
            _ => false,
        };
        assert!(fits, "{request:?}: {expected:?} {outcome:?}");
    }

    pub(super) fn release(&mut self, name: &str, path: &str) {
        // By a path, only holds; by a request, a wait or an await too.
        let lock = self.model.lock(path);
        let mut released = lock.holder.take_if(|hold| hold.owner == name).is_some();
        let what = match request_of(name, path) {
            Some(request_id) => {
                released |= self.model.end_wait(path, |it| it.owner == name, Reason::Ended);
                released |= self.model.end_await(path, |it| it.owner == name);
                ReleaseTarget::Request { request_id }
            }
            None => ReleaseTarget::Paths { paths: vec![Path::flat(path)], fencing_token: None },
        };
        self.model.settle();
        let release = Release { namespace: namespace(), owner: owner_of(name), what, message: None };
        let response = self.locks(LocksCommand::Release(release));
        assert!(matches!(response, Response::Released { released: it, .. } if it == released), "{response:?}");
    }

    /// A call that awaits a condition with the token of the present hold or, now and then, with another.
    pub(super) fn await_condition(&mut self, dice: &mut SeededRng, name: &str, path: &str) {
        let condition = dice.pick(&["", "", "full"]);
        let held = self.model.hold_of(name, path).map(|hold| hold.token);
        let token = held.unwrap_or(NEVER_GRANTED);
        if held.is_some() && self.model.waits(name) {
            return;
        }
        let end_ms = (1..).map(|_| self.now_ms + 1 + dice.below(80)).find(|end_ms| self.ends.insert(*end_ms));
        let end_ms = end_ms.expect("some instant is free");
        let (wait_ms, relock_ms) = (end_ms - self.now_ms, self.wait_ms(1 + dice.below(60)));
        let attempt = if is_session(name) { 0 } else { dice.below(4) };
        let ttl_ms = (!is_session(name)).then(|| 20 + dice.below(60));
        if held.is_some() {
            self.given_up.push((name.to_owned(), path.to_owned(), token));
            let relock_ms = (!is_session(name)).then_some(relock_ms);
            let attempts = BTreeSet::from([attempt]).into_iter().filter(|attempt| *attempt > 0).collect();
            let owner = name.to_owned();
            let awaits = Awaiting { owner, token, ttl_ms, ends_at_ms: Some(end_ms), relock_ms, attempts };
            self.model.await_condition(path, condition, awaits);
        }
        let response = match request_of(name, path) {
            None => self.locks(LocksCommand::Condition(ConditionCommand::Await(AwaitCondition {
                namespace: namespace(),
                path: Path::flat(path),
                owner: owner_of(name),
                fencing_token: token,
                condition: condition.to_owned(),
                wait: Wait::For(wait_ms),
                relock_ms: Some(relock_ms),
                ttl_ms,
                transition_ms: None,
                metadata: None,
                attempt,
                abandoned: vec![],
                message: None,
            }))),
            Some(request_id) => {
                let (fencing_token, condition) = (Some(token), condition.to_owned());
                let (wait, is_repeat) = (Wait::For(wait_ms), false);
                let awaits = SessionAwait { request_id, condition, fencing_token, wait, is_repeat };
                self.session(name, SessionRequest::Await(awaits))
            }
        };
        self.check_outcome((name, path, token), &response);
    }

    /// Checks the answer to an await by where the model has its owner.
    fn check_outcome(&mut self, (name, path, token): (&str, &str, FencingToken), response: &Response) {
        let Response::Awaited { outcome, woken, .. } = response else { panic!("{response:?}") };
        // What exceeds the slice follows.
        if self.core.has_backlog() {
            return;
        }
        let lock = self.model.locks.get(path).cloned().unwrap_or_default();
        let is_awaiting = lock.conditions.values().flatten().any(|it| it.owner == name && it.token == token);
        let is_its = |came_from: &CameFrom| came_from.token == token;
        let waiting = lock.queue.iter().find(|it| it.owner == name && it.came_from.as_ref().is_some_and(is_its));
        let held = lock.holder.iter().filter(|hold| hold.owner == name).flat_map(|hold| &hold.came_from);
        let held = held.rev().find(|it| is_its(it));
        let expected = match (is_awaiting, waiting, held) {
            (true, ..) => (Some(false), None),
            (_, Some(waiting), _) => (Some(false), waiting.came_from.as_ref().map(|it| it.woken)),
            (.., Some(held)) => (Some(true), Some(held.woken)),
            _ => (None, None),
        };
        let got = match outcome {
            AcquireOutcome::Granted { .. } => Some(true),
            AcquireOutcome::Enqueued(_) => Some(false),
            AcquireOutcome::Refused(refused) => {
                assert_eq!(refused.reason, Reason::NotHeld);
                None
            }
        };
        assert_eq!((got, *woken), expected, "{name} {path} {token} {:?}", lock);
    }

    /// The same call again, perhaps by another caller.
    pub(super) fn repeat(&mut self, dice: &mut SeededRng) {
        let Some((name, path, token)) =
            self.given_up.get(dice.below(self.given_up.len().max(1) as u64) as usize).cloned()
        else {
            return;
        };
        if is_session(&name) && !self.sessions.contains_key(&name) {
            return;
        }
        let relock_ms = self.wait_ms(40);
        let lock = self.model.lock(&path);
        let attempt = if is_session(&name) { 0 } else { 1 + dice.below(3) };
        let mut awaits = lock.conditions.values_mut().flatten().filter(|it| it.owner == name && it.token == token);
        // The limit stays if the call is not the newest, so that it is the same here.
        let mut end_ms = self.now_ms + 1;
        let attempts = match awaits.next() {
            Some(awaits) => {
                end_ms = awaits.ends_at_ms.unwrap_or(end_ms);
                let is_newest = awaits.attempts.last().is_none_or(|last| attempt >= *last);
                if is_newest && awaits.relock_ms.is_some() {
                    (awaits.relock_ms, awaits.ttl_ms) = (Some(relock_ms), Some(REPEAT_TTL_MS));
                }
                Some(&mut awaits.attempts)
            }
            None => {
                let comes = |came_from: &CameFrom| came_from.token == token;
                let is_it = |it: &&mut QueuedOwner| it.owner == name && it.came_from.as_ref().is_some_and(comes);
                match lock.queue.iter_mut().find(is_it) {
                    Some(waiting) => {
                        let is_newest = waiting.attempts.last().is_none_or(|last| attempt >= *last);
                        waiting.ttl_ms = waiting.ttl_ms.map(|ttl_ms| if is_newest { REPEAT_TTL_MS } else { ttl_ms });
                        Some(&mut waiting.attempts)
                    }
                    None => {
                        let hold = lock.holder.as_mut().filter(|hold| hold.owner == name);
                        hold.filter(|hold| hold.came_from.iter().any(comes)).map(|hold| &mut hold.attempts)
                    }
                }
            }
        };
        if let Some(attempts) = attempts {
            match attempt == 0 || attempts.is_empty() {
                true => attempts.clear(),
                false => _ = attempts.insert(attempt),
            }
        }
        let wait = Wait::For(end_ms - self.now_ms);
        let response = self.await_again(&name, &path, (token, attempt), (wait, relock_ms));
        self.model.settle();
        self.check_outcome((&name, &path, token), &response);
    }

    fn await_again(
        &mut self,
        name: &str,
        path: &str,
        (token, attempt): (u64, u64),
        (wait, relock_ms): (Wait, u64),
    ) -> Response {
        match request_of(name, path) {
            None => self.locks(LocksCommand::Condition(ConditionCommand::Await(AwaitCondition {
                namespace: namespace(),
                path: Path::flat(path),
                owner: owner_of(name),
                fencing_token: token,
                condition: String::new(),
                wait,
                relock_ms: Some(relock_ms),
                ttl_ms: Some(REPEAT_TTL_MS),
                transition_ms: None,
                metadata: None,
                attempt,
                abandoned: vec![],
                message: None,
            }))),
            Some(request_id) => {
                let (condition, fencing_token, is_repeat) = (String::new(), Some(token), true);
                let awaits = SessionAwait { request_id, condition, fencing_token, wait, is_repeat };
                self.session(name, SessionRequest::Await(awaits))
            }
        }
    }

    pub(super) fn signal(&mut self, dice: &mut SeededRng, name: &str, path: &str) {
        let (condition, all) = (dice.pick(&["", "", "full"]), dice.one_in(3));
        let held = self.model.hold_of(name, path).map(|hold| hold.token);
        let expected = held.map(|_| self.model.signal(path, condition, all));
        let response = match request_of(name, path).filter(|_| held.is_some()) {
            Some(request_id) => {
                let signal = SessionSignal { request_id, condition: condition.to_owned(), all, signal_id: None };
                self.session(name, SessionRequest::Signal(signal))
            }
            None => {
                self.next_signal += 1;
                let signal_id = dice.one_in(2).then(|| self.next_signal.to_string());
                if let (Some(id), Some(answer)) = (&signal_id, expected)
                    && let Some(hold) = self.model.lock(path).holder.as_mut().filter(|hold| hold.owner == name)
                {
                    hold.signals = vec![(id.clone(), answer)];
                }
                self.send_signal((name, path), condition, (all, signal_id))
            }
        };
        self.check_signal(&response, expected);
    }

    fn send_signal(&mut self, (name, path): (&str, &str), condition: &str, how: (bool, Option<String>)) -> Response {
        let (all, signal_id) = how;
        self.locks(LocksCommand::Condition(ConditionCommand::Signal(SignalCondition {
            namespace: namespace(),
            path: Path::flat(path),
            owner: owner_of(name),
            condition: condition.to_owned(),
            all,
            fencing_token: None,
            signal_id,
            message: None,
        })))
    }

    /// The latest signal of the hold again, which wakes nobody.
    pub(super) fn repeat_signal(&mut self, name: &str, path: &str) {
        let latest = self.model.hold_of(name, path).and_then(|hold| hold.signals.last().cloned());
        let Some((id, answer)) = latest else { return };
        let response = self.send_signal((name, path), "", (false, Some(id)));
        self.check_signal(&response, Some(answer));
    }

    fn check_signal(&self, response: &Response, expected: Option<(u64, u64)>) {
        let Response::Signalled { success, signalled, awaiting, .. } = response else { panic!("{response:?}") };
        let (woken, left) = expected.unwrap_or_default();
        assert_eq!((*success, *signalled, *awaiting), (expected.is_some(), woken, left));
    }

    pub(super) fn cancel(&mut self, dice: &mut SeededRng) {
        let given_up: Vec<_> = self.given_up.iter().filter(|(name, ..)| !is_session(name)).cloned().collect();
        if given_up.is_empty() {
            return;
        }
        // Late ones more often: those before are mostly over.
        let from = given_up.len().saturating_sub(4) as u64;
        let index = from + dice.below(given_up.len() as u64 - from);
        let (name, path, token) = given_up[index as usize].clone();
        let left: BTreeSet<u64> = (1..=1 + dice.below(3)).collect();
        let (left_queue, grant_released) = self.model.cancel(&name, &path, token, &left);
        let cancel = CancelAwait {
            namespace: namespace(),
            path: Path::flat(&path),
            owner: owner_of(&name),
            fencing_token: token,
            attempts: left.into_iter().collect(),
        };
        let response = self.locks(LocksCommand::Condition(ConditionCommand::Cancel(cancel)));
        assert_eq!(response, Response::Cancelled { left_queue, grant_released }, "{name} {path} {token}");
    }
}
