//! Holds end without a visitor: when the next deadline passes, the leader proposes an entry whose stamp is past it.

use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::Leading;

/// How long an entry may take before the duty looks again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Between attempts while no entry can be written.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs for one leadership.
pub(super) async fn run(leading: Leading) {
    let Leading { ref group, ref machine, leads, .. } = leading;
    let mut signals = machine.signals();
    loop {
        let next = signals.borrow_and_update().next_deadline_ms;
        let Some(deadline_ms) = next else {
            if signals.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            () = sleep_until(leads.clock.instant_of(deadline_ms)) => {}
            changed = signals.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
        }
        match group.tick(leads.term, Instant::now() + ENTRY_TIMEOUT).await {
            Ok(()) => {}
            // Also when this replica does not lead just now: it may have lost its quorum for a while without another
            // leader, and the duty ends with the leadership, not before.
            Err(error) => {
                tracing::debug!(shard = group.shard(), %error, "can't end what is due yet");
                sleep(PAUSE).await;
            }
        }
    }
}
