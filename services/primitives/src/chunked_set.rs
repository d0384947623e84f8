//! An ordered set in chunks, for sets that may be very large and of which each byte counts.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Maximum number of items in a chunk.
const MAX_CHUNK: usize = 64;
/// A chunk with as few items is joined with a neighbor.
const MIN_CHUNK: usize = 8;

/// Items in order. An item may be as small as a number that stands for what is ordered: callers compare. An ordered map
/// of the standard library would be half empty after insertions at its end; the chunks of this one are then full.
#[derive(Clone, Debug)]
pub struct ChunkedSet<K, T>(Chunks<K, T>);

#[derive(Clone, Debug)]
enum Chunks<K, T> {
    /// One chunk, so that a small set takes little memory.
    One(Vec<T>),
    /// Chunks by a lower bound of their items and an upper bound of those of the chunk before. None is empty.
    Many(BTreeMap<K, Vec<T>>),
}

impl<K, T> Default for ChunkedSet<K, T> {
    fn default() -> Self {
        Self(Chunks::One(Vec::new()))
    }
}

impl<K: Ord + Default + Clone, T: Copy> ChunkedSet<K, T> {
    /// Returns whether it has no items.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Chunks::One(chunk) => chunk.is_empty(),
            Chunks::Many(chunks) => chunks.is_empty(),
        }
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.chunks().map(<[T]>::len).sum()
    }

    /// Returns the smallest item.
    pub fn first(&self) -> Option<T> {
        self.chunks().next()?.first().copied()
    }

    /// Iterates over all items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> {
        self.chunks().flatten().copied()
    }

    fn chunks(&self) -> impl DoubleEndedIterator<Item = &[T]> {
        let (one, many) = match &self.0 {
            Chunks::One(chunk) => (Some(chunk), None),
            Chunks::Many(chunks) => (None, Some(chunks.values())),
        };
        one.into_iter().chain(many.into_iter().flatten()).map(Vec::as_slice)
    }

    /// Finds the item of a key. `order` returns how an item compares to the key.
    pub fn find<Q: Ord + ?Sized>(&self, key: &Q, order: impl FnMut(&T) -> Ordering) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let chunk = match &self.0 {
            Chunks::One(chunk) => chunk,
            Chunks::Many(chunks) => chunks.range::<Q, _>(up_to(key)).next_back()?.1,
        };
        chunk.get(chunk.binary_search_by(order).ok()?).copied()
    }

    /// Finds the item of a key, to change of it what does not decide its order.
    pub fn find_mut<Q: Ord + ?Sized>(&mut self, key: &Q, order: impl FnMut(&T) -> Ordering) -> Option<&mut T>
    where
        K: Borrow<Q>,
    {
        let chunk = match &mut self.0 {
            Chunks::One(chunk) => chunk,
            Chunks::Many(chunks) => chunks.range_mut::<Q, _>(up_to(key)).next_back()?.1,
        };
        let at = chunk.binary_search_by(order).ok()?;
        chunk.get_mut(at)
    }

    /// Returns how many items are before a key, up to a limit. Whole chunks are counted without a look at their items.
    /// `order` returns how an item compares to the key.
    pub fn count_before_key(&self, mut order: impl FnMut(&T) -> Ordering, max: usize) -> usize {
        let (mut count, mut is_before) = (0, |item: &T| order(item) == Ordering::Less);
        for chunk in self.chunks() {
            let is_whole = chunk.last().is_some_and(&mut is_before);
            count += if is_whole { chunk.len() } else { chunk.partition_point(&mut is_before) };
            if !is_whole || count >= max {
                break;
            }
        }
        count.min(max)
    }

    /// Iterates in order over the items before a key. `order` returns how an item compares to the key.
    pub fn iter_before<'a, Q: Ord + ?Sized, F: FnMut(&T) -> Ordering>(
        &'a self,
        key: &Q,
        mut order: F,
    ) -> impl DoubleEndedIterator<Item = T> + use<'a, K, T, Q, F>
    where
        K: Borrow<Q>,
    {
        let (last, others) = match &self.0 {
            Chunks::One(chunk) => (Some(chunk), None),
            Chunks::Many(chunks) => {
                let mut others = chunks.range::<Q, _>(up_to(key));
                (others.next_back().map(|(_, chunk)| chunk), Some(others))
            }
        };
        let last = last.map_or(&[][..], |chunk| {
            chunk.get(..chunk.partition_point(|item| order(item) == Ordering::Less)).unwrap_or_default()
        });
        others.into_iter().flatten().flat_map(|(_, chunk)| chunk).chain(last).copied()
    }

    /// Iterates in order over the items at or after a key. `order` returns how an item compares to the key.
    pub fn iter_from<'a, Q: Ord + ?Sized, F: FnMut(&T) -> Ordering>(
        &'a self,
        key: &Q,
        mut order: F,
    ) -> impl Iterator<Item = T> + use<'a, K, T, Q, F>
    where
        K: Borrow<Q>,
    {
        let (first, rest) = match &self.0 {
            Chunks::One(chunk) => (Some(chunk), None),
            Chunks::Many(chunks) => {
                let first = chunks.range::<Q, _>(up_to(key)).next_back().map(|(_, chunk)| chunk);
                (first, Some(chunks.range::<Q, _>(after(key)).map(|(_, chunk)| chunk)))
            }
        };
        let first = first.map_or(&[][..], |chunk| {
            chunk.get(chunk.partition_point(|item| order(item) == Ordering::Less)..).unwrap_or_default()
        });
        first.iter().chain(rest.into_iter().flatten().flatten()).copied()
    }

    /// Adds an item. `order` returns how another item compares to it, `key_of` the key of an item. Returns false if
    /// there is an equal item.
    pub fn insert(&mut self, item: T, mut order: impl FnMut(&T) -> Ordering, key_of: impl Fn(&T) -> K) -> bool {
        if let Chunks::One(chunk) = &mut self.0 {
            if chunk.len() < MAX_CHUNK {
                return insert_into(chunk, item, order);
            }
            self.0 = Chunks::Many(BTreeMap::from([(K::default(), std::mem::take(chunk))]));
        }
        let Chunks::Many(chunks) = &mut self.0 else { return false };
        let key = key_of(&item);
        let is_last = chunks.last_key_value().is_some_and(|(last, _)| *last <= key);
        let Some((_, chunk)) = chunks.range_mut(..=&key).next_back() else {
            chunks.insert(K::default(), vec![item]);
            return true;
        };
        if chunk.len() < MAX_CHUNK {
            return insert_into(chunk, item, order);
        }
        let Err(at) = chunk.binary_search_by(&mut order) else { return false };
        if is_last && at == chunk.len() {
            chunks.insert(key, vec![item]);
            return true;
        }
        let mut right = chunk.split_off(MAX_CHUNK / 2);
        match at.checked_sub(MAX_CHUNK / 2) {
            Some(at) if at > 0 => right.insert(at, item),
            _ => chunk.insert(at, item),
        }
        if let Some(first) = right.first() {
            chunks.insert(key_of(first), right);
        }
        true
    }

    /// Removes the item of a key. `order` returns how an item compares to the key. Returns whether it was there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q, order: impl FnMut(&T) -> Ordering) -> bool
    where
        K: Borrow<Q>,
    {
        let chunks = match &mut self.0 {
            Chunks::One(chunk) => return remove_from(chunk, order),
            Chunks::Many(chunks) => chunks,
        };
        let Some((lower, chunk)) = chunks.range_mut::<Q, _>(up_to(key)).next_back() else { return false };
        let was_there = remove_from(chunk, order);
        if chunk.len() <= MIN_CHUNK {
            let lower = lower.clone();
            self.join(&lower);
        }
        was_there
    }

    /// Joins a small chunk with a neighbor that has room.
    fn join(&mut self, lower: &K) {
        let Chunks::Many(chunks) = &mut self.0 else { return };
        let len = chunks.get(lower).map_or(0, Vec::len);
        let fits = |(_, other): &(&K, &mut Vec<T>)| other.len() + len <= MAX_CHUNK / 2;
        if len == 0 {
            chunks.remove(lower);
        } else if chunks.range_mut(..lower).next_back().as_ref().is_some_and(fits) {
            let mut items = chunks.remove(lower).unwrap_or_default();
            if let Some((_, before)) = chunks.range_mut(..lower).next_back() {
                before.append(&mut items);
            }
        } else {
            let next = chunks.range_mut::<K, _>(after(lower)).next().filter(fits).map(|(key, _)| key.clone());
            let mut items = next.and_then(|key| chunks.remove(&key)).unwrap_or_default();
            if let Some(chunk) = chunks.get_mut(lower) {
                chunk.append(&mut items);
            }
        }
        if chunks.len() <= 1 {
            self.0 = Chunks::One(chunks.pop_first().map(|(_, chunk)| chunk).unwrap_or_default());
        }
    }
}

/// The chunks up to the one of a key.
fn up_to<Q: ?Sized>(key: &Q) -> (Bound<&Q>, Bound<&Q>) {
    (Bound::Unbounded, Bound::Included(key))
}

/// The chunks after the one of a key.
fn after<Q: ?Sized>(key: &Q) -> (Bound<&Q>, Bound<&Q>) {
    (Bound::Excluded(key), Bound::Unbounded)
}

fn insert_into<T>(chunk: &mut Vec<T>, item: T, order: impl FnMut(&T) -> Ordering) -> bool {
    let Err(at) = chunk.binary_search_by(order) else { return false };
    chunk.insert(at, item);
    true
}

fn remove_from<T>(chunk: &mut Vec<T>, order: impl FnMut(&T) -> Ordering) -> bool {
    let Ok(at) = chunk.binary_search_by(order) else { return false };
    chunk.remove(at);
    if chunk.len().saturating_mul(4) <= chunk.capacity() {
        chunk.shrink_to(chunk.len().saturating_mul(2));
    }
    true
}

/// A set of items that are their own keys.
impl<T: Ord + Default + Copy> ChunkedSet<T, T> {
    /// Adds an item. Returns whether it is new.
    pub fn add(&mut self, item: T) -> bool {
        self.insert(item, |other| other.cmp(&item), |item| *item)
    }

    /// Removes an item. Returns whether it was there.
    pub fn take(&mut self, item: T) -> bool {
        self.remove(&item, |other| other.cmp(&item))
    }

    /// Returns how many items are before one, up to a limit.
    pub fn count_before(&self, item: T, max: usize) -> usize {
        self.count_before_key(|other| other.cmp(&item), max)
    }

    /// Iterates over the items at or after one.
    pub fn at_or_after(&self, first: T) -> impl Iterator<Item = T> {
        self.iter_from(&first, move |item| item.cmp(&first))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use super::*;

    fn check(set: &ChunkedSet<u32, u32>, expected: &BTreeSet<u32>) {
        assert!(set.iter().eq(expected.iter().copied()));
        assert_eq!((set.len(), set.first()), (expected.len(), expected.first().copied()));
        assert_eq!(set.is_empty(), expected.is_empty());
        let Chunks::Many(chunks) = &set.0 else { return };
        assert!(chunks.len() > 1 && chunks.values().all(|chunk| !chunk.is_empty() && chunk.len() <= MAX_CHUNK));
        let is_within = |(lower, chunk): (&u32, &Vec<u32>)| chunk.first().is_some_and(|first| first >= lower);
        assert!(chunks.iter().all(is_within), "chunks begin at their keys");
    }

    #[test]
    fn it_is_a_set_whatever_comes_and_goes() {
        let (mut set, mut expected) = (ChunkedSet::default(), BTreeSet::new());
        let mut seed = 11_u64;
        let mut below = |max: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % max) as u32
        };
        for step in 0..60_000 {
            let grows = step / 10_000 % 2 == 0;
            let item = below(if step < 20_000 { 5_000 } else { 300 });
            if below(10) < if grows { 8 } else { 2 } {
                assert_eq!(set.add(item), expected.insert(item));
            } else {
                assert_eq!(set.take(item), expected.remove(&item));
            }
            assert_eq!(set.find(&item, |other| other.cmp(&item)).is_some(), expected.contains(&item));
            assert_eq!(set.find_mut(&item, |other| other.cmp(&item)).copied(), expected.get(&item).copied());
            if step % 500 == 0 {
                check(&set, &expected);
                assert!(set.at_or_after(item).eq(expected.range(item..).copied()));
                let before = || set.iter_before(&item, |other| other.cmp(&item));
                assert!(before().eq(expected.range(..item).copied()));
                assert!(before().rev().eq(expected.range(..item).rev().copied()));
                assert!(set.iter().rev().eq(expected.iter().rev().copied()));
                let before = expected.range(..item).count();
                assert_eq!((set.count_before(item, usize::MAX), set.count_before(item, 70)), (before, before.min(70)));
            }
        }
        for item in 0..5_000 {
            assert_eq!(set.take(item), expected.remove(&item));
        }
        check(&set, &expected);
        assert!(matches!(set.0, Chunks::One(_)));
    }

    #[test]
    fn chunks_are_full_after_insertions_at_the_end_and_few_after_removals() {
        let mut set = ChunkedSet::default();
        (0..64_000_u32).for_each(|item| assert!(set.add(item)));
        let number = |set: &ChunkedSet<u32, u32>| set.chunks().count();
        assert_eq!(number(&set), 1_000);
        (0..64_000).filter(|item| item % 32 != 0).for_each(|item| assert!(set.take(item)));
        assert_eq!(set.len(), 2_000);
        assert!(number(&set) <= 200, "{} chunks for 2,000 items", number(&set));
    }

    thread_local! {
        static COMPARED: Cell<u32> = const { Cell::new(0) };
    }

    /// A number that counts how often it is compared.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Counted(u32);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.with(|compared| compared.set(compared.get() + 1));
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn items_before_one_are_counted_by_chunks() {
        let mut set = ChunkedSet::default();
        (0..10_000).for_each(|item| assert!(set.add(Counted(item))));
        let counted = |item: u32, max: usize| {
            COMPARED.set(0);
            (set.count_before(Counted(item), max), COMPARED.get())
        };
        for item in [0, 1, 63, 64, 5_000, 9_999, 20_000] {
            let (count, compared) = counted(item, usize::MAX);
            assert_eq!(count, item.min(10_000) as usize);
            assert!(compared <= item.min(10_000) / MAX_CHUNK as u32 + 10, "{compared} comparisons for {item}");
        }
        let (count, compared) = counted(9_999, 100);
        assert!(count == 100 && compared <= 2, "{compared} comparisons up to a limit");
    }

    #[test]
    fn items_may_come_from_the_end_to_the_start() {
        let mut set = ChunkedSet::default();
        (0..6_400_u32).rev().for_each(|item| assert!(set.add(item)));
        assert!(set.iter().eq(0..6_400) && set.chunks().count() <= 200);
    }
}
