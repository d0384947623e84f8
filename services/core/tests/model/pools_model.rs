//! A model of one pool of some plain lines: everything is a list, and nothing takes more than a step.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{AcquirePermits, Phase, Reason, Wait, Wanted};

/// An owner's name and a request id.
pub(crate) type Key = (String, String);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Member {
    pub(crate) is_disabled: bool,
    pub(crate) is_leaving: bool,
    pub(crate) free_since: u64,
    pub(crate) rests_until_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    pub(crate) members: Vec<String>,
    wanted: Wanted,
    pub(crate) token: u64,
    pub(crate) phase: Phase,
    pub(crate) deadline_ms: Option<u64>,
    transition_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) key: Key,
    pub(crate) wanted: Wanted,
    priority: u8,
    arrival: u64,
    pub(crate) ends_at_ms: Option<u64>,
    ttl_ms: Option<u64>,
    transition_ms: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) cooldown_ms: u64,
    pub(crate) holds: BTreeMap<Key, Hold>,
    /// By priority, then by arrival.
    pub(crate) queue: Vec<Queued>,
    clock_ms: u64,
    pub(crate) revision: u64,
    /// Waits that ended, and whether they were granted.
    pub(crate) resolved: BTreeSet<(Key, bool)>,
}

/// Which member a request would prefer does not tell requests apart.
fn is_same(one: &Wanted, other: &Wanted) -> bool {
    match (one, other) {
        (Wanted::Members { count, .. }, Wanted::Members { count: other, .. }) => count == other,
        _ => one == other,
    }
}

/// Whether a request must not go before another one.
fn holds_up(before: &Wanted, wanted: &Wanted) -> bool {
    matches!(before, Wanted::Members { .. }) || before == wanted
}

impl Model {
    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn is_free(&self, name: &str) -> bool {
        let is_held = self.holds.values().any(|hold| hold.members.iter().any(|its| its == name));
        let gives = |it: &Member| !it.is_disabled && !it.is_leaving && it.rests_until_ms.is_none();
        !is_held && self.members.get(name).is_some_and(gives)
    }

    /// The free members, those that have been free longest first.
    pub(crate) fn free(&self) -> Vec<String> {
        let mut free: Vec<_> = self.members.iter().filter(|(name, _)| self.is_free(name)).collect();
        free.sort_by_key(|(name, member)| (member.free_since, (*name).clone()));
        free.into_iter().map(|(name, _)| name.clone()).collect()
    }

    fn choose(&self, wanted: &Wanted) -> Option<Vec<String>> {
        let (count, prefer) = match wanted {
            Wanted::Member(name) => return self.is_free(name).then(|| vec![name.clone()]),
            Wanted::Members { count, prefer } => (*count as usize, prefer.clone()),
            Wanted::Permits { .. } => unreachable!("a pool has no permits"),
        };
        let free = self.free();
        let mut chosen: Vec<String> = prefer.into_iter().filter(|name| free.contains(name)).collect();
        chosen.extend(free.iter().filter(|name| !chosen.contains(name)).cloned().collect::<Vec<_>>());
        chosen.truncate(count);
        chosen.sort();
        (chosen.len() == count).then_some(chosen)
    }

    fn impossible(&self, wanted: &Wanted) -> Option<Reason> {
        let staying = self.members.values().filter(|member| !member.is_leaving).count() as u64;
        match wanted {
            Wanted::Member(name) => {
                self.members.get(name).is_none_or(|member| member.is_leaving).then_some(Reason::NoMember)
            }
            _ => (wanted.weight() > staying).then_some(Reason::TooLarge),
        }
    }

    pub(crate) fn promote(&mut self) {
        loop {
            if let Some(index) = self.queue.iter().position(|it| self.impossible(&it.wanted).is_some()) {
                let refused = self.queue.remove(index);
                self.resolved.insert((refused.key, false));
                continue;
            }
            let may_go = |index: usize| {
                let wanted = &self.queue[index].wanted;
                !self.queue[..index].iter().any(|before| holds_up(&before.wanted, wanted))
                    && self.choose(wanted).is_some()
            };
            let Some(index) = (0..self.queue.len()).find(|index| may_go(*index)) else { return };
            let next = self.queue.remove(index);
            self.resolved.insert((next.key.clone(), true));
            self.grant(next.key, next.wanted, (next.ttl_ms, next.transition_ms));
        }
    }

    fn grant(&mut self, key: Key, wanted: Wanted, (ttl_ms, transition_ms): (Option<u64>, u64)) {
        let members = self.choose(&wanted).expect("it fits");
        let (token, deadline_ms) = (self.next_revision(), ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms));
        let hold = Hold { members, wanted, token, phase: Phase::Held, deadline_ms, transition_ms };
        self.holds.insert(key, hold);
    }

    /// What is due, in order of time; at one time rests end before holds, and holds before waits.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.clock_ms = now_ms;
        loop {
            let rests = self
                .members
                .iter()
                .filter_map(|(name, it)| Some((it.rests_until_ms?, 0, it.free_since, (String::new(), name.clone()))));
            let holds = self.holds.iter().filter_map(|(key, it)| Some((it.deadline_ms?, 1, it.token, key.clone())));
            let waits = self.queue.iter().filter_map(|it| Some((it.ends_at_ms?, 2, it.arrival, it.key.clone())));
            let due = rests.chain(holds).chain(waits).min().filter(|due| due.0 <= now_ms);
            let Some((at_ms, what, _, key)) = due else { return };
            match what {
                0 => self.members.get_mut(&key.1).expect("it is there").rests_until_ms = None,
                1 => self.end_phase(&key, at_ms),
                _ => _ = self.end_wait(&key),
            }
            self.promote();
        }
    }

    pub(crate) fn end_phase(&mut self, key: &Key, at_ms: u64) {
        let hold = self.holds.get_mut(key).expect("it is held");
        if hold.phase == Phase::Held && hold.transition_ms > 0 {
            (hold.phase, hold.deadline_ms) = (Phase::Transition, Some(at_ms + hold.transition_ms));
        } else {
            self.end_hold(key);
        }
    }

    pub(crate) fn end_hold(&mut self, key: &Key) -> bool {
        let Some(hold) = self.holds.remove(key) else { return false };
        let revision = self.next_revision();
        self.return_members(&hold.members, revision);
        true
    }

    fn return_members(&mut self, members: &[String], revision: u64) {
        let rests_until_ms = (self.cooldown_ms > 0).then(|| self.clock_ms + self.cooldown_ms);
        for name in members {
            let member = self.members.get_mut(name).expect("it is there");
            (member.free_since, member.rests_until_ms) = (revision, rests_until_ms);
            if member.is_leaving {
                self.members.remove(name);
            }
        }
    }

    /// Returns some members; all of them end the hold.
    pub(crate) fn return_some(&mut self, key: &Key, some: &[String]) -> bool {
        let Some(hold) = self.holds.get_mut(key) else { return false };
        let (returned, kept): (Vec<_>, Vec<_>) = hold.members.iter().cloned().partition(|name| some.contains(name));
        if kept.is_empty() {
            return self.end_hold(key);
        }
        if returned.is_empty() {
            return false;
        }
        hold.members = kept;
        let revision = self.next_revision();
        self.return_members(&returned, revision);
        true
    }

    pub(crate) fn end_wait(&mut self, key: &Key) -> bool {
        let before = self.queue.len();
        self.queue.retain(|it| it.key != *key);
        let ended = self.queue.len() < before;
        self.resolved.extend(ended.then(|| (key.clone(), false)));
        ended
    }

    /// Everything of an owner, in the order of the request ids. Returns whether there was something.
    pub(crate) fn end_all(&mut self, owner: &str, end: impl FnMut(&mut Self, &Key)) -> bool {
        let has_ended = self.end_things(owner, end);
        self.promote();
        has_ended
    }

    /// The same of a session that ends. Its own event comes before the grants.
    pub(crate) fn end_session(&mut self, owner: &str, end: impl FnMut(&mut Self, &Key)) {
        self.end_things(owner, end);
        self.next_revision();
        self.promote();
    }

    fn end_things(&mut self, owner: &str, mut end: impl FnMut(&mut Self, &Key)) -> bool {
        let holds = self.holds.keys().cloned();
        let waits = self.queue.iter().map(|it| it.key.clone());
        let keys: BTreeSet<Key> = holds.chain(waits).filter(|key| key.0 == owner).collect();
        for key in &keys {
            if !self.end_wait(key) {
                end(self, key);
            }
        }
        !keys.is_empty()
    }

    /// The members as configured, each with whether it is disabled.
    pub(crate) fn configure(&mut self, members: &BTreeMap<String, bool>, cooldown_ms: u64) {
        let is_same = cooldown_ms == self.cooldown_ms
            && self.members.iter().all(|(name, it)| it.is_leaving != members.contains_key(name))
            && members.iter().all(|(name, off)| self.members.get(name).is_some_and(|it| it.is_disabled == *off));
        if is_same && !self.members.is_empty() {
            return;
        }
        let revision = self.next_revision();
        self.cooldown_ms = cooldown_ms;
        for (name, is_disabled) in members {
            self.add(name, revision);
            let member = self.members.get_mut(name).expect("it was added");
            if member.is_disabled && !is_disabled {
                member.free_since = revision;
            }
            member.is_disabled = *is_disabled;
        }
        let gone: Vec<String> = self.members.keys().filter(|name| !members.contains_key(*name)).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
        self.promote();
    }

    pub(crate) fn add(&mut self, name: &str, revision: u64) {
        let new = Member { free_since: revision, ..Member::default() };
        self.members.entry(name.to_owned()).or_insert(new).is_leaving = false;
    }

    pub(crate) fn remove(&mut self, name: &str) {
        match self.holds.values().any(|hold| hold.members.iter().any(|its| its == name)) {
            true => self.members.get_mut(name).expect("it is held").is_leaving = true,
            false => _ = self.members.remove(name),
        }
    }

    pub(crate) fn enable(&mut self, name: &str, revision: u64) {
        let Some(member) = self.members.get_mut(name) else { return };
        if member.is_disabled || member.rests_until_ms.is_some() {
            (member.is_disabled, member.rests_until_ms, member.free_since) = (false, None, revision);
        }
    }

    /// Whether it is granted or waits, or why not; an error for a repeat that wants something else.
    pub(crate) fn take(&mut self, request: &AcquirePermits, key: Key) -> Result<Result<bool, Reason>, ()> {
        let (waits, wanted) = (request.wait != Wait::No, &request.wanted);
        let ends_at_ms = if let Wait::For(ms) = request.wait { Some(self.clock_ms + ms) } else { None };
        if let Some(hold) = self.holds.get_mut(&key) {
            match request.fencing_token {
                None if !is_same(&hold.wanted, wanted) => return Err(()),
                Some(token) if token != hold.token => return Ok(Err(Reason::NotHeld)),
                _ => {}
            }
            (hold.phase, hold.transition_ms) = (Phase::Held, request.transition_ms);
            hold.deadline_ms = request.ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms);
            return Ok(Ok(true));
        }
        if request.fencing_token.is_some() {
            return Ok(Err(Reason::NotHeld));
        }
        if let Some(queued) = self.queue.iter_mut().find(|it| it.key == key) {
            if !is_same(&queued.wanted, wanted) {
                return Err(());
            }
            (queued.ttl_ms, queued.transition_ms) = (request.ttl_ms, request.transition_ms);
            queued.ends_at_ms = if waits { ends_at_ms } else { queued.ends_at_ms };
            return Ok(if waits { Ok(false) } else { Err(Reason::Queued) });
        }
        if let Some(reason) = self.impossible(wanted) {
            return Ok(Err(reason));
        }
        let before = self.queue.iter().filter(|it| it.priority >= request.priority);
        let (fits, is_first) =
            (self.choose(wanted).is_some(), !before.into_iter().any(|it| holds_up(&it.wanted, wanted)));
        let (priority, terms) = (request.priority, (request.ttl_ms, request.transition_ms));
        if fits && is_first {
            self.grant(key, wanted.clone(), terms);
            return Ok(Ok(true));
        }
        if !waits {
            return Ok(Err(if fits { Reason::Queued } else { Reason::Exhausted }));
        }
        let (arrival, wanted, (ttl_ms, transition_ms)) = (self.next_revision(), wanted.clone(), terms);
        self.queue.push(Queued { key, wanted, priority, arrival, ends_at_ms, ttl_ms, transition_ms });
        self.queue.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.arrival));
        Ok(Ok(false))
    }
}
