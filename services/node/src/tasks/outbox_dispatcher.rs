//! Delivers the shard's outbox messages: in order for each destination, repeated until confirmed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::{Command, codec};
use holdfast_replication::Leadership;
use tokio::time::{Duration, Instant, sleep};

use super::LeaderContext;
use crate::machine::ShardMachine;
use crate::outbox_sender::OutboxSender;
use crate::replica::ShardReplica;

/// Messages examined per pass.
const MAX_BATCH: usize = 1_024;
/// Delay before the next attempt at a destination that did not confirm.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Timeout of the entry with the confirmations.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of delivering to one destination.
struct DeliveryResult {
    destination: String,
    confirmed: Vec<u64>,
}

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, ref outbox_sender, leads } = leading;
    let mut signals = shard.machine.signals();
    let mut busy = BTreeSet::new();
    // Delivered, but the confirmation is not in the log yet.
    let mut unlogged = BTreeSet::new();
    let mut under_way = FuturesUnordered::new();
    loop {
        signals.borrow_and_update();
        for (destination, messages) in pending(&shard.machine, outbox_sender, &unlogged) {
            if busy.insert(destination.clone()) {
                under_way.push(deliver(outbox_sender, destination, messages));
            }
        }
        tokio::select! {
            changed = signals.changed() => if changed.is_err() { return },
            Some(delivered) = under_way.next(), if !under_way.is_empty() => {
                busy.remove(&delivered.destination);
                unlogged.extend(delivered.confirmed);
                if confirm(shard, leads, &unlogged).await {
                    unlogged.clear();
                }
            }
        }
    }
}

/// Returns pending messages by destination, in order.
fn pending(
    machine: &ShardMachine,
    delivery: &OutboxSender,
    unlogged: &BTreeSet<u64>,
) -> BTreeMap<String, Vec<(u64, OutboxMessage)>> {
    let mut by_destination: BTreeMap<String, Vec<(u64, OutboxMessage)>> = BTreeMap::new();
    for (number, message) in machine.outbox(MAX_BATCH) {
        if !unlogged.contains(&number) {
            by_destination.entry(delivery.destination(&message)).or_default().push((number, message));
        }
    }
    by_destination
}

/// Delivers until the first unconfirmed message: a later one must not overtake it.
async fn deliver(delivery: &OutboxSender, destination: String, messages: Vec<(u64, OutboxMessage)>) -> DeliveryResult {
    let mut confirmed = Vec::with_capacity(messages.len());
    for (number, message) in messages {
        if !delivery.deliver(&message).await {
            sleep(RETRY_DELAY).await;
            break;
        }
        confirmed.push(number);
    }
    DeliveryResult { destination, confirmed }
}

async fn confirm(shard: &ShardReplica, leads: Leadership, numbers: &BTreeSet<u64>) -> bool {
    if numbers.is_empty() {
        return true;
    }
    let command = Command::OutboxConfirm { numbers: numbers.iter().copied().collect() };
    let bytes = Bytes::from(codec::encode(&command));
    let result = shard.propose(leads.term, bytes, Instant::now() + ENTRY_TIMEOUT).await;
    if let Err(error) = &result {
        tracing::debug!(shard = shard.id, %error, "can't confirm outbox messages yet");
    }
    result.is_ok()
}
