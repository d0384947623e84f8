//! Ends due holds without a request: when the next deadline passes, the leader proposes an entry with a later time.
//! While more work is due than one entry handles, it proposes further entries.

use holdfast_replication::ShardClock;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::LeaderContext;
use crate::machine::ShardSignals;

/// Timeout of an entry, after which the task checks again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts while no entry can be written.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Shortest interval between entries for deadlines close to one another.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    let mut signals = shard.machine.signals();
    let mut last = None;
    loop {
        let seen = *signals.borrow_and_update();
        let Some(next) = next_entry(seen, &leads.clock, last) else {
            if signals.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            () = sleep_until(next) => {}
            changed = signals.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
        }
        last = Some(Instant::now());
        match shard.propose_clock_tick(leads.term, Instant::now() + ENTRY_TIMEOUT).await {
            Ok(()) => {}
            // Also when this replica does not lead at the moment: it may lack a quorum for a while without being
            // replaced, and this task ends only with the leadership.
            Err(error) => {
                tracing::debug!(shard = shard.id, %error, "can't end what is due yet");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Returns the time of the next entry. A backlog does not wait for the minimum interval.
fn next_entry(seen: ShardSignals, clock: &ShardClock, last: Option<Instant>) -> Option<Instant> {
    let deadline = clock.instant_of(seen.next_deadline_ms?);
    let earliest = last.filter(|_| !seen.has_backlog).map(|last| last + MIN_INTERVAL);
    Some(earliest.map_or(deadline, |earliest| deadline.max(earliest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_for_deadlines_keep_apart_and_those_for_what_is_left_do_not() {
        let (now, clock) = (Instant::now(), ShardClock::start(1_000));
        let due =
            |next_deadline_ms| ShardSignals { next_deadline_ms: Some(next_deadline_ms), ..ShardSignals::default() };
        let after = |ms| now + Duration::from_millis(ms);
        assert_eq!(next_entry(ShardSignals::default(), &clock, None), None);
        assert_eq!(next_entry(due(1_002), &clock, None), Some(after(2)));
        assert_eq!(next_entry(due(1_002), &clock, Some(now)), Some(after(10)));
        assert_eq!(next_entry(due(1_050), &clock, Some(now)), Some(after(50)));
        let behind = ShardSignals { has_backlog: true, ..due(1_000) };
        assert_eq!(next_entry(behind, &clock, Some(now)), Some(now));
    }
}
