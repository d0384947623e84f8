//! Ends due holds without a request: when the next deadline passes, the leader proposes an entry with a later time.
//! While more work is due than one entry handles, it proposes further entries. For deadlines, all shards of a group
//! propose in common rounds, so that their sections share an entry and a group with many shards writes no more entries.

use holdfast_replication::ShardClock;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::LeaderContext;
use crate::machine::ShardSignals;

/// Timeout of an entry, after which the task checks again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts while no entry can be written.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Shortest interval between two rounds of a group.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The rounds in which the shards of a group propose entries for their deadlines, during one leadership.
#[derive(Debug, Default)]
pub(super) struct TickRounds {
    /// When the latest round began.
    latest: Mutex<Option<Instant>>,
}

impl TickRounds {
    /// Returns the time of the next round that may end holds and waits due at `deadline`.
    fn next(&self, deadline: Instant) -> Instant {
        self.latest.lock().map_or(deadline, |began| deadline.max(began + MIN_INTERVAL))
    }

    /// Takes part in the round that was to be at this time, which has come. Returns false if another shard began one so
    /// shortly before that the next one is later.
    fn join(&self, at: Instant, now: Instant) -> bool {
        let mut latest = self.latest.lock();
        match *latest {
            Some(began) if at <= began => true,
            Some(began) if now < began + MIN_INTERVAL => false,
            _ => {
                *latest = Some(now);
                true
            }
        }
    }
}

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, ref tick_rounds, leads, .. } = leading;
    let mut signals = shard.machine.signals();
    loop {
        let seen = *signals.borrow_and_update();
        let Some(next) = next_entry(seen, &leads.clock, tick_rounds) else {
            if signals.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            // Every section of a busy shard changes its signals: they must not keep it out of a round that has come.
            biased;
            () = sleep_until(next) => {}
            changed = signals.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
        }
        let now = Instant::now();
        // A deadline that becomes later wakes nobody.
        let due = signals.borrow().next_deadline_ms.map(|due_ms| leads.clock.instant_of(due_ms));
        if due.is_none_or(|due| due > now) || (!seen.has_backlog && !tick_rounds.join(next, now)) {
            continue;
        }
        match shard.propose_clock_tick(leads.term, Instant::now() + ENTRY_TIMEOUT).await {
            Ok(()) => {}
            // Also when this replica does not lead at the moment: it may lack a quorum for a while without being
            // replaced, and this task ends only with the leadership.
            Err(error) => {
                tracing::debug!(shard = shard.id, %error, "clock tick failed");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Returns the time of the next entry. A backlog does not wait for a round.
fn next_entry(seen: ShardSignals, clock: &ShardClock, rounds: &TickRounds) -> Option<Instant> {
    let deadline = clock.instant_of(seen.next_deadline_ms?);
    Some(if seen.has_backlog { deadline } else { rounds.next(deadline) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_for_deadlines_keep_apart_and_those_for_what_is_left_do_not() {
        let (now, clock, rounds) = (Instant::now(), ShardClock::start(1_000), TickRounds::default());
        let due =
            |next_deadline_ms| ShardSignals { next_deadline_ms: Some(next_deadline_ms), ..ShardSignals::default() };
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!(next_entry(ShardSignals::default(), &clock, &rounds), None);
        assert_eq!(next_entry(due(1_002), &clock, &rounds), Some(after(2)));
        assert!(rounds.join(now, now));
        assert_eq!(next_entry(due(1_002), &clock, &rounds), Some(after(10)));
        assert_eq!(next_entry(due(1_050), &clock, &rounds), Some(after(50)));
        let behind = ShardSignals { has_backlog: true, ..due(1_000) };
        assert_eq!(next_entry(behind, &clock, &rounds), Some(now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_shards_of_a_group_end_what_is_due_in_common_rounds() {
        let (start, rounds) = (Instant::now(), TickRounds::default());
        // A thousand shards, each with a deadline in each of a hundred milliseconds.
        let mut waiting = vec![start; 1_000];
        let mut times = Vec::new();
        for ms in 0..100 {
            let now = start + Duration::from_millis(ms);
            for at in &mut waiting {
                if *at <= now {
                    times.extend(rounds.join(*at, now).then_some(now));
                    *at = rounds.next(now);
                }
            }
        }
        assert_eq!(times.len(), 10_000, "each shard has its turn in each round");
        times.dedup();
        assert_eq!(times.len(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_that_is_late_for_its_round_does_not_wait_for_another() {
        let (start, rounds) = (Instant::now(), TickRounds::default());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(rounds.join(at(20), at(20)));
        assert!(rounds.join(at(10), at(22)));
        assert!(!rounds.join(at(22), at(22)), "it has a later deadline");
        assert_eq!(rounds.next(at(22)), at(30));
        assert!(rounds.join(at(30), at(31)) && rounds.join(at(30), at(35)));
        assert_eq!(rounds.next(at(36)), at(41));
    }
}
