//! A leader that is cut off sends those who wait away, so that they find the other side.

use tokio::time::{Duration, sleep};

use super::Leading;

/// How often the quorum is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(500);

/// Runs for one leadership.
pub(super) async fn run(leading: Leading) {
    let Leading { ref group, ref machine, leads, .. } = leading;
    loop {
        let mut changed = std::pin::pin!(machine.table_changed().notified());
        changed.as_mut().enable();
        if !machine.look_as_leader(leads.term, |_, table| table.look_after_callers()).unwrap_or(false) {
            changed.await;
            continue;
        }
        sleep(LOOK).await;
        if !group.hears_quorum(leads.term) {
            machine.as_leader(leads.term, |_, table| table.send_callers_away());
        }
    }
}
