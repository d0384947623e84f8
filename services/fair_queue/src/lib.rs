//! A bounded queue that several accounts share fairly.
//!
//! Purpose: each account has a lane, first in, first out, urgent items before others. Lanes are served by start-time
//! fair queueing (Goyal, Vin and Cheng, 1996): every item has a cost, each lane with items gets an equal share of what is
//! served, and a lane that is alone gets all of it. A lane can be parked while it may not be served.
//!
//! Invariant: between two lanes that both have items and are not parked, the costs served differ by no more than the
//! largest cost of one item. A lane that was empty has no credit from that time, and a lane that was served ahead of
//! others owes it when it returns while they still wait.
//!
//! Deliberately unknown here: what an item is, what its cost measures, and how to wait.

mod key_map;

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;

pub use key_map::{KeyHasher, KeyMap};

/// Bounds of a queue, in whatever measures the items' size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Size of all lanes together; `usize::MAX` for any.
    pub total: usize,
    /// Size of one lane; its urgent items may have as much again.
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
    /// Its lane is parked: it is not looked at before [`FairQueue::resume`].
    Park,
    /// Nothing more is served.
    Stop,
}

/// Lanes that one call of [`FairQueue::serve`] passes over; it serves nothing more when there are more of them.
const MAX_PASSED_OVER: usize = 256;

/// Items that the first one that is served makes room for: a list that grows moves them each time.
const FIRST_CAPACITY: usize = 16;

/// Items that an empty lane keeps memory for.
const MAX_IDLE_CAPACITY: usize = 64;

struct Item<T> {
    value: T,
    size: usize,
}

struct Lane<T> {
    /// Served before the others.
    urgent: VecDeque<Item<T>>,
    items: VecDeque<Item<T>>,
    urgent_size: usize,
    /// Of both.
    size: usize,
    /// Virtual time at which the first item starts, or, of an empty lane, at which the last one ended.
    start: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { urgent: VecDeque::new(), items: VecDeque::new(), urgent_size: 0, size: 0, start: 0 }
    }
}

impl<T> Lane<T> {
    fn len(&self) -> usize {
        self.urgent.len() + self.items.len()
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.items.is_empty()
    }

    fn front(&self) -> Option<&Item<T>> {
        self.urgent.front().or_else(|| self.items.front())
    }

    fn pop_front(&mut self) -> Option<Item<T>> {
        match self.urgent.pop_front() {
            Some(item) => {
                self.urgent_size -= item.size;
                Some(item)
            }
            None => self.items.pop_front(),
        }
    }

    /// Frees the memory of many items that are gone.
    fn shrink(&mut self) {
        for items in [&mut self.urgent, &mut self.items] {
            if items.is_empty() && items.capacity() > MAX_IDLE_CAPACITY {
                items.shrink_to(MAX_IDLE_CAPACITY);
            }
        }
    }

    /// Takes the newest item; one that is urgent only if there are no others.
    fn pop_back(&mut self) -> Option<Item<T>> {
        match self.items.pop_back() {
            Some(item) => Some(item),
            None => {
                let item = self.urgent.pop_back()?;
                self.urgent_size -= item.size;
                Some(item)
            }
        }
    }
}

/// A queue with a lane for each key. Push and pop take O(log lanes).
pub struct FairQueue<K, T> {
    limits: QueueLimits,
    lanes: KeyMap<K, Lane<T>>,
    /// Lanes with items that are not parked, by the virtual time at which their first item starts.
    ready: BTreeSet<(u64, K)>,
    /// The other lanes with items.
    parked: BTreeSet<K>,
    /// All lanes with items, by size; none if the size of all is not bounded.
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

const MIN_SWEEP: usize = 1_024;

impl<K: Copy + Ord + Hash, T> FairQueue<K, T> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            lanes: KeyMap::default(),
            ready: BTreeSet::new(),
            parked: BTreeSet::new(),
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

    /// Items of a lane.
    pub fn lane_len(&self, key: K) -> usize {
        self.lanes.get(&key).map_or(0, Lane::len)
    }

    /// Size of a lane's items that are not urgent.
    pub fn lane_size(&self, key: K) -> usize {
        self.lanes.get(&key).map_or(0, |lane| lane.size - lane.urgent_size)
    }

    /// Adds an item to the end of a lane. When the queue is full, the newest items of larger lanes make room and are
    /// returned.
    ///
    /// # Errors
    /// When the lane is full, or the queue is and larger lanes have too little to give. The item is dropped, and no other.
    pub fn push(&mut self, key: K, size: usize, value: T) -> Result<Vec<T>, Full> {
        self.insert(key, Item { value, size }, false)
    }

    /// As [`Self::push`], before all items of the lane that are not urgent. Of a lane that makes room, urgent items go
    /// last.
    ///
    /// # Errors
    /// As those of [`Self::push`]; the lane is full if its urgent items are.
    pub fn push_urgent(&mut self, key: K, size: usize, value: T) -> Result<Vec<T>, Full> {
        self.insert(key, Item { value, size }, true)
    }

    fn insert(&mut self, key: K, item: Item<T>, is_urgent: bool) -> Result<Vec<T>, Full> {
        let size = item.size;
        let (own, urgent) = self.lanes.get(&key).map_or((0, 0), |lane| (lane.size, lane.urgent_size));
        let alike = if is_urgent { urgent } else { own - urgent };
        if alike + size > self.limits.lane {
            return Err(Full::Lane);
        }
        let evicted = self.evict_for(own, size)?;
        self.remove_idle_lanes();
        let now = self.now;
        let lane = self.lanes.entry(key).or_default();
        if lane.is_empty() {
            lane.start = lane.start.max(now);
            self.ready.insert((lane.start, key));
        }
        if is_urgent {
            lane.urgent_size += size;
            lane.urgent.push_back(item);
        } else {
            lane.items.push_back(item);
        }
        self.items += 1;
        self.resize(key, own, own + size);
        Ok(evicted)
    }

    /// The next item and its lane: the first of the lane that has been served least.
    fn peek(&self) -> Option<(K, &T)> {
        let (_, key) = self.ready.first()?;
        self.lanes[key].front().map(|item| (*key, &item.value))
    }

    /// Takes the next item, and charges its lane with what it costs; nothing for one that is not to be served after all.
    fn pop(&mut self, cost: u64) -> Option<T> {
        let (start, key) = self.ready.pop_first()?;
        let lane = self.lanes.get_mut(&key)?;
        let size = lane.size;
        let item = lane.pop_front()?;
        self.now = start;
        lane.start = start.saturating_add(cost);
        self.latest_end = self.latest_end.max(lane.start);
        if !lane.is_empty() {
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
                Decision::Serve(cost) => {
                    if served.is_empty() {
                        served.reserve(self.items.min(FIRST_CAPACITY));
                    }
                    served.extend(self.pop(cost));
                }
                Decision::Drop => drop(self.pop(0)),
                Decision::PassOver if passed_over.len() < MAX_PASSED_OVER => passed_over.extend(self.ready.pop_first()),
                Decision::Park => self.parked.extend(self.ready.pop_first().map(|(_, key)| key)),
                Decision::PassOver | Decision::Stop => break,
            }
        }
        self.ready.extend(passed_over);
        served
    }

    /// Lets a parked lane be served again. It has no credit from the time since.
    pub fn resume(&mut self, key: K) {
        if self.parked.remove(&key)
            && let Some(lane) = self.lanes.get_mut(&key)
        {
            lane.start = lane.start.max(self.now);
            self.ready.insert((lane.start, key));
        }
    }

    /// Lets all parked lanes be served again.
    pub fn resume_all(&mut self) {
        while let Some(key) = self.parked.first().copied() {
            self.resume(key);
        }
    }

    /// Drops the items of a lane that are no longer wanted. They cost nothing.
    pub fn retain(&mut self, key: K, mut is_wanted: impl FnMut(&T) -> bool) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let (items, size, start) = (lane.len(), lane.size, lane.start);
        lane.urgent.retain(|item| is_wanted(&item.value));
        lane.items.retain(|item| is_wanted(&item.value));
        lane.urgent_size = lane.urgent.iter().map(|item| item.size).sum();
        let left = lane.urgent_size + lane.items.iter().map(|item| item.size).sum::<usize>();
        self.items -= items - lane.len();
        if lane.is_empty() {
            self.ready.remove(&(start, key));
            self.parked.remove(&key);
        }
        self.resize(key, size, left);
    }

    /// Drops the newest items of the largest lanes until the queue has room for an item of a lane of size `own`. Drops none
    /// when the lanes that stay larger than that one have too little to give.
    fn evict_for(&mut self, own: usize, size: usize) -> Result<Vec<T>, Full> {
        if !self.is_bounded() {
            return Ok(Vec::new());
        }
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
        let newest = lane.pop_back()?;
        let (start, size, is_empty) = (lane.start, lane.size, lane.is_empty());
        if is_empty {
            self.ready.remove(&(start, key));
            self.parked.remove(&key);
        }
        self.items -= 1;
        self.resize(key, size, size - newest.size);
        Some(newest.value)
    }

    /// Returns true if lanes may have to make room for others.
    fn is_bounded(&self) -> bool {
        self.limits.total < usize::MAX
    }

    fn resize(&mut self, key: K, before: usize, after: usize) {
        let is_bounded = self.is_bounded();
        if is_bounded {
            self.by_size.remove(&(before, key));
        }
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.size = after;
            if after < before {
                lane.shrink();
            }
            if is_bounded && !lane.is_empty() {
                self.by_size.insert((after, key));
            }
        }
        self.size = self.size + after - before;
    }

    /// Drops empty lanes that owe nothing, each time there are twice as many lanes as were left the time before.
    fn remove_idle_lanes(&mut self) {
        if self.lanes.len() < self.sweep_at {
            return;
        }
        let now = self.now;
        self.lanes.retain(|_, lane| !lane.is_empty() || lane.start > now);
        self.sweep_at = MIN_SWEEP.max(2 * self.lanes.len());
    }
}

#[cfg(test)]
mod tests;
