//! Outbound requests queued for one peer node.
//!
//! Heartbeats, votes and transfers maintain the leaderships of all groups; they are small and go first. The appends of
//! all groups follow round-robin, so that a busy group delays the others by one append each.

use std::collections::{HashMap, VecDeque};

use holdfast_proto::internal::Kind;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::request::OutboundRequest;

/// Queued heartbeats, votes and transfers; further ones fail at once, and openraft retries.
const MAX_QUEUED_URGENT: usize = 4_096;
/// Queued appends of all groups. Each group limits its own (see `append_pipeline`), so only hundreds of busy groups
/// reach this.
const MAX_QUEUED_APPENDS: usize = 4_096;

/// Requests in sending order.
#[derive(Default)]
pub(crate) struct SendQueue {
    queues: Mutex<Queues>,
    filled: Notify,
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<OutboundRequest>,
    /// By sending replica; no queue is empty.
    appends: HashMap<u64, VecDeque<OutboundRequest>>,
    /// The order in which replicas send their next append.
    round_robin: VecDeque<u64>,
    appends_len: usize,
    /// No consumer is left.
    is_closed: bool,
}

impl SendQueue {
    /// Adds a request; returns it if the queue is full or closed.
    pub(crate) fn push(&self, asked: OutboundRequest) -> Result<(), OutboundRequest> {
        self.queues.lock().push(asked)?;
        self.filled.notify_one();
        Ok(())
    }

    /// Drops the queued requests and rejects further ones.
    pub(crate) fn close(&self) {
        *self.queues.lock() = Queues { is_closed: true, ..Queues::default() };
    }

    /// Waits until there is a request to send. For a single consumer.
    pub(crate) async fn wait_nonempty(&self) {
        while self.queues.lock().is_empty() {
            self.filled.notified().await;
        }
    }

    /// Takes the next frame's requests: at most `messages`, and no further one after `bytes`.
    pub(crate) fn take_batch(&self, messages: usize, bytes: usize) -> Vec<OutboundRequest> {
        let mut waiting = self.queues.lock();
        let mut taken = Vec::new();
        let mut size = 0;
        while taken.len() < messages && size < bytes {
            let Some(asked) = waiting.pop() else { break };
            size += asked.request.body.len();
            taken.push(asked);
        }
        taken
    }
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.round_robin.is_empty()
    }

    fn push(&mut self, asked: OutboundRequest) -> Result<(), OutboundRequest> {
        if self.is_closed {
            return Err(asked);
        }
        let group = asked.request.from;
        if asked.request.kind != Kind::Append {
            if self.urgent.len() >= MAX_QUEUED_URGENT {
                return Err(asked);
            }
            self.urgent.push_back(asked);
            return Ok(());
        }
        if self.appends_len >= MAX_QUEUED_APPENDS {
            return Err(asked);
        }
        self.appends_len += 1;
        let of_group = self.appends.entry(group).or_default();
        if of_group.is_empty() {
            self.round_robin.push_back(group);
        }
        of_group.push_back(asked);
        Ok(())
    }

    fn pop(&mut self) -> Option<OutboundRequest> {
        if let Some(urgent) = self.urgent.pop_front() {
            return Some(urgent);
        }
        let group = self.round_robin.pop_front()?;
        let of_group = self.appends.get_mut(&group)?;
        let asked = of_group.pop_front();
        self.appends_len -= 1;
        if of_group.is_empty() {
            self.appends.remove(&group);
        } else {
            self.round_robin.push_back(group);
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::super::request::PeerRequest;
    use super::*;

    fn request(from: u64, kind: Kind, bytes: usize) -> OutboundRequest {
        let body = Bytes::from(vec![0; bytes]).into();
        let request = PeerRequest { from, to: 1, kind, stream: 0, clock_ms: 0, body };
        OutboundRequest { request, responder: oneshot::channel().0, budget: None }
    }

    fn put(queue: &SendQueue, from: u64, kind: Kind, bytes: usize) -> bool {
        queue.push(request(from, kind, bytes)).is_ok()
    }

    /// Returns sender and kind of each request in the next frame.
    fn frame(queue: &SendQueue, messages: usize, bytes: usize) -> Vec<(u64, Kind)> {
        queue.take_batch(messages, bytes).into_iter().map(|asked| (asked.request.from, asked.request.kind)).collect()
    }

    #[test]
    fn what_keeps_leaders_goes_first_however_many_appends_wait() {
        let queue = SendQueue::default();
        while put(&queue, 1, Kind::Append, 1_000) {}
        for kind in [Kind::Heartbeat, Kind::Vote, Kind::PreVote, Kind::TransferLeader] {
            assert!(put(&queue, 2, kind, 100), "appends take none of its room");
        }
        let first = frame(&queue, 5, 1_000_000);
        let urgent = [Kind::Heartbeat, Kind::Vote, Kind::PreVote, Kind::TransferLeader];
        assert_eq!(first[..4], urgent.map(|kind| (2, kind)));
        assert_eq!(first[4], (1, Kind::Append));
    }

    #[test]
    fn groups_take_turns_and_each_keeps_its_own_order() {
        let queue = SendQueue::default();
        for bytes in 1..=4 {
            assert!(put(&queue, 7, Kind::Append, bytes));
        }
        for group in [8, 9] {
            assert!(put(&queue, group, Kind::Append, 10));
        }
        let order: Vec<(u64, usize)> =
            queue.take_batch(10, 1_000).iter().map(|asked| (asked.request.from, asked.request.body.len())).collect();
        assert_eq!(order, [(7, 1), (8, 10), (9, 10), (7, 2), (7, 3), (7, 4)]);
        assert!(queue.take_batch(10, 1_000).is_empty() && queue.wait_nonempty().now_or_never().is_none());
    }

    #[test]
    fn a_frame_ends_with_the_message_that_fills_it() {
        let queue = SendQueue::default();
        for _ in 0..4 {
            assert!(put(&queue, 7, Kind::Append, 400));
        }
        assert_eq!([frame(&queue, 9, 500).len(), frame(&queue, 1, 500).len(), frame(&queue, 9, 1).len()], [2, 1, 1]);
    }

    #[tokio::test]
    async fn what_comes_while_nobody_waits_is_found() {
        let queue = SendQueue::default();
        assert!(put(&queue, 7, Kind::Heartbeat, 1));
        queue.wait_nonempty().await;
        assert_eq!(frame(&queue, 9, 9).len(), 1);
        // The notification concerned a request that was already taken.
        assert!(queue.wait_nonempty().now_or_never().is_none());
    }

    #[test]
    fn more_than_fits_is_given_back() {
        let queue = SendQueue::default();
        for kind in [Kind::Heartbeat, Kind::Append] {
            let taken = (0..10_000).take_while(|_| put(&queue, 1, kind, 1)).count();
            assert_eq!(taken, 4_096);
        }
    }

    #[test]
    fn who_waits_in_a_queue_that_closes_is_told() {
        let queue = SendQueue::default();
        let (responder, mut receiver) = oneshot::channel();
        assert!(queue.push(OutboundRequest { responder, ..request(1, Kind::Append, 1) }).is_ok());
        queue.close();
        assert_eq!(receiver.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
        assert!(!put(&queue, 1, Kind::Heartbeat, 1));
    }
}
