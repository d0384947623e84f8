//! A slab: items addressed by small numbers that are reused.

use std::sync::Arc;

use super::free_pages::FreePages;

/// Number of items in a page. An empty page frees its memory, and no page ever moves. Pages are small, because a page
/// that a clone shares is copied before it changes.
const PAGE_SIZE: usize = 64;

/// Items by number. Numbers imply no order, and differ between replicas that reached the same state in different ways.
///
/// A clone shares all pages, so cloning is cheap, and the clone is unaffected by later changes.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    pages: Vec<Arc<Page<T>>>,
    /// The pages with a free slot.
    with_free: FreePages,
    len: usize,
}

#[derive(Clone, Debug)]
struct Page<T> {
    slots: Vec<Option<T>>,
    free: Vec<u8>,
    used: usize,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), with_free: FreePages::default(), len: 0 }
    }
}

impl<T: Clone> Slab<T> {
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        let index = self.with_free.first().unwrap_or_else(|| {
            self.pages.push(Arc::default());
            let index = u32::try_from(self.pages.len() - 1).expect("memory ends before 2^32 pieces");
            self.with_free.insert(index);
            index
        });
        let piece = Arc::make_mut(&mut self.pages[index as usize]);
        let place = match piece.free.pop() {
            Some(place) => {
                piece.slots[place as usize] = Some(thing);
                place as usize
            }
            None => {
                piece.slots.push(Some(thing));
                piece.slots.len() - 1
            }
        };
        piece.used += 1;
        if piece.used == PAGE_SIZE {
            self.with_free.remove(index);
        }
        self.len += 1;
        let number = index as usize * PAGE_SIZE + place;
        u32::try_from(number).expect("limits keep the number of things far below 2^32")
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        let (index, place) = page_and_slot(number);
        let piece = Arc::make_mut(&mut self.pages[index]);
        let thing = piece.slots[place].take().expect("a number that is removed is in use");
        piece.used -= 1;
        if piece.used == 0 {
            *piece = Page::default();
        } else {
            piece.free.push(u8::try_from(place).expect("a piece has 64 places"));
        }
        self.with_free.insert(index as u32);
        while self.pages.last().is_some_and(|last| last.used == 0) {
            self.pages.pop();
            self.with_free.remove(self.pages.len() as u32);
        }
        self.len -= 1;
        thing
    }

    /// Assigns the next numbers in an order drawn from the seed. For tests.
    pub(super) fn shuffle(&mut self, mut seed: u64) {
        if self.pages.is_empty() {
            self.pages.push(Arc::default());
        }
        let Some(piece) = self.pages.first_mut().map(Arc::make_mut) else { return };
        let mut free: Vec<u8> = (0_u8..).zip(0..PAGE_SIZE).map(|(place, _)| place).skip(piece.slots.len()).collect();
        piece.slots.resize(PAGE_SIZE, None);
        for left in 1..free.len() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            free.swap(left, (seed >> 33) as usize % (left + 1));
        }
        if !free.is_empty() {
            piece.free.append(&mut free);
            self.with_free.insert(0);
        }
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        let (index, place) = page_and_slot(number);
        let piece = Arc::make_mut(&mut self.pages[index]);
        piece.slots[place].as_mut().expect("numbers are kept only while they are in use")
    }
}

impl<T> Slab<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn find(&self, number: u32) -> Option<&T> {
        let (index, place) = page_and_slot(number);
        self.pages.get(index)?.slots.get(place)?.as_ref()
    }

    pub(super) fn get(&self, number: u32) -> &T {
        self.find(number).expect("numbers are kept only while they are in use")
    }

    /// Iterates over all items, in no meaningful order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = self.pages.iter().enumerate().flat_map(|(index, piece)| {
            piece.slots.iter().enumerate().map(move |(place, thing)| ((index * PAGE_SIZE + place) as u32, thing))
        });
        places.filter_map(|(number, thing)| Some((number, thing.as_ref()?)))
    }
}

fn page_and_slot(number: u32) -> (usize, usize) {
    (number as usize / PAGE_SIZE, number as usize % PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_memory_is_given_back() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..1_000).map(|thing| slab.insert(thing)).collect();
        assert!(numbers.iter().enumerate().all(|(thing, number)| *slab.get(*number) == thing));
        for number in &numbers[300..] {
            slab.remove(*number);
        }
        assert_eq!((slab.len(), slab.pages.len()), (300, 5));
        slab.remove(numbers[7]);
        assert_eq!(slab.insert(7_777), numbers[7]);
        assert_eq!(slab.iter().count(), 300);
        for number in &numbers[..300] {
            slab.remove(*number);
        }
        assert_eq!((slab.len(), slab.pages.len(), slab.with_free.first()), (0, 0, None));
    }

    #[test]
    fn a_clone_keeps_what_was_there() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..300).map(|thing| slab.insert(thing)).collect();
        let before = slab.clone();
        *slab.get_mut(numbers[1]) = 7_777;
        slab.remove(numbers[2]);
        slab.insert(8_888);
        assert_eq!((*before.get(numbers[1]), *before.get(numbers[2]), before.len()), (1, 2, 300));
        assert_eq!(*slab.get(numbers[1]), 7_777);
        let shared = before.pages.iter().zip(&slab.pages).filter(|(one, other)| Arc::ptr_eq(one, other));
        assert_eq!(shared.count(), 4, "what was not touched is kept once");
    }
}
