//! A bounded queue that several accounts share fairly.
//!
//! Purpose: each account has a lane, first in, first out. Lanes are served by start-time fair queueing (Goyal, Vin and
//! Cheng, 1996): every item has a cost, each lane with items gets an equal share of what is served, and a lane that is
//! alone gets all of it.
//!
//! Invariant: between two lanes that both have items, the costs served differ by no more than the largest cost of one item.
//! A lane that was empty has no credit from that time, and a lane that was served ahead of others owes it when it
//! returns while they still wait.
//!
//! Deliberately unknown here: what an item is, what its cost measures, and how to wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Items in all lanes.
    pub items: usize,
    /// Bytes in all lanes.
    pub bytes: usize,
    /// Items in one lane.
    pub lane_items: usize,
    /// Bytes in one lane.
    pub lane_bytes: usize,
}

/// Why an item can't be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The lane is full.
    Lane,
    /// The queue is full, and no lane is longer than this one.
    Queue,
}

/// An item that left the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Served<T> {
    /// The item.
    pub item: T,
    /// Its cost.
    pub cost: u64,
    /// Its bytes.
    pub bytes: usize,
}

struct Lane<T> {
    items: VecDeque<Served<T>>,
    bytes: usize,
    /// Virtual time at which the first item starts, or, of an empty lane, at which the last one ended.
    start: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), bytes: 0, start: 0 }
    }
}

/// A queue with a lane for each key. Push and pop take O(log lanes).
pub struct FairQueue<K, T> {
    limits: QueueLimits,
    lanes: HashMap<K, Lane<T>>,
    /// Lanes with items, by the virtual time at which their first item starts.
    ready: BTreeSet<(u64, K)>,
    /// The virtual time: the start of the last item that was served, or, of an empty queue, the latest end of any.
    now: u64,
    /// The latest end of an item that was served.
    latest_end: u64,
    items: usize,
    bytes: usize,
}

impl<K: Copy + Ord + Hash, T> FairQueue<K, T> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self { limits, lanes: HashMap::new(), ready: BTreeSet::new(), now: 0, latest_end: 0, items: 0, bytes: 0 }
    }

    /// Items in it.
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Adds an item to the end of a lane. When the queue has all the items that it may have and another lane has more of
    /// them, that lane's newest item makes room and is returned.
    ///
    /// # Errors
    /// When the lane is full, or the queue is and no lane is longer. The item is dropped.
    pub fn push(&mut self, key: K, cost: u64, bytes: usize, item: T) -> Result<Option<T>, Full> {
        let lane = self.lanes.get(&key);
        let (count, used) = lane.map_or((0, 0), |lane| (lane.items.len(), lane.bytes));
        if count >= self.limits.lane_items || used + bytes > self.limits.lane_bytes {
            return Err(Full::Lane);
        }
        if self.bytes + bytes > self.limits.bytes {
            return Err(Full::Queue);
        }
        let mut evicted = None;
        if self.items >= self.limits.items {
            evicted = Some(self.evict_from_longest(count + 1).ok_or(Full::Queue)?);
        }
        let now = self.now;
        let lane = self.lanes.entry(key).or_default();
        if lane.items.is_empty() {
            lane.start = lane.start.max(now);
            self.ready.insert((lane.start, key));
        }
        lane.items.push_back(Served { item, cost: cost.max(1), bytes });
        lane.bytes += bytes;
        self.items += 1;
        self.bytes += bytes;
        Ok(evicted)
    }

    /// The cost and the bytes of what [`Self::pop`] returns next.
    pub fn peek(&self) -> Option<(u64, usize)> {
        let (_, key) = self.ready.first()?;
        self.lanes[key].items.front().map(|next| (next.cost, next.bytes))
    }

    /// Takes the next item of the lane that has been served least.
    pub fn pop(&mut self) -> Option<Served<T>> {
        let (start, key) = self.ready.pop_first()?;
        let lane = self.lanes.get_mut(&key)?;
        let served = lane.items.pop_front()?;
        self.now = start;
        lane.start = start.saturating_add(served.cost);
        self.latest_end = self.latest_end.max(lane.start);
        lane.bytes -= served.bytes;
        if !lane.items.is_empty() {
            self.ready.insert((lane.start, key));
        }
        self.items -= 1;
        self.bytes -= served.bytes;
        if self.items == 0 {
            // Nobody waited for anybody, so nobody owes anything.
            self.now = self.latest_end;
        }
        self.forget_idle_lanes();
        Some(served)
    }

    /// Drops the newest item of the lane with the most, if it has more than `least`. Called only while the queue is full;
    /// looks at every lane with items.
    fn evict_from_longest(&mut self, least: usize) -> Option<T> {
        let longest = self.ready.iter().map(|(_, key)| *key).max_by_key(|key| self.lanes[key].items.len())?;
        let lane = self.lanes.get_mut(&longest)?;
        if lane.items.len() <= least {
            return None;
        }
        let newest = lane.items.pop_back()?;
        lane.bytes -= newest.bytes;
        self.items -= 1;
        self.bytes -= newest.bytes;
        Some(newest.item)
    }

    /// Drops empty lanes that owe nothing, once there are more of them than of others.
    fn forget_idle_lanes(&mut self) {
        if self.lanes.len() > 2 * self.ready.len() + 64 {
            let now = self.now;
            self.lanes.retain(|_, lane| !lane.items.is_empty() || lane.start > now);
        }
    }
}

#[cfg(test)]
mod tests;
