//! Sessions and their named requests.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::metadata::EncodedMetadata;

use super::name::Name;
use super::named_requests::{LiveClaims, RequestIndex};
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::report::Report;
use crate::{Bounds, CommandError, FencingToken, MessageSeq, RequestId, SessionNumber, SessionView, WaitId};

/// A session of a namespace.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Shared with snapshots in progress, which need nothing else of the session.
    pub(super) facts: Arc<SessionFacts>,
    /// Its owners that hold or wait.
    pub(super) owners: BTreeSet<OwnerId>,
    /// The one of them without a holder, or [`NO_OWNER`]. Most commands are its.
    pub(super) own: OwnerId,
    /// The number of holds, and of waits and awaits, of these owners. Counted incrementally, because every response to
    /// a keep-alive contains them.
    pub(super) holds: u64,
    pub(super) waiting: u64,
    /// Its unreleased requests by id.
    pub(super) requests: RequestIndex,
    /// What its client reports after a resume, until everything else has ended. Shared with snapshots in progress.
    pub(super) report: Option<Arc<Report>>,
}

/// The properties of a session, without its state.
#[derive(Clone, Debug)]
pub(super) struct SessionFacts {
    pub(super) number: SessionNumber,
    pub(super) epoch: u64,
    /// The sequence number of the last message of the epoch.
    pub(super) seq: u64,
    /// The id of the last opening.
    pub(super) opening: RequestId,
    pub(super) process_id: Arc<str>,
    pub(super) ttl_ms: u64,
    pub(super) metadata: EncodedMetadata,
    /// The leader's wall clock at the first opening.
    pub(super) opened_at_ms: u64,
}

impl Session {
    /// Returns its owners if iterating over them is faster than scanning the whole namespace.
    pub(super) fn owners_if_few(&self, things: u64, bounds: &Bounds) -> Option<Vec<OwnerId>> {
        let few = bounds.ends_per_slice.saturating_mul(2) as u64;
        (things <= few).then(|| self.owners.iter().copied().collect())
    }

    pub(super) fn new(facts: SessionFacts) -> Self {
        let (owners, requests) = (BTreeSet::new(), RequestIndex::default());
        Self { facts: Arc::new(facts), owners, own: NO_OWNER, holds: 0, waiting: 0, requests, report: None }
    }

    /// Adds an owner that holds or waits, and whether it is the one without a holder.
    pub(super) fn add_owner(&mut self, owner: OwnerId, is_own: bool) {
        self.owners.insert(owner);
        if is_own {
            self.own = owner;
        }
    }

    pub(super) fn remove_owner(&mut self, owner: OwnerId) {
        self.owners.remove(&owner);
        if self.own == owner {
            self.own = NO_OWNER;
        }
    }

    /// Returns a view, given its holds and waits of semaphores and pools.
    pub(super) fn view(&self, session_id: &str, (permit_holds, permit_waits): (u64, u64)) -> SessionView {
        SessionView {
            session_id: session_id.to_owned(),
            number: self.facts.number,
            epoch: self.facts.epoch,
            process_id: self.facts.process_id.to_string(),
            ttl_ms: self.facts.ttl_ms,
            remaining_ms: self.facts.ttl_ms,
            metadata: self.facts.metadata.get(),
            opened_at_ms: self.facts.opened_at_ms,
            holds: self.holds + permit_holds,
            waiting: self.waiting + permit_waits,
        }
    }

    /// Returns whether the message is newer than the last one. A call without a message number is.
    pub(super) fn is_next(&self, message: Option<MessageSeq>) -> Result<bool, CommandError> {
        let Some(message) = message else { return Ok(true) };
        self.check_epoch(message.epoch)?;
        Ok(message.seq > self.facts.seq)
    }

    /// Rejects messages of a connection that another one superseded.
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
    Awaiting(WaitId),
}

/// A granted request of a session that still has claims.
#[derive(Clone, Debug)]
pub(super) struct GrantedRequest {
    pub(super) request_id: Name,
    pub(super) owner: OwnerId,
    /// The number of claims that it had.
    pub(super) claimed: u32,
    pub(super) token: FencingToken,
    /// The calls that received the grant, until the client shows that it knows of it.
    pub(super) attempts: Attempts,
    /// The claims whose holds still exist.
    pub(super) live: LiveClaims,
}
