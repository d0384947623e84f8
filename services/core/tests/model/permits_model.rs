//! A model of semaphores of some plain lines: everything is a list, and nothing takes more than a step. It only counts
//! what an entry ends and grants, as a wait whose time is over by the next entry is not granted in it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{AcquirePermits, Bounds, Path, Phase, Reason, Wait, Wanted};

/// An owner's name and a request id.
pub(crate) type Key = (String, String);

/// As many calls as are tracked apart.
const MAX_CALLS: usize = 4;

/// The calls that rely on something, by attempt. One of them is 0 if it stays whoever leaves.
pub(crate) type AttemptSet = BTreeSet<u64>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    pub(crate) weight: u64,
    pub(crate) token: u64,
    pub(crate) phase: Phase,
    pub(crate) deadline_ms: Option<u64>,
    transition_ms: u64,
    calls: AttemptSet,
    /// The latest request to release it, and when the earliest one with force ends it.
    asks: (Option<u8>, Option<u64>),
}

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) key: Key,
    priority: u8,
    pub(crate) arrival: u64,
    pub(crate) weight: u64,
    pub(crate) ends_at_ms: Option<u64>,
    ttl_ms: Option<u64>,
    transition_ms: u64,
    calls: AttemptSet,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Semaphore {
    pub(crate) permits: u64,
    pub(crate) is_configured: bool,
    pub(crate) holds: BTreeMap<Key, Hold>,
    /// By priority, then by arrival.
    pub(crate) queue: Vec<Queued>,
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) semaphores: BTreeMap<Path, Semaphore>,
    clock_ms: u64,
    pub(crate) revision: u64,
    /// Waits that ended, and whether they were granted.
    pub(crate) resolved: BTreeSet<(Key, bool)>,
    /// What the entry that ends what is due may still do. Later entries do the rest, and there the whole time that this
    /// one brought has passed.
    slice: Option<Slice>,
}

#[derive(Clone, Copy)]
struct Slice {
    ends: usize,
    grants: usize,
}

/// Adds a call to those that rely on a wait.
fn attach(calls: &mut AttemptSet, attempt: u64) {
    calls.insert(attempt);
    if calls.contains(&0) || calls.len() > MAX_CALLS {
        *calls = [0].into_iter().chain(calls.last().copied()).collect();
    }
}

/// Adds a call to those that rely on a hold.
fn attach_to_hold(calls: &mut AttemptSet, attempt: u64) {
    if calls.contains(&0) || attempt == 0 { *calls = AttemptSet::from([0]) } else { attach(calls, attempt) }
}

/// Removes a call. Returns whether none is left.
fn detach(calls: &mut AttemptSet, attempt: u64) -> bool {
    if !calls.contains(&0) {
        calls.remove(&attempt);
    }
    calls.is_empty()
}

/// The permits that a request says there are.
fn figure_of(request: &AcquirePermits) -> Option<u64> {
    if let Wanted::Permits { permits, .. } = request.wanted { permits } else { None }
}

impl Hold {
    pub(crate) fn is_asked(&self) -> bool {
        self.asks.0.is_some()
    }

    pub(crate) fn ends_at_ms(&self) -> Option<u64> {
        self.deadline_ms.into_iter().chain(self.asks.1).min()
    }
}

impl Semaphore {
    pub(crate) fn in_use(&self) -> u64 {
        self.holds.values().map(|hold| hold.weight).sum()
    }

    fn fits(&self, weight: u64) -> bool {
        self.permits > 0 && self.in_use() + weight <= self.permits
    }
}

impl Model {
    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    pub(crate) fn promote(&mut self, path: &Path) {
        while let Some(semaphore) = self.semaphores.get_mut(path) {
            if let Some(index) =
                semaphore.queue.iter().position(|it| semaphore.permits > 0 && it.weight > semaphore.permits)
            {
                let refused = semaphore.queue.remove(index);
                self.resolved.insert((refused.key, false));
                self.spend_grant();
                continue;
            }
            let Some(first) = semaphore.queue.first().filter(|first| semaphore.fits(first.weight)).cloned() else {
                break;
            };
            semaphore.queue.remove(0);
            let is_in_time = self.spend_grant();
            if !is_in_time && first.ends_at_ms.is_some_and(|at_ms| at_ms <= self.clock_ms) {
                self.resolved.insert((first.key, false));
                continue;
            }
            let token = self.next_revision();
            self.resolved.insert((first.key.clone(), true));
            self.insert(path, first.key, first.weight, (token, first.calls), (first.ttl_ms, first.transition_ms));
        }
        let is_unused = |it: &Semaphore| !it.is_configured && it.holds.is_empty() && it.queue.is_empty();
        if self.semaphores.get(path).is_some_and(is_unused) {
            self.semaphores.remove(path);
        }
    }

    fn insert(
        &mut self,
        path: &Path,
        key: Key,
        weight: u64,
        (token, calls): (u64, AttemptSet),
        (ttl_ms, transition_ms): (Option<u64>, u64),
    ) {
        let deadline_ms = ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms);
        let holds = &mut self.semaphores.get_mut(path).expect("it is there").holds;
        let asks = holds.get(&key).map(|hold| hold.asks).unwrap_or_default();
        holds.insert(key, Hold { weight, token, phase: Phase::Held, deadline_ms, transition_ms, calls, asks });
    }

    /// Takes a grant from the slice. Returns whether it had one left.
    fn spend_grant(&mut self) -> bool {
        self.slice = self.slice.and_then(|left| Some(Slice { grants: left.grants.checked_sub(1)?, ..left }));
        self.slice.is_some()
    }

    /// What is due, in order of time; at one time holds end before waits. The first entry ends and grants a slice.
    pub(crate) fn advance(&mut self, now_ms: u64, bounds: &Bounds) {
        self.clock_ms = now_ms;
        self.slice = Some(Slice { ends: bounds.ends_per_slice, grants: bounds.grants_per_slice });
        loop {
            // Another end is that of a later entry.
            let ends_left = |left: Slice| Some(Slice { ends: left.ends.checked_sub(1)?, ..left });
            self.slice = self.slice.and_then(ends_left);
            let holds = self.semaphores.iter().flat_map(|(path, it)| {
                it.holds.iter().filter_map(move |(key, hold)| Some((hold.ends_at_ms()?, false, hold.token, path, key)))
            });
            let waits = self.semaphores.iter().flat_map(|(path, it)| {
                it.queue.iter().filter_map(move |it| Some((it.ends_at_ms?, true, it.arrival, path, &it.key)))
            });
            let Some((at_ms, is_wait, _, path, key)) = holds.chain(waits).min().filter(|due| due.0 <= now_ms) else {
                return;
            };
            let (path, key) = (path.clone(), key.clone());
            match is_wait {
                true => _ = self.end_wait(&path, &key),
                false => self.end_phase(&path, &key, at_ms),
            }
            self.promote(&path);
        }
    }

    pub(crate) fn end_phase(&mut self, path: &Path, key: &Key, at_ms: u64) {
        let hold = self.semaphores.get_mut(path).and_then(|it| it.holds.get_mut(key)).expect("it is held");
        let is_forced = hold.asks.1.is_some_and(|forced_at_ms| forced_at_ms <= at_ms);
        if !is_forced && hold.phase == Phase::Held && hold.transition_ms > 0 {
            (hold.phase, hold.deadline_ms) = (Phase::Transition, Some(at_ms + hold.transition_ms));
        } else {
            self.end_hold(path, key);
        }
    }

    pub(crate) fn end_hold(&mut self, path: &Path, key: &Key) -> bool {
        let ended = self.semaphores.get_mut(path).and_then(|it| it.holds.remove(key)).is_some();
        self.revision += u64::from(ended);
        ended
    }

    pub(crate) fn end_wait(&mut self, path: &Path, key: &Key) -> bool {
        let Some(semaphore) = self.semaphores.get_mut(path) else { return false };
        let before = semaphore.queue.len();
        semaphore.queue.retain(|it| it.key != *key);
        let ended = semaphore.queue.len() < before;
        self.resolved.extend(ended.then(|| (key.clone(), false)));
        ended
    }

    /// Asks all holders, by a request of that id. Returns how many there are, if there is a semaphore.
    pub(crate) fn ask_release(&mut self, path: &Path, id: u8, forced_within_ms: Option<u64>) -> Option<u64> {
        let holds = &mut self.semaphores.get_mut(path)?.holds;
        for hold in holds.values_mut().filter(|hold| hold.asks.0 != Some(id)) {
            let forced_at_ms = forced_within_ms.map(|within_ms| self.clock_ms + within_ms);
            hold.asks = (Some(id), hold.asks.1.into_iter().chain(forced_at_ms).min());
        }
        Some(holds.len() as u64)
    }

    /// Removes a call from those that rely on a hold or a wait; the last one takes it along. Returns whether a wait
    /// ended, and whether a hold did.
    pub(crate) fn cancel(&mut self, path: &Path, key: &Key, attempt: u64) -> (bool, bool) {
        let Some(semaphore) = self.semaphores.get_mut(path) else { return (false, false) };
        let queued = semaphore.queue.iter_mut().find(|it| it.key == *key);
        let leaves_queue = queued.is_some_and(|it| detach(&mut it.calls, attempt)) && self.end_wait(path, key);
        let hold = self.semaphores.get_mut(path).and_then(|it| it.holds.get_mut(key));
        let leaves_hold = hold.is_some_and(|it| detach(&mut it.calls, attempt)) && self.end_hold(path, key);
        self.promote(path);
        (leaves_queue, leaves_hold)
    }

    /// The revision of the oldest hold or wait of an owner.
    pub(crate) fn oldest(&self, owner: &str) -> Option<u64> {
        let all = self.semaphores.values();
        let holds = all.clone().flat_map(|it| &it.holds).filter(|(key, _)| key.0 == owner).map(|(_, hold)| hold.token);
        holds.chain(all.flat_map(|it| &it.queue).filter(|it| it.key.0 == owner).map(|it| it.arrival)).min()
    }

    /// Everything of some keys, given the tokens of holds: first the waits, then the holds. Returns how many holds and
    /// waits there were.
    pub(crate) fn end_all(
        &mut self,
        goes: impl Fn(&Key, Option<u64>) -> bool,
        mut end: impl FnMut(&mut Self, &Path, &Key),
    ) -> (u64, u64) {
        let (mut waits, mut holds, mut paths) = (vec![], vec![], BTreeSet::new());
        for (path, semaphore) in &self.semaphores {
            let its = semaphore.queue.iter().filter(|it| goes(&it.key, None));
            waits.extend(its.map(|it| (it.arrival, path.clone(), it.key.clone())));
            let its = semaphore.holds.iter().filter(|(key, hold)| goes(key, Some(hold.token)));
            holds.extend(its.map(|(key, hold)| (hold.token, path.clone(), key.clone())));
        }
        waits.sort();
        holds.sort();
        let counts = (holds.len() as u64, waits.len() as u64);
        for (_, path, key) in waits {
            self.end_wait(&path, &key);
            paths.insert(path);
        }
        for (_, path, key) in holds {
            end(self, &path, &key);
            paths.insert(path);
        }
        paths.iter().for_each(|path| self.promote(path));
        counts
    }

    pub(crate) fn acquire(&mut self, request: &AcquirePermits, key: Key) -> Result<Result<bool, Reason>, ()> {
        let path = &request.path;
        let is_known = self.semaphores.contains_key(path);
        if !is_known && figure_of(request).is_none() && request.fencing_token.is_none() {
            return Err(());
        }
        let made = Semaphore { permits: figure_of(request).unwrap_or_default(), ..Semaphore::default() };
        let semaphore = self.semaphores.get(path).unwrap_or(&made).clone();
        let is_other =
            !semaphore.is_configured && figure_of(request).is_some_and(|permits| permits != semaphore.permits);
        let is_repeat = semaphore.holds.contains_key(&key) || semaphore.queue.iter().any(|it| it.key == key);
        if is_other && (is_repeat || request.fencing_token.is_none()) {
            return Err(());
        }
        if let Some(hold) = semaphore.holds.get(&key).cloned() {
            return Ok(self.extend(request, key, &semaphore, &hold));
        }
        if request.fencing_token.is_some() {
            return Ok(Err(Reason::NotHeld));
        }
        let waits = !matches!(request.wait, Wait::No | Wait::For(0));
        let ends_at_ms = if let Wait::For(ms) = request.wait { Some(self.clock_ms + ms) } else { None };
        if let Some(index) = semaphore.queue.iter().position(|it| it.key == key) {
            return Ok(self.repeat_wait(request, &key, index, (waits, ends_at_ms)));
        }
        if semaphore.permits > 0 && request.wanted.weight() > semaphore.permits {
            return Ok(Err(Reason::TooLarge));
        }
        let (fits, is_first) =
            (semaphore.fits(request.wanted.weight()), semaphore.queue.iter().all(|it| it.priority < request.priority));
        let is_granted = fits && is_first;
        if !is_granted && !waits {
            return Ok(Err(if fits { Reason::Queued } else { Reason::Exhausted }));
        }
        let arrival = self.next_revision();
        let (terms, calls) = ((request.ttl_ms, request.transition_ms), AttemptSet::from([request.attempt]));
        let there = self.semaphores.entry(path.clone()).or_insert(made);
        if is_granted {
            self.insert(path, key, request.wanted.weight(), (arrival, calls), terms);
            return Ok(Ok(true));
        }
        let (priority, weight) = (request.priority, request.wanted.weight());
        let (ttl_ms, transition_ms) = terms;
        there.queue.push(Queued { key, priority, arrival, weight, ends_at_ms, ttl_ms, transition_ms, calls });
        there.queue.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.arrival));
        Ok(Ok(false))
    }

    fn extend(
        &mut self,
        request: &AcquirePermits,
        key: Key,
        semaphore: &Semaphore,
        hold: &Hold,
    ) -> Result<bool, Reason> {
        let path = &request.path;
        if request.fencing_token.is_some_and(|token| token != hold.token) {
            return Err(Reason::NotHeld);
        }
        let weight = if request.fencing_token.is_some() { hold.weight } else { request.wanted.weight() };
        if weight > hold.weight && !(semaphore.fits(weight - hold.weight) && semaphore.queue.is_empty()) {
            let is_large = semaphore.permits > 0 && weight > semaphore.permits;
            let fits = semaphore.fits(weight - hold.weight);
            return Err(if is_large {
                Reason::TooLarge
            } else if fits {
                Reason::Queued
            } else {
                Reason::Exhausted
            });
        }
        let token = if weight == hold.weight { hold.token } else { self.next_revision() };
        let token = if weight > hold.weight { token } else { hold.token };
        let mut calls = hold.calls.clone();
        attach_to_hold(&mut calls, request.attempt);
        self.insert(path, key, weight, (token, calls), (request.ttl_ms, request.transition_ms));
        self.promote(path);
        Ok(true)
    }

    fn repeat_wait(
        &mut self,
        request: &AcquirePermits,
        key: &Key,
        index: usize,
        (waits, ends_at_ms): (bool, Option<u64>),
    ) -> Result<bool, Reason> {
        let path = &request.path;
        let queued = &mut self.semaphores.get_mut(path).expect("it is there").queue[index];
        if request.wanted.weight() > queued.weight {
            return Err(Reason::Queued);
        }
        queued.weight = request.wanted.weight();
        let is_newest = queued.calls.last().is_none_or(|highest| request.attempt >= *highest);
        if !waits || is_newest {
            (queued.ttl_ms, queued.transition_ms) = (request.ttl_ms, request.transition_ms);
        }
        if waits {
            attach(&mut queued.calls, request.attempt);
            queued.ends_at_ms = if is_newest { ends_at_ms } else { queued.ends_at_ms };
        }
        self.promote(path);
        let hold = self.semaphores.get_mut(path).and_then(|it| it.holds.get_mut(key));
        match hold {
            Some(hold) => {
                if !waits {
                    attach_to_hold(&mut hold.calls, request.attempt);
                }
                Ok(true)
            }
            None if waits => Ok(false),
            None => Err(Reason::Queued),
        }
    }
}
