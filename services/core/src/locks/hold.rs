//! One hold of one path.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::owner::OwnerId;
use crate::{FencingToken, Metadata, Mode, Phase};

/// One hold. A million of them must fit into a node, so what few holds have is kept aside.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    /// Claimed by a call without a request id, besides the requests that claim it by id.
    pub(super) direct: bool,
    /// Whether the calls that count on it made a writer of a reader, as which it goes on when they leave.
    pub(super) upgraded: bool,
    pub(super) transition_ms: u32,
    pub(super) token: FencingToken,
    pub(super) locked_at_ms: u64,
    /// When the present phase ends; never for what is held as long as a session lives.
    pub(super) deadline_ms: Option<NonZeroU64>,
    /// The highest of the calls that count on it (see `attempts`); 0 once nobody's leaving ends it, above all from when
    /// the owner shows that it knows of it.
    pub(super) attempt: u64,
    pub(super) rare: Option<Box<Rare>>,
}

/// What few holds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rare {
    pub(super) metadata: Metadata,
    pub(super) asked_expires_at_ns: Option<i64>,
    /// The granted requests of its session that claim it.
    pub(super) requests: Vec<u32>,
    /// The calls that count on it besides the highest, rising.
    pub(super) attempts: Vec<u64>,
    /// Those that count on it as a reader's, when it was upgraded; none when as such it stays.
    pub(super) attempts_as_reader: Vec<u64>,
}

/// What a request asks for besides its claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: Metadata,
    pub(super) asked_expires_at_ns: Option<i64>,
}

impl Hold {
    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    pub(super) fn requests(&self) -> &[u32] {
        self.rare.as_deref().map_or(&[], |rare| &rare.requests)
    }

    /// A request claims it by id.
    pub(super) fn claim_by(&mut self, request: u32) {
        let rare = self.rare.get_or_insert_default();
        if !rare.requests.contains(&request) {
            rare.requests.push(request);
        }
    }

    /// A request gives its claim up. Whether nothing claims the hold any more.
    pub(super) fn unclaim(&mut self, request: u32) -> bool {
        if let Some(rare) = &mut self.rare {
            rare.requests.retain(|other| *other != request);
        }
        self.drop_empty();
        !self.direct && self.requests().is_empty()
    }

    /// Takes over what a call asks for.
    pub(super) fn take_terms(&mut self, terms: &Terms) {
        self.transition_ms = terms.transition_ms;
        if self.rare.is_some() || !terms.metadata.is_empty() || terms.asked_expires_at_ns.is_some() {
            let rare = self.rare.get_or_insert_default();
            rare.metadata.clone_from(&terms.metadata);
            rare.asked_expires_at_ns = terms.asked_expires_at_ns;
            self.drop_empty();
        }
    }

    fn drop_empty(&mut self) {
        if self.rare.as_deref() == Some(&Rare::default()) {
            self.rare = None;
        }
    }
}

/// The holds of one path: one writer, or readers in order of arrival, which is that of their tokens.
#[derive(Clone, Debug, Default)]
pub(super) enum Holds {
    #[default]
    None,
    /// Most locks never have a second holder.
    One(Hold),
    /// Shared with a snapshot under way; apart, since there may be very many.
    Many(Arc<Vec<Hold>>),
}

impl Holds {
    pub(super) fn as_slice(&self) -> &[Hold] {
        match self {
            Self::None => &[],
            Self::One(hold) => std::slice::from_ref(hold),
            Self::Many(holds) => holds,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    pub(super) fn of(&self, owner: OwnerId) -> Option<&Hold> {
        self.as_slice().iter().find(|hold| hold.owner == owner)
    }

    pub(super) fn of_mut(&mut self, owner: OwnerId) -> Option<&mut Hold> {
        let holds = match self {
            Self::None => &mut [],
            Self::One(hold) => std::slice::from_mut(hold),
            Self::Many(holds) => Arc::make_mut(holds).as_mut_slice(),
        };
        holds.iter_mut().find(|hold| hold.owner == owner)
    }

    pub(super) fn of_token(&self, token: FencingToken) -> Option<&Hold> {
        let holds = self.as_slice();
        holds.binary_search_by_key(&token, |hold| hold.token).ok().map(|index| &holds[index])
    }

    pub(super) fn push(&mut self, hold: Hold) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(hold),
            Self::One(first) => Self::Many(Arc::new(vec![first, hold])),
            Self::Many(mut holds) => {
                Arc::make_mut(&mut holds).push(hold);
                Self::Many(holds)
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
                let holds = Arc::make_mut(&mut shared);
                let index = holds.iter().position(|hold| hold.owner == owner);
                let removed = index.map(|index| holds.remove(index));
                if holds.len().saturating_mul(4) <= holds.capacity() {
                    holds.shrink_to(holds.len().saturating_mul(2));
                }
                *self = if holds.len() == 1 { holds.pop().map_or(Self::None, Self::One) } else { Self::Many(shared) };
                removed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_takes_little_memory() {
        assert!(size_of::<Hold>() <= 56, "a hold takes {} bytes", size_of::<Hold>());
        assert!(size_of::<Holds>() <= 56, "the holds of a path take {} bytes", size_of::<Holds>());
    }
}
