//! The holds of one path.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::hold::Hold;
use super::owner::OwnerId;
use crate::FencingToken;

/// The holds of one path: one WRITE hold, or READ holds in order of token. They are granted in that order; a rebuilt
/// table gets them in any order, the highest token first where they are many.
#[derive(Clone, Debug, Default)]
pub(super) enum Holds {
    #[default]
    None,
    /// Most locks never have a second holder.
    One(Hold),
    /// Shared with snapshots in progress. Behind a pointer, because there may be very many holds.
    Many(Arc<ManyHolds>),
}

/// Up to this many holds are scanned; beyond it, an index by owner is used.
const MAX_SCANNED: usize = 16;

/// Two or more holds. Lookup by token or by owner takes few steps. Insertion and removal move at most half of the other
/// holds; insertion at either end moves few on average.
#[derive(Clone, Debug, Default)]
pub(super) struct ManyHolds {
    /// The holds from `start` on, in order of token; earlier elements are meaningless.
    holds: Vec<Hold>,
    start: usize,
    /// The tokens by owner, once there have been more than [`MAX_SCANNED`] holds.
    by_owner: BTreeMap<OwnerId, FencingToken>,
}

impl Holds {
    pub(super) fn as_slice(&self) -> &[Hold] {
        match self {
            Self::None => &[],
            Self::One(hold) => std::slice::from_ref(hold),
            Self::Many(many) => many.as_slice(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn of(&self, owner: OwnerId) -> Option<&Hold> {
        match self {
            Self::None => None,
            Self::One(hold) => Some(hold).filter(|hold| hold.owner == owner),
            Self::Many(many) => many.index_of(owner).map(|index| &many.holds[index]),
        }
    }

    pub(super) fn of_mut(&mut self, owner: OwnerId) -> Option<&mut Hold> {
        match self {
            Self::None => None,
            Self::One(hold) => Some(hold).filter(|hold| hold.owner == owner),
            Self::Many(many) => {
                let index = many.index_of(owner)?;
                Some(&mut Arc::make_mut(many).holds[index])
            }
        }
    }

    pub(super) fn of_token(&self, token: FencingToken) -> Option<&Hold> {
        let holds = self.as_slice();
        holds.binary_search_by_key(&token, |hold| hold.token).ok().map(|index| &holds[index])
    }

    /// Adds a hold of an owner that has none here.
    pub(super) fn insert(&mut self, hold: Hold) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(hold),
            Self::One(other) => {
                let holds = if other.token < hold.token { vec![other, hold] } else { vec![hold, other] };
                Self::Many(Arc::new(ManyHolds { holds, ..ManyHolds::default() }))
            }
            Self::Many(mut many) => {
                Arc::make_mut(&mut many).insert(hold);
                Self::Many(many)
            }
        };
    }

    pub(super) fn remove(&mut self, owner: OwnerId) -> Option<Hold> {
        match std::mem::take(self) {
            Self::None => None,
            Self::One(hold) if hold.owner == owner => Some(hold),
            Self::One(hold) => {
                *self = Self::One(hold);
                None
            }
            Self::Many(mut shared) => {
                let many = Arc::make_mut(&mut shared);
                let removed = many.index_of(owner).map(|index| many.remove(index));
                *self = match many.as_slice() {
                    [last] => Self::One(last.clone()),
                    _ => Self::Many(shared),
                };
                removed
            }
        }
    }
}

impl ManyHolds {
    fn as_slice(&self) -> &[Hold] {
        &self.holds[self.start..]
    }

    fn index_of(&self, owner: OwnerId) -> Option<usize> {
        let holds = self.as_slice();
        let index = if self.by_owner.is_empty() {
            holds.iter().position(|hold| hold.owner == owner)
        } else {
            let token = self.by_owner.get(&owner)?;
            holds.binary_search_by_key(token, |hold| hold.token).ok()
        };
        index.map(|index| self.start + index)
    }

    fn insert(&mut self, hold: Hold) {
        if !self.by_owner.is_empty() {
            self.by_owner.insert(hold.owner, hold.token);
        }
        let index = self.as_slice().partition_point(|other| other.token < hold.token);
        if index < self.as_slice().len() - index {
            self.insert_before(index, hold);
        } else {
            self.holds.insert(self.start + index, hold);
        }
        if self.by_owner.is_empty() && self.as_slice().len() > MAX_SCANNED {
            self.by_owner = self.as_slice().iter().map(|hold| (hold.owner, hold.token)).collect();
        }
    }

    /// Inserts a hold in the first half. Shifts the holds before it down; if there is no room, makes some for as many as
    /// there are.
    fn insert_before(&mut self, index: usize, hold: Hold) {
        if self.start == 0 {
            let room = self.holds.len();
            let meaningless = || Hold { extras: None, ..hold.clone() };
            self.holds.splice(0..0, std::iter::repeat_with(meaningless).take(room));
            self.start = room;
        }
        self.start -= 1;
        self.holds[self.start] = hold;
        self.holds[self.start..=self.start + index].rotate_left(1);
    }

    fn remove(&mut self, index: usize) -> Hold {
        let hold = if index - self.start < self.holds.len() - index {
            // Shifts the holds before it up. The unused front is cut off once it exceeds half of the vector.
            self.holds[self.start..=index].rotate_right(1);
            let gone = &mut self.holds[self.start];
            self.start += 1;
            Hold { extras: gone.extras.take(), ..gone.clone() }
        } else {
            self.holds.remove(index)
        };
        self.by_owner.remove(&hold.owner);
        if self.start > self.holds.len() / 2 {
            self.holds.drain(..std::mem::take(&mut self.start));
        }
        if self.holds.len().saturating_mul(4) <= self.holds.capacity() {
            self.holds.shrink_to(self.holds.len().saturating_mul(2));
        }
        hold
    }
}

#[cfg(test)]
mod tests {
    use super::super::hold::NO_REQUEST;
    use super::*;
    use crate::{Mode, Phase};

    fn reader(owner: u32, token: FencingToken) -> Hold {
        Hold {
            owner: OwnerId(owner),
            mode: Mode::Read,
            phase: Phase::Held,
            direct: true,
            upgraded: false,
            transition_ms: 0,
            request: NO_REQUEST,
            token,
            locked_at_ms: 0,
            deadline_ms: None,
            attempt: 0,
            extras: None,
        }
    }

    #[test]
    fn the_holds_of_a_path_take_little_memory() {
        assert!(size_of::<Holds>() <= 56, "the holds of a path take {} bytes", size_of::<Holds>());
    }

    #[test]
    fn readers_are_found_by_owner_and_token_however_they_come_and_go() {
        let (mut holds, mut expected, mut last) = (Holds::None, Vec::<(u32, u64)>::new(), 0);
        let mut seed = 7_u64;
        let mut below = |max: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % max
        };
        for step in 0..20_000 {
            let grows = step / 2_000 % 2 == 0;
            if expected.is_empty() || below(10) < if grows { 7 } else { 3 } {
                last += 2;
                let token = match step / 4_000 % 3 {
                    0 => last,
                    1 => 1_000_000 - last,
                    _ => last * 7_919 % 1_000_003,
                };
                let owner = 1_100_000 - token as u32;
                holds.insert(reader(owner, token));
                let at = expected.partition_point(|(_, other)| *other < token);
                expected.insert(at, (owner, token));
            } else {
                let index = if below(3) == 0 { 0 } else { below(expected.len()) };
                let (owner, token) = expected.remove(index);
                assert_eq!(holds.remove(OwnerId(owner)).map(|hold| hold.token), Some(token));
                assert!(holds.of(OwnerId(owner)).is_none() && holds.of_token(token).is_none());
            }
            let all: Vec<_> = holds.as_slice().iter().map(|hold| (hold.owner.0, hold.token)).collect();
            assert_eq!(all, expected);
            assert_eq!((holds.is_empty(), matches!(holds, Holds::One(_))), (all.is_empty(), all.len() == 1));
            if let Some((owner, token)) = expected.get(below(expected.len().max(1))) {
                assert_eq!(holds.of(OwnerId(*owner)).map(|hold| hold.token), Some(*token));
                assert_eq!(holds.of_mut(OwnerId(*owner)).map(|hold| hold.token), Some(*token));
                assert_eq!(holds.of_token(*token).map(|hold| hold.owner.0), Some(*owner));
            }
        }
    }
}
