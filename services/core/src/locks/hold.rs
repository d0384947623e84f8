//! One hold of one path.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::metadata::EncodedMetadata;
use super::owner::OwnerId;
use crate::{FencingToken, Mode, Phase};

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
    pub(super) extras: Option<Box<HoldExtras>>,
}

/// What few holds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldExtras {
    pub(super) metadata: EncodedMetadata,
    pub(super) requested_expires_at_ns: Option<i64>,
    /// The granted requests of its session that claim it, in order of number.
    pub(super) requests: Vec<u32>,
    /// The calls that count on it besides the highest, rising.
    pub(super) attempts: Vec<u64>,
    /// Those that count on it as a reader's, when it was upgraded; none when as such it stays.
    pub(super) reader_attempts: Vec<u64>,
}

/// What a request asks for besides its claims.
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
        self.extras.as_deref().map_or(&[], |rare| &rare.requests)
    }

    /// How many bytes of metadata it has, as encoded.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.extras.as_deref().map_or(0, |rare| rare.metadata.len())
    }

    /// A request claims it by id.
    pub(super) fn claim_by(&mut self, request: u32) {
        let requests = &mut self.extras.get_or_insert_default().requests;
        if let Err(index) = requests.binary_search(&request) {
            requests.insert(index, request);
        }
    }

    /// A request gives its claim up. Whether nothing claims the hold any more.
    pub(super) fn unclaim(&mut self, request: u32) -> bool {
        if let Some(rare) = &mut self.extras
            && let Ok(index) = rare.requests.binary_search(&request)
        {
            rare.requests.remove(index);
        }
        self.drop_empty_extras();
        !self.direct && self.requests().is_empty()
    }

    /// All requests give their claims up; which they were.
    pub(super) fn unclaim_all(&mut self) -> Vec<u32> {
        let requests = self.extras.as_mut().map(|rare| std::mem::take(&mut rare.requests)).unwrap_or_default();
        self.drop_empty_extras();
        requests
    }

    /// Takes over what a call asks for; but not its metadata where there is no room for that.
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
