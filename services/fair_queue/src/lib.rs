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

/// Bounds of a queue, in whatever measures the items' size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Size of all lanes together.
    pub total: usize,
    /// Size of one lane.
    pub lane: usize,
}

/// Why an item can't be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The lane is full.
    Lane,
    /// The queue is full, and larger lanes have too little to give.
    Queue,
}

/// What becomes of the next item of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is served, and its lane is charged with this cost.
    Serve(u64),
    /// It is dropped, and costs nothing.
    Drop,
    /// Its lane is passed over from now on; it is the first again the next time.
    PassOver,
    /// Nothing more is served.
    Stop,
}

/// Lanes that one call of [`FairQueue::serve`] passes over; it serves nothing more when there are more of them.
const MAX_PASSED_OVER: usize = 256;

struct Item<T> {
    value: T,
    size: usize,
}

struct Lane<T> {
    items: VecDeque<Item<T>>,
    size: usize,
    /// Virtual time at which the first item starts, or, of an empty lane, at which the last one ended.
    start: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), size: 0, start: 0 }
    }
}

/// A queue with a lane for each key. Push and pop take O(log lanes).
pub struct FairQueue<K, T> {
    limits: QueueLimits,
    lanes: HashMap<K, Lane<T>>,
    /// Lanes with items, by the virtual time at which their first item starts.
    ready: BTreeSet<(u64, K)>,
    /// The same lanes by size.
    by_size: BTreeSet<(usize, K)>,
    /// The virtual time: the start of the last item that was served, or, of an empty queue, the latest end of any.
    now: u64,
    /// The latest end of an item that was served.
    latest_end: u64,
    items: usize,
    size: usize,
    /// With so many lanes, those that are empty and owe nothing are dropped.
    sweep_at: usize,
}

const MIN_SWEEP: usize = 64;

impl<K: Copy + Ord + Hash, T> FairQueue<K, T> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            by_size: BTreeSet::new(),
            now: 0,
            latest_end: 0,
            items: 0,
            size: 0,
            sweep_at: MIN_SWEEP,
        }
    }

    /// Items in it.
    pub fn len(&self) -> usize {
        self.items
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Adds an item to the end of a lane. When the queue is full, the newest items of larger lanes make room and are
    /// returned.
    ///
    /// # Errors
    /// When the lane is full, or the queue is and larger lanes have too little to give. The item is dropped, and no other.
    pub fn push(&mut self, key: K, size: usize, value: T) -> Result<Vec<T>, Full> {
        let own = self.lanes.get(&key).map_or(0, |lane| lane.size);
        if own + size > self.limits.lane {
            return Err(Full::Lane);
        }
        let evicted = self.make_room(own, size)?;
        self.forget_idle_lanes();
        let now = self.now;
        let lane = self.lanes.entry(key).or_default();
        if lane.items.is_empty() {
            lane.start = lane.start.max(now);
            self.ready.insert((lane.start, key));
        }
        lane.items.push_back(Item { value, size });
        self.items += 1;
        self.resize(key, own, own + size);
        Ok(evicted)
    }

    /// The next item and its lane: the first of the lane that has been served least.
    fn peek(&self) -> Option<(K, &T)> {
        let (_, key) = self.ready.first()?;
        self.lanes[key].items.front().map(|item| (*key, &item.value))
    }

    /// Takes the next item, and charges its lane with what it costs; nothing for one that is not to be served after all.
    fn pop(&mut self, cost: u64) -> Option<T> {
        let (start, key) = self.ready.pop_first()?;
        let lane = self.lanes.get_mut(&key)?;
        let item = lane.items.pop_front()?;
        let size = lane.size;
        self.now = start;
        lane.start = start.saturating_add(cost);
        self.latest_end = self.latest_end.max(lane.start);
        if !lane.items.is_empty() {
            self.ready.insert((lane.start, key));
        }
        self.items -= 1;
        self.resize(key, size, size - item.size);
        if self.items == 0 {
            // No lane waited for another, so none owes anything.
            self.now = self.latest_end;
        }
        Some(item.value)
    }

    /// Serves items, the first of the lane that has been served least each time, as `decide` says.
    pub fn serve(&mut self, mut decide: impl FnMut(K, &T) -> Decision) -> Vec<T> {
        let mut served = Vec::new();
        let mut passed_over = Vec::new();
        while let Some((key, next)) = self.peek() {
            match decide(key, next) {
                Decision::Serve(cost) => served.extend(self.pop(cost)),
                Decision::Drop => drop(self.pop(0)),
                Decision::PassOver if passed_over.len() < MAX_PASSED_OVER => passed_over.extend(self.ready.pop_first()),
                Decision::PassOver | Decision::Stop => break,
            }
        }
        self.ready.extend(passed_over);
        served
    }

    /// Drops the newest items of the largest lanes until the queue has room for an item of a lane of size `own`. Drops none
    /// when the lanes that stay larger than that one have too little to give.
    fn make_room(&mut self, own: usize, size: usize) -> Result<Vec<T>, Full> {
        let mut missing = (self.size + size).saturating_sub(self.limits.total);
        for (lane, _) in self.by_size.iter().rev() {
            let excess = lane.saturating_sub(own + size);
            if missing == 0 || excess == 0 {
                break;
            }
            missing = missing.saturating_sub(excess);
        }
        if missing > 0 {
            return Err(Full::Queue);
        }
        let mut evicted = Vec::new();
        while self.size + size > self.limits.total {
            let Some((_, largest)) = self.by_size.last().copied() else { break };
            evicted.extend(self.pop_newest(largest));
        }
        Ok(evicted)
    }

    /// Drops the newest item of a lane.
    fn pop_newest(&mut self, key: K) -> Option<T> {
        let lane = self.lanes.get_mut(&key)?;
        let newest = lane.items.pop_back()?;
        let (start, size, is_empty) = (lane.start, lane.size, lane.items.is_empty());
        if is_empty {
            self.ready.remove(&(start, key));
        }
        self.items -= 1;
        self.resize(key, size, size - newest.size);
        Some(newest.value)
    }

    fn resize(&mut self, key: K, before: usize, after: usize) {
        self.by_size.remove(&(before, key));
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.size = after;
            if !lane.items.is_empty() {
                self.by_size.insert((after, key));
            }
        }
        self.size = self.size + after - before;
    }

    /// Drops empty lanes that owe nothing, each time there are twice as many lanes as were left the time before.
    fn forget_idle_lanes(&mut self) {
        if self.lanes.len() < self.sweep_at {
            return;
        }
        let now = self.now;
        self.lanes.retain(|_, lane| !lane.items.is_empty() || lane.start > now);
        self.sweep_at = MIN_SWEEP.max(2 * self.lanes.len());
    }
}

#[cfg(test)]
mod tests;
