//! What only a leader does. Each duty begins with a leadership and is dropped with it.

mod callers;
mod expiry;
mod outbox;
mod sessions;
mod waits;

use std::sync::Arc;

use holdfast_replication::Group;

use crate::machine::ShardMachine;
use crate::router::Delivery;

/// Runs the duties of each leadership of this replica, one after the other.
pub(crate) async fn follow(group: Group, machine: Arc<ShardMachine>, delivery: Delivery) {
    let mut leadership = group.leadership();
    loop {
        let Some(leads) = *leadership.borrow_and_update() else {
            if leadership.changed().await.is_err() {
                return;
            }
            continue;
        };
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "leads");
        metrics::counter!("holdfast_leaderships_total").increment(1);
        // The duties end only with the replica; each leadership gets new ones.
        let changed = tokio::select! {
            changed = leadership.changed() => changed,
            () = expiry::run(&group, &machine, leads) => return,
            () = outbox::run(&group, &machine, &delivery, leads) => return,
            () = sessions::run(&group, &machine, leads) => return,
            () = waits::run(&group, &machine, leads) => return,
            () = callers::run(&group, &machine, leads) => return,
        };
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "no longer leads");
        if changed.is_err() {
            return;
        }
    }
}
