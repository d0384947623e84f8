//! Sessions and the requests that they name.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::attempts::Attempts;
use super::metadata::EncodedMetadata;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::tree::NodeId;
use crate::{Bounds, CommandError, FencingToken, Mode, RequestId, SessionNumber, SessionView};

/// A session of a namespace.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Shared with a snapshot under way, which needs no more of it.
    pub(super) facts: Arc<SessionFacts>,
    /// Its holders that hold or await something.
    pub(super) owners: BTreeSet<OwnerId>,
    /// What these hold and await together. Counted as it comes and goes, since every sign of life is answered with it.
    pub(super) holds: u64,
    pub(super) waiting: u64,
    /// Its unreleased requests by id.
    pub(super) requests: BTreeMap<Box<str>, NamedRequest>,
}

/// What a session is, apart from what it has.
#[derive(Clone, Debug)]
pub(super) struct SessionFacts {
    pub(super) number: SessionNumber,
    pub(super) epoch: u64,
    /// The last message of the epoch.
    pub(super) seq: u64,
    /// Names the last opening.
    pub(super) opening: RequestId,
    pub(super) process_id: Arc<str>,
    pub(super) ttl_ms: u64,
    pub(super) metadata: EncodedMetadata,
    /// The leader's wall clock at the first opening.
    pub(super) opened_at_ms: u64,
}

impl Session {
    /// Its owners, when what is looked for is found sooner from them than by going through all that the namespace has.
    pub(super) fn owners_if_few(&self, things: u64, bounds: &Bounds) -> Option<Vec<OwnerId>> {
        let few = bounds.ends_per_slice.saturating_mul(2) as u64;
        (things <= few).then(|| self.owners.iter().copied().collect())
    }

    pub(super) fn new(facts: SessionFacts) -> Self {
        let (owners, requests) = (BTreeSet::new(), BTreeMap::new());
        Self { facts: Arc::new(facts), owners, holds: 0, waiting: 0, requests }
    }

    pub(super) fn view(&self, session_id: &str) -> SessionView {
        SessionView {
            session_id: session_id.to_owned(),
            number: self.facts.number,
            epoch: self.facts.epoch,
            process_id: self.facts.process_id.to_string(),
            ttl_ms: self.facts.ttl_ms,
            remaining_ms: self.facts.ttl_ms,
            metadata: self.facts.metadata.get(),
            opened_at_ms: self.facts.opened_at_ms,
            holds: self.holds,
            waiting: self.waiting,
        }
    }

    /// What comes by a connection that another one superseded is refused.
    pub(super) fn check_epoch(&self, epoch: u64) -> Result<(), CommandError> {
        match epoch.cmp(&self.facts.epoch) {
            Ordering::Less => Err(CommandError::Superseded { epoch: self.facts.epoch }),
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(CommandError::Malformed(format!("the epoch {epoch} was never given out"))),
        }
    }
}

/// Where an unreleased request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedRequest {
    Waiting(QueuePosition),
    Granted(u32),
}

/// A granted request of a session that still claims something.
#[derive(Clone, Debug)]
pub(super) struct GrantedRequest {
    pub(super) session_id: Arc<str>,
    pub(super) request_id: Box<str>,
    pub(super) owner: OwnerId,
    pub(super) token: FencingToken,
    /// The calls that it was granted to, until the client shows that it knows of it.
    pub(super) attempts: Attempts,
    /// How many claims it had.
    pub(super) claimed: usize,
    /// The claims whose holds are still there, in order of node.
    pub(super) live: BTreeMap<NodeId, Mode>,
}
