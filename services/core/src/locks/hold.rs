//! One hold of one path.

use std::num::NonZeroU64;

use holdfast_primitives::ask::Asks;
use holdfast_primitives::metadata::EncodedMetadata;
use serde::{Deserialize, Serialize};

use super::conditions::{CameFrom, SignalAnswer};
use super::owner::OwnerId;
use crate::{FencingToken, Mode, Phase};

/// One hold. A million holds must fit into a node, so rarely used fields are in [`HoldExtras`].
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    /// Whether a call without a request id claims it, besides the requests that claim it by id.
    pub(super) direct: bool,
    /// Whether the calls that rely on it upgraded it from READ. If they leave, it continues as a READ hold.
    pub(super) upgraded: bool,
    pub(super) transition_ms: u32,
    /// The only granted request of its session that claims it, or [`NO_REQUEST`] if there is none or several.
    pub(super) request: u32,
    pub(super) token: FencingToken,
    pub(super) locked_at_ms: u64,
    /// When the current phase ends; none for holds that last as long as a session.
    pub(super) deadline_ms: Option<NonZeroU64>,
    /// The highest attempt that relies on it (see `attempts`). 0 if no leaving caller ends it, in particular once the
    /// owner shows that it knows of the hold.
    pub(super) attempt: u64,
    pub(super) extras: Option<Box<HoldExtras>>,
}

/// No request claims the hold by its id, or several do.
pub(super) const NO_REQUEST: u32 = u32::MAX;

/// Fields that few holds use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldExtras {
    pub(super) metadata: EncodedMetadata,
    pub(super) requested_expires_at_ns: Option<i64>,
    /// The granted requests of its session that claim it, in order of number, if there are several.
    pub(super) requests: Vec<u32>,
    /// The attempts that rely on it besides the highest, in ascending order.
    pub(super) attempts: Vec<u64>,
    /// The attempts that rely on it as a READ hold, if it was upgraded; none if the READ hold is permanent.
    pub(super) reader_attempts: Vec<u64>,
    /// How long it is kept from others, if it ends earlier.
    pub(super) at_least: Option<AtLeast>,
    /// Requests to release it.
    pub(super) asks: Asks,
    /// The holds that were given up to await a condition, and that it came from; the latest last.
    pub(super) came_from: Vec<CameFrom>,
    /// The answers to signals under it that have an id; the latest last.
    pub(super) signals: Vec<SignalAnswer>,
}

/// How long a hold is kept from other owners, whenever it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AtLeast {
    /// Shard clock at which its time begins: that of the grant.
    pub(super) from_ms: u64,
    /// Shard clock at which its time is over.
    pub(super) until_ms: u64,
    /// Whether its owner has released the hold, which is kept from others since. The owner has it no more.
    pub(super) is_released: bool,
}

/// The parts of a request besides its claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HoldTerms {
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: EncodedMetadata,
    pub(super) requested_expires_at_ns: Option<i64>,
    /// How long the holds are kept from others at least. A snapshot stores it in an item of its own.
    #[serde(skip)]
    pub(super) at_least_ms: u32,
}

impl Hold {
    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Returns how long it is kept from others, whenever it ends.
    pub(super) fn at_least(&self) -> Option<AtLeast> {
        self.extras.as_deref()?.at_least
    }

    /// Returns whether its owner has released it: it is only kept from others.
    pub(super) fn is_kept(&self) -> bool {
        self.at_least().is_some_and(|at_least| at_least.is_released)
    }

    /// Returns the shard clock until which it is kept from others, if that is after an instant.
    pub(super) fn kept_after(&self, at_ms: u64) -> Option<u64> {
        self.at_least().map(|at_least| at_least.until_ms).filter(|until_ms| *until_ms > at_ms)
    }

    /// Adds how long it is kept from others, as a call that extends it requests. That neither restarts nor shortens it.
    pub(super) fn extend_at_least(&mut self, ms: u32, clock_ms: u64) {
        if ms > 0 {
            let from_ms = self.at_least().map_or(clock_ms, |at_least| at_least.from_ms);
            self.set_at_least(from_ms, ms, self.at_least().map(|at_least| at_least.until_ms));
        }
    }

    /// Sets how long it is kept from others from a grant on, and at least until an instant.
    pub(super) fn set_at_least(&mut self, from_ms: u64, ms: u32, until_ms: Option<u64>) {
        let own_ms = (ms > 0).then(|| from_ms.saturating_add(ms.into()));
        let until_ms = until_ms.into_iter().chain(own_ms).max();
        if self.extras.is_some() || until_ms.is_some() {
            let at_least = until_ms.map(|until_ms| AtLeast { from_ms, until_ms, is_released: false });
            self.change_extras(|rare| rare.at_least = at_least);
        }
    }

    /// Makes it a hold that its owner has released: it forgets requests to release it, but not when it ends by force.
    pub(super) fn release_at_least(&mut self) {
        self.change_extras(|rare| {
            rare.asks.latest = None;
            if let Some(at_least) = &mut rare.at_least {
                at_least.is_released = true;
            }
        });
    }

    /// Returns what it keeps of requests to release it.
    pub(super) fn asks(&self) -> Option<&Asks> {
        self.extras.as_deref().map(|rare| &rare.asks).filter(|asks| !asks.is_empty())
    }

    pub(super) fn change_asks(&mut self, change: impl FnOnce(&mut Asks)) {
        self.change_extras(|rare| change(&mut rare.asks));
    }

    /// Returns the shard clock at which it ends by force.
    pub(super) fn forced_at_ms(&self) -> Option<u64> {
        self.asks()?.forced_at_ms
    }

    /// Returns the shard clock at which its phase ends, or the hold by force.
    pub(super) fn ends_at_ms(&self) -> Option<u64> {
        self.deadline_ms.map(u64::from).into_iter().chain(self.forced_at_ms()).min()
    }

    pub(super) fn requests(&self) -> &[u32] {
        match self.request {
            NO_REQUEST => self.extras.as_deref().map_or(&[], |rare| &rare.requests),
            _ => std::slice::from_ref(&self.request),
        }
    }

    /// Returns the encoded size of the metadata in bytes.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.extras.as_deref().map_or(0, |rare| rare.metadata.len())
    }

    /// Adds the claim of a request with an id.
    pub(super) fn claim_by(&mut self, request: u32) {
        match self.requests().binary_search(&request) {
            Ok(_) => {}
            Err(_) if self.requests().is_empty() => self.request = request,
            Err(index) => self.change_requests(|requests| requests.insert(index, request)),
        }
    }

    /// Removes the claim of a request. Returns whether no claim remains.
    pub(super) fn unclaim(&mut self, request: u32) -> bool {
        if self.request == request {
            self.request = NO_REQUEST;
        } else if let Ok(index) = self.requests().binary_search(&request) {
            self.change_requests(|requests| _ = requests.remove(index));
        }
        !self.direct && self.requests().is_empty()
    }

    /// Removes the claims of all requests with ids, and returns the requests.
    pub(super) fn unclaim_all(&mut self) -> Vec<u32> {
        let mut all = Vec::new();
        self.change_requests(|requests| all = std::mem::take(requests));
        all
    }

    fn change_requests(&mut self, change: impl FnOnce(&mut Vec<u32>)) {
        let mut requests = match self.request {
            NO_REQUEST => self.extras.as_mut().map(|rare| std::mem::take(&mut rare.requests)).unwrap_or_default(),
            request => vec![request],
        };
        change(&mut requests);
        self.request = if let [only] = requests[..] { only } else { NO_REQUEST };
        if requests.len() > 1 {
            self.extras.get_or_insert_default().requests = requests;
        }
        self.drop_empty_extras();
    }

    /// Applies the terms of a call. Without capacity, the hold keeps its old metadata.
    pub(super) fn set_terms(&mut self, terms: &HoldTerms, has_capacity: bool) {
        self.transition_ms = terms.transition_ms;
        if self.extras.is_some() || !terms.metadata.is_empty() || terms.requested_expires_at_ns.is_some() {
            let rare = self.extras.get_or_insert_default();
            if has_capacity {
                rare.metadata.clone_from(&terms.metadata);
            }
            rare.requested_expires_at_ns = terms.requested_expires_at_ns;
            self.drop_empty_extras();
        }
    }

    fn drop_empty_extras(&mut self) {
        if self.extras.as_deref() == Some(&HoldExtras::default()) {
            self.extras = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_takes_little_memory() {
        assert!(size_of::<Hold>() <= 56, "a hold takes {} bytes", size_of::<Hold>());
    }
}
