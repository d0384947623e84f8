//! Delivers the shard's outbox messages: in order for each destination, repeated until confirmed. Destinations do not
//! wait for one another, so an unavailable destination delays only its own messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// Messages whose destinations are looked up at once.
const READ_BATCH: usize = 1_024;
/// Messages that are delivered to one destination, one after the other, before they are confirmed.
const DELIVERY_BATCH: usize = 64;
/// Delay before the next attempt at a destination that did not confirm, and at confirmations that are not logged.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Timeout of the entry with the confirmations.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Result of delivering to one destination.
struct DeliveryResult {
    destination: String,
    confirmed: Vec<u64>,
    /// The first message that is left.
    next: u64,
}

/// The numbers of pending messages by destination, in order.
#[derive(Default)]
struct DestinationQueues {
    /// The last message that was read from the outbox.
    last_read: u64,
    queues: BTreeMap<String, VecDeque<u64>>,
    /// Destinations with a delivery under way.
    busy: BTreeSet<String>,
}

impl DestinationQueues {
    /// Adds the messages that were sent since.
    fn read(&mut self, machine: &ShardMachine, delivery: &OutboxSender) {
        loop {
            let messages = machine.outbox_after(self.last_read, READ_BATCH);
            let is_last = messages.len() < READ_BATCH;
            for (number, application, shard_key) in messages {
                self.push(number, delivery.destination(application, shard_key));
            }
            if is_last {
                return;
            }
        }
    }

    fn push(&mut self, number: u64, destination: &str) {
        self.last_read = number;
        match self.queues.get_mut(destination) {
            Some(queue) => queue.push_back(number),
            None => {
                self.queues.insert(destination.to_owned(), VecDeque::from([number]));
            }
        }
    }

    /// Starts a delivery to every destination that has messages and no delivery under way.
    fn start_deliveries(&mut self) -> Vec<(String, Vec<u64>)> {
        let idle = self.queues.iter().filter(|(destination, _)| !self.busy.contains(*destination));
        let started: Vec<(String, Vec<u64>)> = idle
            .map(|(destination, queue)| (destination.clone(), queue.iter().take(DELIVERY_BATCH).copied().collect()))
            .collect();
        self.busy.extend(started.iter().map(|(destination, _)| destination.clone()));
        started
    }

    /// Ends a delivery that leaves the messages from `next` on.
    fn finish_delivery(&mut self, destination: &str, next: u64) {
        self.busy.remove(destination);
        let Some(queue) = self.queues.get_mut(destination) else { return };
        while queue.front().is_some_and(|number| *number < next) {
            queue.pop_front();
        }
        if queue.is_empty() {
            self.queues.remove(destination);
        }
    }
}

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, ref outbox_sender, leads, .. } = leading;
    let mut signals = shard.machine.signals();
    let mut queues = DestinationQueues::default();
    // Delivered, but the confirmation is not in the log yet.
    let mut unlogged = BTreeSet::new();
    let mut under_way = FuturesUnordered::new();
    loop {
        signals.borrow_and_update();
        queues.read(&shard.machine, outbox_sender);
        for (destination, numbers) in queues.start_deliveries() {
            let messages = shard.machine.outbox_messages(&numbers);
            under_way.push(deliver(outbox_sender, destination, numbers, messages));
        }
        tokio::select! {
            changed = signals.changed() => if changed.is_err() { return },
            Some(delivered) = under_way.next(), if !under_way.is_empty() => {
                queues.finish_delivery(&delivered.destination, delivered.next);
                unlogged.extend(delivered.confirmed);
                if confirm(shard, leads, &unlogged).await {
                    unlogged.clear();
                }
            }
            () = sleep(RETRY_DELAY), if !unlogged.is_empty() => {
                if confirm(shard, leads, &unlogged).await {
                    unlogged.clear();
                }
            }
        }
    }
}

/// Delivers until the first unconfirmed message: a later one must not overtake it. `messages` are the messages of the
/// numbers that are still pending; `None` while there is no state.
async fn deliver(
    delivery: &OutboxSender,
    destination: String,
    numbers: Vec<u64>,
    messages: Option<Vec<(u64, OutboxMessage)>>,
) -> DeliveryResult {
    let Some(messages) = messages else {
        sleep(RETRY_DELAY).await;
        return DeliveryResult { destination, confirmed: Vec::new(), next: 0 };
    };
    let mut confirmed = Vec::with_capacity(messages.len());
    for (number, message) in messages {
        if !delivery.deliver(&message).await {
            sleep(RETRY_DELAY).await;
            return DeliveryResult { destination, confirmed, next: number };
        }
        confirmed.push(number);
    }
    let next = numbers.last().map_or(0, |last| last.saturating_add(1));
    DeliveryResult { destination, confirmed, next }
}

async fn confirm(shard: &ShardReplica, leads: Leadership, numbers: &BTreeSet<u64>) -> bool {
    if numbers.is_empty() {
        return true;
    }
    let command = Command::OutboxConfirm { numbers: numbers.iter().copied().collect() };
    let bytes = Bytes::from(codec::encode(&command));
    let result = shard.propose(leads.term, bytes, Instant::now() + ENTRY_TIMEOUT).await;
    if let Err(error) = &result {
        tracing::debug!(shard = shard.id, %error, "outbox confirmation failed");
    }
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(queues: &mut DestinationQueues) -> Vec<(String, usize, u64)> {
        let deliveries = queues.start_deliveries().into_iter();
        deliveries.map(|(destination, numbers)| (destination, numbers.len(), numbers[0])).collect()
    }

    #[test]
    fn a_destination_that_is_down_holds_up_no_other() {
        let mut queues = DestinationQueues::default();
        (1..=3_000).for_each(|number| queues.push(number, "down"));
        queues.push(3_001, "up");
        assert_eq!(queues.last_read, 3_001);
        assert_eq!(started(&mut queues), [("down".to_owned(), 64, 1), ("up".to_owned(), 1, 3_001)]);
        queues.finish_delivery("up", 3_002);
        queues.push(3_002, "up");
        assert_eq!(started(&mut queues), [("up".to_owned(), 1, 3_002)], "the other delivery is under way");
        queues.finish_delivery("down", 1);
        assert_eq!(started(&mut queues), [("down".to_owned(), 64, 1)], "nothing was confirmed");
    }

    #[test]
    fn messages_of_a_destination_stay_in_order() {
        let mut queues = DestinationQueues::default();
        (1..=200).for_each(|number| queues.push(number, if number % 2 == 0 { "even" } else { "odd" }));
        let mut delivered: Vec<u64> = Vec::new();
        loop {
            let deliveries = queues.start_deliveries();
            if deliveries.is_empty() {
                break;
            }
            for (destination, numbers) in deliveries {
                // The last of a batch fails once, unless it is the only one.
                let done = numbers.len().saturating_sub(1).max(1);
                delivered.extend(numbers[..done].iter().filter(|number| *number % 2 == 0));
                queues.finish_delivery(&destination, numbers.get(done).map_or(numbers[done - 1] + 1, |next| *next));
            }
        }
        assert_eq!(delivered, (1..=100).map(|half| half * 2).collect::<Vec<u64>>());
        assert!(queues.queues.is_empty() && queues.busy.is_empty());
    }
}
