//! A plain model of conditions: locks with one holder each, their queues, and the queues of their conditions. An owner
//! waits for or awaits at most one thing at a time, so that nobody overtakes.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{FencingToken, Reason, Woken};

/// Why an owner waits for a lock again, and whether its signal is handed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CameFrom {
    pub(crate) token: FencingToken,
    pub(crate) woken: Woken,
    pub(crate) condition: String,
    pub(crate) passes_on: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) owner: String,
    /// As last seen.
    pub(crate) token: FencingToken,
    pub(crate) deadline_ms: Option<u64>,
    /// The calls that were not heard of; empty if the owner knows of it.
    pub(crate) attempts: BTreeSet<u64>,
    pub(crate) came_from: Vec<CameFrom>,
    pub(crate) signals: Vec<(String, (u64, u64))>,
}

#[derive(Clone, Debug)]
pub(crate) struct QueuedOwner {
    pub(crate) owner: String,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) ends_at_ms: Option<u64>,
    pub(crate) attempts: BTreeSet<u64>,
    pub(crate) came_from: Option<CameFrom>,
}

#[derive(Clone, Debug)]
pub(crate) struct Awaiting {
    pub(crate) owner: String,
    pub(crate) token: FencingToken,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) ends_at_ms: Option<u64>,
    pub(crate) relock_ms: Option<u64>,
    pub(crate) attempts: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) holder: Option<Hold>,
    pub(crate) queue: Vec<QueuedOwner>,
    pub(crate) conditions: BTreeMap<String, Vec<Awaiting>>,
}

/// What an owner was told of an await: woken, or its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    Woken(String, &'static str),
    Granted(String, FencingToken, &'static str),
    Ended(String, FencingToken, &'static str),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) locks: BTreeMap<String, Lock>,
    pub(crate) now_ms: u64,
    /// The conditions for which signals are to be handed on.
    owed: BTreeMap<(String, String), u64>,
    pub(crate) told: BTreeSet<Told>,
}

impl Model {
    pub(crate) fn lock(&mut self, path: &str) -> &mut Lock {
        self.locks.entry(path.to_owned()).or_default()
    }

    pub(crate) fn holds(&self, owner: &str, path: &str) -> bool {
        self.hold_of(owner, path).is_some()
    }

    pub(crate) fn hold_of(&self, owner: &str, path: &str) -> Option<&Hold> {
        self.locks.get(path)?.holder.as_ref().filter(|hold| hold.owner == owner)
    }

    /// Returns whether an owner waits for anything or awaits anything.
    pub(crate) fn waits(&self, owner: &str) -> bool {
        let awaits = |lock: &Lock| lock.conditions.values().flatten().any(|it| it.owner == owner);
        self.locks.values().any(|lock| lock.queue.iter().any(|it| it.owner == owner) || awaits(lock))
    }

    /// Returns an owner whose signal is handed on to another if it ends without the lock.
    pub(crate) fn woken_before_others(&self) -> Option<String> {
        let of_lock = |lock: &Lock| {
            let awaited = |condition: &str| lock.conditions.get(condition).is_some_and(|queue| !queue.is_empty());
            let hands_on = |from: &CameFrom| from.passes_on && awaited(&from.condition);
            let woken = lock.queue.iter().find(|it| it.came_from.as_ref().is_some_and(hands_on))?;
            Some(woken.owner.clone())
        };
        self.locks.values().find_map(of_lock)
    }

    /// Returns whether waiting for that lock would close a cycle.
    fn closes_cycle(&self, owner: &str, path: &str) -> bool {
        let (mut at, mut steps) = (path.to_owned(), 0);
        while let Some(holder) = self.locks.get(&at).and_then(|lock| lock.holder.as_ref()) {
            if holder.owner == owner {
                return steps > 0;
            }
            let is_its = |lock: &Lock| lock.queue.iter().any(|it| it.owner == holder.owner);
            let Some((next, _)) = self.locks.iter().find(|(_, lock)| is_its(lock)) else { return false };
            at.clone_from(next);
            steps += 1;
            if steps > self.locks.len() {
                return false;
            }
        }
        false
    }

    /// Returns whether it is held, waits, or why it is refused.
    pub(crate) fn acquire(
        &mut self,
        (owner, path): (&str, &str),
        ttl_ms: Option<u64>,
        wait_ms: Option<Option<u64>>,
    ) -> Result<bool, Reason> {
        let deadline_ms = ttl_ms.map(|ttl_ms| self.now_ms + ttl_ms);
        let lock = self.lock(path);
        if let Some(hold) = lock.holder.as_mut().filter(|hold| hold.owner == owner) {
            hold.deadline_ms = deadline_ms;
            hold.attempts.clear();
            return Ok(true);
        }
        if lock.holder.is_none() && lock.queue.is_empty() {
            lock.holder = Some(new_hold(owner, deadline_ms));
            return Ok(true);
        }
        let reason = if lock.holder.is_some() { Reason::Held } else { Reason::Queued };
        let Some(wait_ms) = wait_ms else { return Err(reason) };
        if self.closes_cycle(owner, path) {
            return Err(Reason::Deadlock);
        }
        let ends_at_ms = wait_ms.map(|wait_ms| self.now_ms + wait_ms);
        let (owner, attempts) = (owner.to_owned(), BTreeSet::new());
        self.lock(path).queue.push(QueuedOwner { owner, ttl_ms, ends_at_ms, attempts, came_from: None });
        Ok(false)
    }

    /// Gives the lock up. The owner must hold it.
    pub(crate) fn await_condition(&mut self, path: &str, condition: &str, awaits: Awaiting) {
        let lock = self.lock(path);
        lock.holder = None;
        lock.conditions.entry(condition.to_owned()).or_default().push(awaits);
        self.settle();
    }

    /// Returns how many were woken, and how many still await the condition.
    pub(crate) fn signal(&mut self, path: &str, condition: &str, all: bool) -> (u64, u64) {
        let awaiting = self.lock(path).conditions.get(condition).map_or(0, Vec::len);
        let woken = if all { awaiting } else { awaiting.min(1) };
        (0..woken).for_each(|_| self.wake_first(path, condition, Woken::Signalled, !all));
        self.settle();
        (woken as u64, (awaiting - woken) as u64)
    }

    fn wake_first(&mut self, path: &str, condition: &str, woken: Woken, passes_on: bool) {
        let Some(queue) = self.lock(path).conditions.get_mut(condition).filter(|queue| !queue.is_empty()) else {
            return;
        };
        let awaits = queue.remove(0);
        self.wake(path, condition, awaits, (woken, passes_on));
    }

    fn wake(&mut self, path: &str, condition: &str, awaits: Awaiting, (woken, passes_on): (Woken, bool)) {
        self.lock(path).conditions.retain(|_, queue| !queue.is_empty());
        let Awaiting { owner, token, ttl_ms, relock_ms, attempts, .. } = awaits;
        self.told.insert(Told::Woken(owner.clone(), woken.name()));
        let came_from = CameFrom { token, woken, condition: condition.to_owned(), passes_on };
        let deadline_ms = ttl_ms.map(|ttl_ms| self.now_ms + ttl_ms);
        let ends_at_ms = relock_ms.map(|relock_ms| self.now_ms + relock_ms);
        let lock = self.lock(path);
        if let Some(hold) = lock.holder.as_mut().filter(|hold| hold.owner == owner) {
            hold.deadline_ms = deadline_ms;
            match hold.attempts.is_empty() || attempts.is_empty() {
                true => hold.attempts.clear(),
                false => hold.attempts.extend(attempts),
            }
            hold.came_from.push(came_from);
            self.told.insert(Told::Granted(owner, token, woken.name()));
        } else if self.closes_cycle(&owner, path) {
            self.told.insert(Told::Ended(owner, token, Reason::Deadlock.name()));
            self.owe(path, &came_from);
        } else {
            self.lock(path).queue.push(QueuedOwner { owner, ttl_ms, ends_at_ms, attempts, came_from: Some(came_from) });
        }
    }

    fn owe(&mut self, path: &str, came_from: &CameFrom) {
        if came_from.passes_on {
            *self.owed.entry((path.to_owned(), came_from.condition.clone())).or_default() += 1;
        }
    }

    /// Hands signals on, and grants what is free.
    pub(crate) fn settle(&mut self) {
        loop {
            if let Some(((path, condition), count)) = self.owed.pop_first() {
                (0..count).for_each(|_| self.wake_first(&path, &condition, Woken::Signalled, true));
                continue;
            }
            let is_free = |(_, lock): &(&String, &Lock)| lock.holder.is_none() && !lock.queue.is_empty();
            let Some(path) = self.locks.iter().find(is_free).map(|(path, _)| path.clone()) else { break };
            let now_ms = self.now_ms;
            let lock = self.lock(&path);
            let QueuedOwner { owner, ttl_ms, attempts, came_from, .. } = lock.queue.remove(0);
            let mut hold = new_hold(&owner, ttl_ms.map(|ttl_ms| now_ms + ttl_ms));
            hold.attempts = attempts;
            hold.came_from.extend(came_from.clone());
            lock.holder = Some(hold);
            if let Some(CameFrom { token, woken, .. }) = came_from {
                self.told.insert(Told::Granted(owner, token, woken.name()));
            }
        }
        self.locks.retain(|_, lock| lock.holder.is_some() || !lock.queue.is_empty() || !lock.conditions.is_empty());
    }

    /// Ends what an owner has: its waits and awaits first.
    pub(crate) fn end_all_of(&mut self, owner: &str) -> (u64, u64) {
        let mut waits = 0;
        for path in self.locks.keys().cloned().collect::<Vec<String>>() {
            waits += u64::from(self.end_wait(&path, |it| it.owner == owner, Reason::Ended));
            waits += u64::from(self.end_await(&path, |it| it.owner == owner));
        }
        let mut holds = 0;
        for lock in self.locks.values_mut() {
            holds += u64::from(lock.holder.take_if(|hold| hold.owner == owner).is_some());
        }
        (holds, waits)
    }

    /// Ends the first wait for a lock that fits.
    pub(crate) fn end_wait(&mut self, path: &str, fits: impl Fn(&QueuedOwner) -> bool, reason: Reason) -> bool {
        let lock = self.lock(path);
        let Some(index) = lock.queue.iter().position(fits) else { return false };
        let waiting = lock.queue.remove(index);
        if let Some(came_from) = waiting.came_from {
            self.told.insert(Told::Ended(waiting.owner, came_from.token, reason.name()));
            self.owe(path, &came_from);
        }
        true
    }

    /// Ends the first await of a lock that fits.
    pub(crate) fn end_await(&mut self, path: &str, fits: impl Fn(&Awaiting) -> bool) -> bool {
        let lock = self.lock(path);
        for queue in lock.conditions.values_mut() {
            if let Some(index) = queue.iter().position(&fits) {
                let awaits = queue.remove(index);
                lock.conditions.retain(|_, queue| !queue.is_empty());
                self.told.insert(Told::Ended(awaits.owner, awaits.token, Reason::Ended.name()));
                return true;
            }
        }
        false
    }

    /// Removes attempts whose callers left. Returns whether a wait or an await ended, and whether a hold did.
    pub(crate) fn cancel(
        &mut self,
        owner: &str,
        path: &str,
        token: FencingToken,
        left: &BTreeSet<u64>,
    ) -> (bool, bool) {
        let is_left = |attempts: &mut BTreeSet<u64>| {
            let was_permanent = attempts.is_empty();
            attempts.retain(|attempt| !left.contains(attempt) || was_permanent);
            !was_permanent && attempts.is_empty()
        };
        let lock = self.lock(path);
        let mut awaits = lock.conditions.values_mut().flatten();
        let ended = match awaits.find(|it| it.owner == owner && it.token == token) {
            Some(awaits) => {
                let gone = is_left(&mut awaits.attempts);
                (gone && self.end_await(path, |it| it.owner == owner && it.token == token), false)
            }
            None => {
                let is_it =
                    |it: &QueuedOwner| it.owner == owner && it.came_from.as_ref().is_some_and(|it| it.token == token);
                match lock.queue.iter_mut().find(|it| is_it(it)) {
                    Some(waiting) => {
                        let gone = is_left(&mut waiting.attempts);
                        (gone && self.end_wait(path, is_it, Reason::Ended), false)
                    }
                    None => {
                        let comes =
                            |hold: &&mut Hold| hold.owner == owner && hold.came_from.iter().any(|it| it.token == token);
                        let gone = lock.holder.as_mut().filter(comes).is_some_and(|hold| is_left(&mut hold.attempts));
                        let unheard = lock.holder.take_if(|_| gone).map_or_else(Vec::new, |hold| hold.came_from);
                        unheard.iter().for_each(|came_from| self.owe(path, came_from));
                        (false, gone)
                    }
                }
            }
        };
        self.settle();
        ended
    }

    /// Lets time pass: what is due goes in order of time; at equal times holds before waits before awaits.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        while let Some((_, rank, path)) = self.first_due().filter(|(at_ms, ..)| *at_ms <= now_ms) {
            let at_ms = self.first_due().map_or(0, |(at_ms, ..)| at_ms);
            match rank {
                0 => self.lock(&path).holder = None,
                1 => _ = self.end_wait(&path, |it| it.ends_at_ms == Some(at_ms), Reason::TimedOut),
                _ => {
                    let lock = self.lock(&path);
                    let mut all =
                        lock.conditions.iter().flat_map(|(name, queue)| queue.iter().map(move |it| (name, it)));
                    let due = all.find(|(_, it)| it.ends_at_ms == Some(at_ms));
                    let Some((name, token)) = due.map(|(name, it)| (name.clone(), it.token)) else { unreachable!() };
                    let queue = lock.conditions.get_mut(&name).expect("it was just found");
                    let index = queue.iter().position(|it| it.token == token).expect("it was just found");
                    let awaits = queue.remove(index);
                    self.wake(&path, &name, awaits, (Woken::Elapsed, false));
                }
            }
            self.settle();
        }
    }

    /// Returns what is due first. The instants of one kind differ.
    fn first_due(&self) -> Option<(u64, u8, String)> {
        let of = |(path, lock): (&String, &Lock)| {
            let hold = lock.holder.iter().filter_map(|hold| Some((hold.deadline_ms?, 0)));
            let waits = lock.queue.iter().filter_map(|it| Some((it.ends_at_ms?, 1)));
            let awaits = lock.conditions.values().flatten().filter_map(|it| Some((it.ends_at_ms?, 2)));
            let all = hold.chain(waits).chain(awaits);
            all.map(|(at_ms, rank)| (at_ms, rank, path.clone())).collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of).min()
    }
}

fn new_hold(owner: &str, deadline_ms: Option<u64>) -> Hold {
    Hold {
        owner: owner.to_owned(),
        token: 0,
        deadline_ms,
        attempts: BTreeSet::new(),
        came_from: Vec::new(),
        signals: Vec::new(),
    }
}
