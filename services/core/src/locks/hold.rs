//! One hold of one path.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::metadata::EncodedMetadata;
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
}

/// The parts of a request besides its claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HoldTerms {
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u32,
    pub(super) metadata: EncodedMetadata,
    pub(super) requested_expires_at_ns: Option<i64>,
}

impl Hold {
    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
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
    pub(super) fn set_terms(&mut self, terms: &HoldTerms, has_room: bool) {
        self.transition_ms = terms.transition_ms;
        if self.extras.is_some() || !terms.metadata.is_empty() || terms.requested_expires_at_ns.is_some() {
            let rare = self.extras.get_or_insert_default();
            if has_room {
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
