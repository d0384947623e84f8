//! Keep-alives of sessions: kept in the leader's memory, not in the log.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_core::{AccountId, SessionNumber};
use holdfast_mutations::{Mutation, is_enabled};
use tokio::time::Instant;

use super::due_sessions::DueSessions;

/// If the leader did not run for longer than this, it extends every session's deadline by the excess.
const MAX_STEP: Duration = Duration::from_millis(250);

/// The sessions of a shard, each with the deadline of its next keep-alive.
///
/// Time here is the leader's *running* time: it stops while the process does not run. A leader that wakes up after a
/// pause therefore does not expire sessions for its own absence.
pub(crate) struct HeartbeatTable {
    running_time: Duration,
    advanced_at: Instant,
    by_number: HashMap<SessionNumber, SessionDeadline>,
    due: DueSessions,
    /// True if the session reaper has a scheduled wakeup.
    is_scheduled: bool,
}

struct SessionDeadline {
    account: AccountId,
    ttl: Duration,
    due: Duration,
    /// An entry that may expire the session is in flight: keep-alives are not accepted until its outcome is known.
    is_expiring: bool,
}

/// Result of a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    /// Accepted: the session lives for this many more milliseconds.
    Accepted(u64),
    /// The session is expiring: wait for the outcome.
    Expiring,
}

impl HeartbeatTable {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            running_time: Duration::ZERO,
            advanced_at: now,
            by_number: HashMap::new(),
            due: DueSessions::default(),
            is_scheduled: false,
        }
    }

    /// Records that a session was opened or resumed, which counts as a keep-alive.
    pub(crate) fn opened(&mut self, number: SessionNumber, account: AccountId, ttl_ms: u64, now: Instant) {
        self.ended(number);
        let ttl = Duration::from_millis(ttl_ms);
        let due = self.advance_running_time(now) + ttl;
        self.due.insert(account, due, number);
        self.by_number.insert(number, SessionDeadline { account, ttl, due, is_expiring: false });
    }

    /// Records that a session was resumed whose report is not there: that is no keep-alive, and its deadline stays.
    pub(crate) fn resumed_unreported(&mut self, number: SessionNumber, ttl_ms: u64) {
        if let Some(deadline) = self.by_number.get_mut(&number) {
            deadline.ttl = Duration::from_millis(ttl_ms);
        }
    }

    /// Removes an ended session.
    pub(crate) fn ended(&mut self, number: SessionNumber) {
        if let Some(deadline) = self.by_number.remove(&number) {
            self.due.remove(deadline.account, deadline.due, number);
        }
    }

    /// Records a keep-alive of a session.
    pub(crate) fn keep_alive(&mut self, number: SessionNumber, now: Instant) -> Option<KeepAlive> {
        let runs = self.advance_running_time(now);
        let deadline = self.by_number.get_mut(&number)?;
        if deadline.is_expiring && !is_enabled(Mutation::KeepAliveWhileExpiring) {
            return Some(KeepAlive::Expiring);
        }
        let later = runs + deadline.ttl;
        self.due.postpone(deadline.account, deadline.due, later, number);
        deadline.due = later;
        Some(KeepAlive::Accepted(millis(deadline.ttl)))
    }

    /// Returns whether the outcome of an entry that may expire the session is not known yet.
    pub(crate) fn is_expiring(&self, number: SessionNumber) -> bool {
        self.by_number.get(&number).is_some_and(|deadline| deadline.is_expiring)
    }

    /// Returns the time until a session's next keep-alive is due, in milliseconds.
    pub(crate) fn remaining_ms(&self, number: SessionNumber, now: Instant) -> Option<u64> {
        let deadline = self.by_number.get(&number)?;
        Some(millis(deadline.due.saturating_sub(self.running_time_at(now))))
    }

    /// Returns true if there are sessions and the reaper has no scheduled wakeup.
    pub(super) fn needs_schedule(&self) -> bool {
        !self.is_scheduled && !self.due.is_empty()
    }

    /// Returns the time of the next check. Must be called at least every [`MAX_STEP`] while there are sessions, or
    /// running time does not advance.
    pub(crate) fn next_check(&mut self, now: Instant) -> Option<Instant> {
        self.is_scheduled = !self.due.is_empty();
        let due = self.due.first()?;
        Some(now + due.saturating_sub(self.running_time_at(now)).min(MAX_STEP / 2))
    }

    /// Excludes the time since the last check from running time: the leader could not have answered keep-alives.
    pub(crate) fn suspend(&mut self, now: Instant) {
        self.advanced_at = self.advanced_at.max(now);
    }

    /// Takes up to `at_most` sessions whose keep-alives are overdue, one of each account in turn. They are expiring
    /// until [`HeartbeatTable::expiry_resolved`].
    pub(crate) fn take_expired(&mut self, now: Instant, at_most: usize) -> Vec<SessionNumber> {
        let runs = self.advance_running_time(now);
        let silent = self.due.take(runs, at_most);
        for number in &silent {
            if let Some(deadline) = self.by_number.get_mut(number) {
                deadline.is_expiring = true;
            }
        }
        silent
    }

    /// Returns the expiring sessions whose outcome no task awaits, because the reaper was restarted.
    pub(crate) fn expiring(&self) -> Vec<SessionNumber> {
        let numbers = self.by_number.iter().filter(|(_, deadline)| deadline.is_expiring);
        let mut numbers: Vec<SessionNumber> = numbers.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Records that the outcome for these sessions is known. Sessions still present were resumed, or the expiry had no
    /// effect.
    pub(crate) fn expiry_resolved(&mut self, numbers: &[SessionNumber], now: Instant) {
        let runs = self.advance_running_time(now);
        for number in numbers {
            if let Some(deadline) = self.by_number.get_mut(number)
                && deadline.is_expiring
            {
                deadline.is_expiring = false;
                deadline.due = runs;
                self.due.insert(deadline.account, runs, *number);
            }
        }
    }

    fn advance_running_time(&mut self, now: Instant) -> Duration {
        self.running_time = self.running_time_at(now);
        self.advanced_at = self.advanced_at.max(now);
        self.running_time
    }

    fn running_time_at(&self, now: Instant) -> Duration {
        self.running_time + now.saturating_duration_since(self.advanced_at).min(MAX_STEP)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: AccountId = AccountId(7);

    /// Checks as often as the reaper does.
    fn run_for(sessions: &mut HeartbeatTable, from: Instant, ms: u64) -> (Instant, Vec<SessionNumber>) {
        let mut silent = Vec::new();
        let mut now = from;
        for _ in 0..ms / 50 {
            now += Duration::from_millis(50);
            silent.extend(sessions.take_expired(now, 10));
        }
        (now, silent)
    }

    #[tokio::test]
    async fn only_the_silent_are_taken_and_a_judged_one_gives_no_sign_of_life() {
        let start = Instant::now();
        let mut sessions = HeartbeatTable::new(start);
        sessions.opened(1, ACCOUNT, 1_000, start);
        sessions.opened(2, ACCOUNT, 1_000, start);
        let (now, silent) = run_for(&mut sessions, start, 900);
        assert_eq!(silent, Vec::<SessionNumber>::new());
        assert_eq!(sessions.keep_alive(1, now), Some(KeepAlive::Accepted(1_000)));
        let (now, silent) = run_for(&mut sessions, now, 150);
        assert_eq!(silent, [2]);
        assert_eq!(sessions.keep_alive(2, now), Some(KeepAlive::Expiring));
        sessions.expiry_resolved(&[2], now);
        assert_eq!(sessions.keep_alive(2, now), Some(KeepAlive::Accepted(1_000)));
        sessions.ended(2);
        assert_eq!(sessions.keep_alive(2, now), None);
    }

    #[tokio::test]
    async fn a_resume_without_a_report_puts_nothing_off() {
        let start = Instant::now();
        let mut sessions = HeartbeatTable::new(start);
        sessions.opened(1, ACCOUNT, 1_000, start);
        let (now, _) = run_for(&mut sessions, start, 900);
        sessions.resumed_unreported(1, 2_000);
        sessions.resumed_unreported(2, 2_000);
        assert_eq!(sessions.remaining_ms(1, now), Some(100));
        assert_eq!(sessions.keep_alive(1, now), Some(KeepAlive::Accepted(2_000)), "its time to live is the new one");
        sessions.resumed_unreported(1, 1_000);
        let (_, silent) = run_for(&mut sessions, now, 2_000);
        assert_eq!(silent, [1]);
        assert_eq!(sessions.keep_alive(2, now), None);
    }

    #[tokio::test]
    async fn an_account_whose_sessions_all_fall_silent_delays_no_other() {
        let start = Instant::now();
        let mut sessions = HeartbeatTable::new(start);
        (0..10_000).for_each(|number| sessions.opened(number, ACCOUNT, 1_000, start));
        sessions.opened(20_000, AccountId(8), 1_100, start);
        for step in 1..=4 {
            assert!(sessions.next_check(start + MAX_STEP * step).is_some());
            sessions.advance_running_time(start + MAX_STEP * step);
        }
        let silent = sessions.take_expired(start + MAX_STEP * 5, 1_000);
        assert_eq!((silent.len(), silent.get(1)), (1_000, Some(&20_000)), "it is among the first");
        assert_eq!(sessions.keep_alive(20_000, start + MAX_STEP * 5), Some(KeepAlive::Expiring));
    }

    #[tokio::test]
    async fn while_no_sign_of_life_could_be_answered_time_stands_still() {
        let start = Instant::now();
        let mut sessions = HeartbeatTable::new(start);
        sessions.opened(1, ACCOUNT, 1_000, start);
        let (mut now, _) = run_for(&mut sessions, start, 600);
        for _ in 0..50 {
            now += Duration::from_millis(100);
            sessions.suspend(now);
        }
        assert_eq!(sessions.remaining_ms(1, now), Some(400));
        let (_, silent) = run_for(&mut sessions, now, 400);
        assert_eq!(silent, [1]);
    }

    #[tokio::test]
    async fn a_pause_of_the_leader_is_added_to_every_allowance() {
        let start = Instant::now();
        let mut sessions = HeartbeatTable::new(start);
        sessions.opened(1, ACCOUNT, 1_000, start);
        let (now, _) = run_for(&mut sessions, start, 500);
        let woken = now + Duration::from_secs(60);
        assert_eq!(sessions.take_expired(woken, 10), Vec::<SessionNumber>::new());
        assert_eq!(sessions.remaining_ms(1, woken), Some(250));
        let (_, silent) = run_for(&mut sessions, woken, 250);
        assert_eq!(silent, [1]);
    }
}
