//! Signs of life of sessions: kept by the leader, in no log.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use holdfast_core::{NamespaceRef, SessionNumber};
use holdfast_plant::{Plant, is_planted};
use tokio::time::Instant;

use super::NamespaceKey;

/// A leader that was not seen to run for longer than this adds the rest to every session's allowance.
const LONGEST_STEP: Duration = Duration::from_millis(250);

/// Names a session within a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey(NamespaceKey, String);

impl SessionKey {
    pub(crate) fn of(namespace: &NamespaceRef, session_id: &str) -> Self {
        Self(NamespaceKey::of(namespace), session_id.to_owned())
    }
}

/// The sessions of a shard, each with the time by which its next sign of life is due.
///
/// Time here is the leader's *running* time: it stands still while the process does not run, so that a leader that
/// wakes up after a pause does not take its own silence for that of its sessions.
pub(crate) struct Sessions {
    ran: Duration,
    looked_at: Instant,
    by_number: HashMap<SessionNumber, Lease>,
    numbers: HashMap<SessionKey, SessionNumber>,
    due: BTreeSet<(Duration, SessionNumber)>,
    /// Whether the duty that looks for the silent ones has a time to look again.
    is_planned: bool,
}

struct Lease {
    key: SessionKey,
    ttl: Duration,
    due: Duration,
    /// An entry that may expire it is under way: until its outcome is known no sign of life is taken.
    is_judged: bool,
}

/// What became of a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignOfLife {
    /// It counts: the session lives for so many milliseconds more.
    Noted(u64),
    /// The session is just being judged: wait for the outcome.
    Judged,
}

impl Sessions {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ran: Duration::ZERO,
            looked_at: now,
            by_number: HashMap::new(),
            numbers: HashMap::new(),
            due: BTreeSet::new(),
            is_planned: false,
        }
    }

    /// A session was opened or resumed, which is a sign of life.
    pub(crate) fn opened(&mut self, key: SessionKey, number: SessionNumber, ttl_ms: u64, now: Instant) {
        self.ended(number);
        let ttl = Duration::from_millis(ttl_ms);
        let due = self.runs(now) + ttl;
        self.due.insert((due, number));
        self.numbers.insert(key.clone(), number);
        self.by_number.insert(number, Lease { key, ttl, due, is_judged: false });
    }

    /// A session is gone.
    pub(crate) fn ended(&mut self, number: SessionNumber) {
        if let Some(lease) = self.by_number.remove(&number) {
            self.due.remove(&(lease.due, number));
            self.numbers.remove(&lease.key);
        }
    }

    /// A session showed a sign of life.
    pub(crate) fn sign_of_life(&mut self, key: &SessionKey, now: Instant) -> Option<SignOfLife> {
        let runs = self.runs(now);
        let number = *self.numbers.get(key)?;
        let lease = self.by_number.get_mut(&number)?;
        if lease.is_judged && !is_planted(Plant::KeepAliveWhileJudged) {
            return Some(SignOfLife::Judged);
        }
        self.due.remove(&(lease.due, number));
        lease.due = runs + lease.ttl;
        self.due.insert((lease.due, number));
        Some(SignOfLife::Noted(millis(lease.ttl)))
    }

    /// How long a session has until its next sign of life is due, in milliseconds.
    pub(crate) fn remaining_ms(&self, key: &SessionKey, now: Instant) -> Option<u64> {
        let lease = self.by_number.get(self.numbers.get(key)?)?;
        Some(millis(lease.due.saturating_sub(self.runs_until(now))))
    }

    /// Whether there are sessions that nobody looks after yet.
    pub(super) fn is_first(&self) -> bool {
        !self.is_planned && !self.due.is_empty()
    }

    /// When to look again. To be called at least every [`LONGEST_STEP`] while there are sessions, or time stands still.
    pub(crate) fn next_look(&mut self, now: Instant) -> Option<Instant> {
        self.is_planned = !self.due.is_empty();
        let (due, _) = self.due.first()?;
        Some(now + due.saturating_sub(self.runs_until(now)).min(LONGEST_STEP / 2))
    }

    /// The time since the last look counts for nobody: the leader could not have answered a sign of life.
    pub(crate) fn stand_still(&mut self, now: Instant) {
        self.looked_at = self.looked_at.max(now);
    }

    /// Takes up to that many sessions that were silent for too long; they are judged until [`Sessions::judged`].
    pub(crate) fn silent(&mut self, now: Instant, at_most: usize) -> Vec<SessionNumber> {
        let runs = self.runs(now);
        let mut silent = Vec::new();
        while silent.len() < at_most {
            let Some((due, number)) = self.due.first().copied().filter(|(due, _)| *due <= runs) else { break };
            self.due.remove(&(due, number));
            if let Some(lease) = self.by_number.get_mut(&number) {
                lease.is_judged = true;
                silent.push(number);
            }
        }
        silent
    }

    /// Those that are judged and for whose outcome nobody waits: the duty that did has begun anew.
    pub(crate) fn being_judged(&self) -> Vec<SessionNumber> {
        let judged = self.by_number.iter().filter(|(_, lease)| lease.is_judged);
        let mut judged: Vec<SessionNumber> = judged.map(|(number, _)| *number).collect();
        judged.sort_unstable();
        judged
    }

    /// The outcome for those is known. The ones that are still there were resumed, or nothing was done.
    pub(crate) fn judged(&mut self, numbers: &[SessionNumber], now: Instant) {
        let runs = self.runs(now);
        for number in numbers {
            if let Some(lease) = self.by_number.get_mut(number)
                && lease.is_judged
            {
                lease.is_judged = false;
                lease.due = runs;
                self.due.insert((runs, *number));
            }
        }
    }

    fn runs(&mut self, now: Instant) -> Duration {
        self.ran = self.runs_until(now);
        self.looked_at = self.looked_at.max(now);
        self.ran
    }

    fn runs_until(&self, now: Instant) -> Duration {
        self.ran + now.saturating_duration_since(self.looked_at).min(LONGEST_STEP)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountId, Incarnation};

    use super::*;

    fn key(session_id: &str) -> SessionKey {
        let namespace = NamespaceRef { account: AccountId(1), name: "n".into(), incarnation: Incarnation(2) };
        SessionKey::of(&namespace, session_id)
    }

    /// Looks as often as the duty does.
    fn run_for(sessions: &mut Sessions, from: Instant, ms: u64) -> (Instant, Vec<SessionNumber>) {
        let mut silent = Vec::new();
        let mut now = from;
        for _ in 0..ms / 50 {
            now += Duration::from_millis(50);
            silent.extend(sessions.silent(now, 10));
        }
        (now, silent)
    }

    #[tokio::test]
    async fn only_the_silent_are_taken_and_a_judged_one_gives_no_sign_of_life() {
        let start = Instant::now();
        let mut sessions = Sessions::new(start);
        sessions.opened(key("a"), 1, 1_000, start);
        sessions.opened(key("b"), 2, 1_000, start);
        let (now, silent) = run_for(&mut sessions, start, 900);
        assert_eq!(silent, Vec::<SessionNumber>::new());
        assert_eq!(sessions.sign_of_life(&key("a"), now), Some(SignOfLife::Noted(1_000)));
        let (now, silent) = run_for(&mut sessions, now, 150);
        assert_eq!(silent, [2]);
        assert_eq!(sessions.sign_of_life(&key("b"), now), Some(SignOfLife::Judged));
        sessions.judged(&[2], now);
        assert_eq!(sessions.sign_of_life(&key("b"), now), Some(SignOfLife::Noted(1_000)));
        sessions.ended(2);
        assert_eq!(sessions.sign_of_life(&key("b"), now), None);
    }

    #[tokio::test]
    async fn while_no_sign_of_life_could_be_answered_time_stands_still() {
        let start = Instant::now();
        let mut sessions = Sessions::new(start);
        sessions.opened(key("a"), 1, 1_000, start);
        let (mut now, _) = run_for(&mut sessions, start, 600);
        for _ in 0..50 {
            now += Duration::from_millis(100);
            sessions.stand_still(now);
        }
        assert_eq!(sessions.remaining_ms(&key("a"), now), Some(400));
        let (_, silent) = run_for(&mut sessions, now, 400);
        assert_eq!(silent, [1]);
    }

    #[tokio::test]
    async fn a_pause_of_the_leader_is_added_to_every_allowance() {
        let start = Instant::now();
        let mut sessions = Sessions::new(start);
        sessions.opened(key("a"), 1, 1_000, start);
        let (now, _) = run_for(&mut sessions, start, 500);
        let woken = now + Duration::from_secs(60);
        assert_eq!(sessions.silent(woken, 10), Vec::<SessionNumber>::new());
        assert_eq!(sessions.remaining_ms(&key("a"), woken), Some(250));
        let (_, silent) = run_for(&mut sessions, woken, 250);
        assert_eq!(silent, [1]);
    }
}
