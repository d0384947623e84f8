//! A set of names that only grows, in chunks that copies share: a snapshot in progress costs the next change a chunk.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of names in a chunk.
const MAX_CHUNK: usize = 64;

/// Names in order.
#[derive(Clone, Debug, Default)]
pub(super) struct NameSet {
    /// By a lower bound of their names, and an upper bound of those of the chunk before. The first bound is empty.
    chunks: BTreeMap<Box<str>, Arc<Chunk>>,
    len: u64,
    /// The length of all names.
    text_bytes: u64,
}

/// Some names in order, none empty, one after the other.
#[derive(Clone, Debug, Default)]
struct Chunk {
    text: String,
    /// The end of each name.
    ends: Vec<u32>,
}

impl NameSet {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        let chunk = self.chunks.range::<str, _>(up_to(name)).next_back();
        chunk.is_some_and(|(_, chunk)| chunk.find(name).is_ok())
    }

    /// Adds a name. Returns whether it is new.
    pub(super) fn insert(&mut self, name: &str) -> bool {
        if self.chunks.is_empty() {
            self.chunks.insert(Box::default(), Arc::default());
        }
        let Some((_, chunk)) = self.chunks.range_mut::<str, _>(up_to(name)).next_back() else { return false };
        let Err(index) = chunk.find(name) else { return false };
        let chunk = Arc::make_mut(chunk);
        chunk.insert(index, name);
        if chunk.ends.len() > MAX_CHUNK {
            let upper = chunk.split_off(MAX_CHUNK / 2);
            self.chunks.insert(upper.name(0).into(), Arc::new(upper));
        }
        self.len += 1;
        self.text_bytes += name.len() as u64;
        true
    }

    /// Iterates over the names after another, in order.
    pub(super) fn iter_after<'a>(&'a self, after: &'a str) -> impl Iterator<Item = &'a str> {
        let first = self.chunks.range::<str, _>(up_to(after)).next_back();
        let rest = self.chunks.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let names = first.into_iter().chain(rest).flat_map(|(_, chunk)| chunk.iter());
        names.skip_while(move |name| *name <= after)
    }
}

impl Chunk {
    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize)
    }

    fn name(&self, index: usize) -> &str {
        let end = self.ends.get(index).map_or(0, |end| *end as usize);
        self.text.get(self.start(index)..end).unwrap_or_default()
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|index| self.name(index))
    }

    /// Returns the index of a name, or that at which it belongs.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.name(middle).cmp(name) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    fn insert(&mut self, index: usize, name: &str) {
        let start = self.start(index);
        self.text.insert_str(start, name);
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        self.ends.iter_mut().skip(index).for_each(|end| *end = end.saturating_add(length));
        self.ends.insert(index, u32::try_from(start + name.len()).unwrap_or(u32::MAX));
    }

    /// Removes and returns the names from an index on.
    fn split_off(&mut self, index: usize) -> Self {
        let start = self.start(index);
        let moved = u32::try_from(start).unwrap_or(u32::MAX);
        let ends = self.ends.split_off(index).into_iter().map(|end| end.saturating_sub(moved)).collect();
        let upper = Self { text: self.text.split_off(start), ends };
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        upper
    }
}

fn up_to(name: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Unbounded, Bound::Included(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_has_what_was_inserted_in_order_whatever_the_order_of_insertion() {
        for step in [1_u64, 7, 599] {
            let (mut set, mut expected) = (NameSet::default(), BTreeSet::new());
            for number in 0..600 {
                let name = format!("job-{}é", number * step % 600);
                assert_eq!(set.insert(&name), expected.insert(name.clone()));
                assert!(!set.insert(&name) && set.contains(&name) && !set.contains(&format!("{name}x")));
            }
            assert!(set.iter_after("").eq(expected.iter().map(String::as_str)));
            assert_eq!(set.len(), 600);
            assert_eq!(set.text_bytes(), expected.iter().map(|name| name.len() as u64).sum::<u64>());
            for after in ["", "job-17é", "job-3", "zzz"] {
                let rest = expected.iter().map(String::as_str).filter(|name| *name > after);
                assert!(set.iter_after(after).eq(rest), "{after}");
            }
        }
    }

    #[test]
    fn a_copy_shares_what_does_not_change() {
        let mut set = NameSet::default();
        (0..1_000).for_each(|number| assert!(set.insert(&format!("{number:04}"))));
        let copy = set.clone();
        set.insert("0500x");
        let shared =
            set.chunks.iter().filter(|(key, chunk)| copy.chunks.get(*key).is_some_and(|old| Arc::ptr_eq(old, chunk)));
        assert_eq!(shared.count() + 1, copy.chunks.len());
        assert!(!copy.contains("0500x"));
    }
}
