//! Holds end without a visitor: when the next deadline passes, the leader proposes an entry whose stamp is past it; and
//! one after the other while there is more to do than an entry does.

use holdfast_replication::ShardClock;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::LeaderContext;
use crate::machine::ShardSignals;

/// How long an entry may take before the duty looks again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Between attempts while no entry can be written.
const RETRY_DELAY: Duration = Duration::from_millis(20);
/// Between entries for deadlines that come close to one another.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref group, ref machine, leads, .. } = leading;
    let mut signals = machine.signals();
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
        match group.propose_clock_tick(leads.term, Instant::now() + ENTRY_TIMEOUT).await {
            Ok(()) => {}
            // Also when this replica does not lead just now: it may have lost its quorum for a while without another
            // leader, and the duty ends with the leadership, not before.
            Err(error) => {
                tracing::debug!(shard = group.shard(), %error, "can't end what is due yet");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// When the next entry is due. What the last one left undone waits for nothing.
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
