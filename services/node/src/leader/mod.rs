//! What the leader of a shard keeps in memory besides the state: who waits, which sessions show signs of life, who
//! is to be told.
//!
//! A [`Table`] exists only while its replica leads and is rebuilt from the state by the next leader: nothing in it is a
//! fact that anybody relies on. It is changed under the lock of the state only, so that it is never behind or ahead.

mod figures;
mod follows;
mod news;
mod sessions;
mod slot;
mod waits;

use bytes::Bytes;
use holdfast_core::shard::ShardCore;
use holdfast_core::{
    Acquire, AcquireOutcome, Answer, Cancel, CancelSeveral, Command, Effect, LocksCommand, NamespaceRef, Owner,
    Reattach, Reply, Rules, codec,
};
use tokio::time::Instant;

pub(crate) use figures::{Figures, describe};
pub(crate) use follows::Follows;
pub(crate) use news::News;
pub(crate) use sessions::{SessionKey, Sessions, SignOfLife};
pub(crate) use waits::{Attached, Forsaken, RECONNECT, Waits};

/// How many bits of an attempt count within its term: a hundred thousand calls a second for four months, and sixteen
/// million terms. Holds keep it, and few bytes matter there.
const ATTEMPT_BITS: u32 = 40;
/// As long as a node may lead next that counts so.
const ATTEMPT_BITS_OF_RULES_1: u32 = 32;

/// The memory of one leadership.
pub(crate) struct Table {
    pub(crate) term: u64,
    attempts: u64,
    /// Those of the last entry.
    rules: Rules,
    pub(crate) waits: Waits,
    pub(crate) sessions: Sessions,
    pub(crate) follows: Follows,
    pub(crate) news: News,
    figures: Figures,
    /// Whether the duty that looks after callers looks at them already.
    looks_after_callers: bool,
}

impl Table {
    /// Begins a leadership: every session has its whole time to live, and every caller that waited has a while to come
    /// back.
    pub(crate) fn begin(term: u64, rules: Rules, core: &ShardCore) -> Self {
        let now = Instant::now();
        let mut sessions = Sessions::new(now);
        for lease in core.session_leases() {
            let key = SessionKey::of(&lease.namespace, &lease.session_id);
            sessions.opened(key, lease.number, lease.ttl_ms, now);
        }
        let mut waits = Waits::default();
        for lease in core.wait_leases().filter(|lease| lease.wait.attempt > 0) {
            waits.taken_over(lease.namespace, lease.wait.wait, &lease.attempts, now);
        }
        let (follows, news, figures) = (Follows::default(), News::default(), Figures::new());
        Self { term, attempts: 0, rules, waits, sessions, follows, news, figures, looks_after_callers: false }
    }

    /// Gives a lease to every request that waits and has none: the duty that looks after them has begun anew.
    pub(crate) fn keep_waits(&mut self, core: &ShardCore) {
        let now = Instant::now();
        for lease in core.wait_leases().filter(|lease| lease.wait.attempt > 0) {
            if !self.waits.knows(lease.wait.wait) {
                self.waits.taken_over(lease.namespace, lease.wait.wait, &lease.attempts, now);
            }
        }
    }

    /// Whether a duty has to look at the table earlier than it meant to. Said once.
    pub(crate) fn wakes_duties(&mut self) -> bool {
        let wakes = self.waits.is_earlier_than_planned() | self.sessions.is_first();
        wakes || (!self.looks_after_callers && self.has_callers())
    }

    /// Whether there are callers to look after; the duty that asks does so while there are.
    pub(crate) fn look_after_callers(&mut self) -> bool {
        self.looks_after_callers = self.has_callers();
        self.looks_after_callers
    }

    /// The number of the next attempt: rises within the term, and with it, and no two have the same. None when the term has
    /// no more.
    pub(crate) fn next_attempt(&mut self) -> Option<u64> {
        let bits = if self.rules < Rules::TWO { ATTEMPT_BITS_OF_RULES_1 } else { ATTEMPT_BITS };
        self.attempts = self.attempts.checked_add(1).filter(|attempts| attempts >> bits == 0)?;
        self.term.checked_mul(1 << bits)?.checked_add(self.attempts)
    }

    /// Begins an attempt of that acquire: as it is to be proposed, and what to propose. Nothing when there are no more
    /// numbers.
    pub(crate) fn begin_attempt(&mut self, core: &ShardCore, acquire: Acquire) -> Option<(Acquire, LocksCommand)> {
        let acquire = Acquire { attempt: self.next_attempt()?, ..acquire };
        let place = core.place_of(&acquire);
        let left = place.map_or_else(Vec::new, |(wait, there)| self.waits.replaced(wait, &there));
        let is_plain = left.is_empty() || self.rules < Rules::TWO;
        let command = match is_plain {
            true => LocksCommand::Acquire(acquire.clone()),
            false => LocksCommand::Reattach(Reattach { acquire: acquire.clone(), left }),
        };
        Some((acquire, command))
    }

    /// By which rules the leader writes.
    pub(crate) fn rules(&self) -> Rules {
        self.rules
    }

    /// An entry of these rules was applied.
    pub(crate) fn go_by(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// A command was applied.
    pub(crate) fn replied(&mut self, command: &Command, reply: &Reply) {
        if matches!(command.inner(), Command::Accounts(_)) && reply.outcome.is_ok() {
            self.news.accounts_changed();
        }
        let Command::Locks(command) = command else { return };
        let Some((acquire, left)) = command.as_acquire() else { return };
        let Ok(Answer::Acquired { outcome, .. }) = &reply.outcome else { return };
        self.figures.acquired(outcome);
        let AcquireOutcome::Enqueued(enqueued) = outcome else { return };
        if enqueued.attempt > 0 {
            self.waits.enqueued(&acquire.namespace, enqueued.wait, acquire.attempt, enqueued.attempt);
            self.waits.told(enqueued.wait, left);
        }
    }

    /// Something happened that others are to be told of.
    pub(crate) fn tell(&mut self, effect: Effect, clock_ms: u64) {
        if let Effect::Settled { outcome, .. } = &effect {
            self.figures.settled(outcome);
        }
        match &effect {
            Effect::Settled { wait, attempt, .. } if *attempt > 0 => {
                let wait = *wait;
                self.waits.settled(wait, effect, clock_ms, self.rules);
            }
            Effect::Settled { namespace, owner: Owner::Session { session_id, .. }, .. } => {
                self.follows.tell(&SessionKey::of(namespace, session_id), &notice(clock_ms, &effect));
            }
            // Nobody is attached to it, nor follows.
            Effect::Settled { .. } => {}
            Effect::Revoked { namespace, session_id, .. } => {
                self.follows.tell(&SessionKey::of(namespace, session_id), &notice(clock_ms, &effect));
            }
            Effect::SessionOpened { namespace, number, session_id, epoch, ttl_ms } => {
                let key = SessionKey::of(namespace, session_id);
                self.follows.superseded(&key, *epoch, &notice(clock_ms, &effect));
                self.sessions.opened(key, *number, *ttl_ms, Instant::now());
            }
            Effect::SessionEnded { namespace, number, session_id, .. } => {
                self.follows.ended(&SessionKey::of(namespace, session_id), &notice(clock_ms, &effect));
                self.sessions.ended(*number);
            }
            Effect::Events { namespace, .. } => self.news.arrived(namespace),
            Effect::NamespaceClosed { namespace } => self.news.closed(namespace),
        }
    }

    /// Whether somebody waits to be told something.
    fn has_callers(&self) -> bool {
        self.waits.has_callers() || !self.follows.is_empty() || !self.news.is_empty()
    }

    /// Sends everybody who waits away, to look for a leader that is not cut off.
    pub(crate) fn send_callers_away(&mut self) {
        self.waits.send_callers_away(Instant::now());
        self.follows = Follows::default();
        self.news = News::default();
    }
}

/// What gives up an attempt or, when it was granted, gives it back.
pub(crate) fn cancel_of(effect: Effect) -> Option<Cancel> {
    let Effect::Settled { namespace, owner, request_id, claims, attempt, .. } = effect else { return None };
    Some(Cancel { namespace, owner, request_id, claims, attempt })
}

/// The same for these attempts.
pub(crate) fn cancel_all(cancel: Cancel, attempts: &[u64]) -> Command {
    Command::Locks(match attempts {
        [] => LocksCommand::Cancel(cancel),
        [attempt] => LocksCommand::Cancel(Cancel { attempt: *attempt, ..cancel }),
        [attempt, left @ ..] => {
            let (cancel, left) = (Cancel { attempt: *attempt, ..cancel }, left.to_vec());
            LocksCommand::CancelSeveral(CancelSeveral { cancel, left })
        }
    })
}

fn notice(clock_ms: u64, effect: &Effect) -> Bytes {
    Bytes::from(codec::encode(&(clock_ms, effect)))
}

/// Names a namespace's life within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamespaceKey(u64, u64);

impl NamespaceKey {
    pub(crate) fn of(namespace: &NamespaceRef) -> Self {
        Self(namespace.account.0, namespace.incarnation.0)
    }
}
