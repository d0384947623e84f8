//! A request for claims, whichever command carries it.

use crate::{Acquire, Claim, FencingToken, MessageSeq, Metadata, Owner, SessionAcquire, SessionTerms, Wait};

/// A request for claims, as [`Acquire`] describes it.
pub(super) struct Request<'a> {
    pub(super) owner: &'a Owner,
    pub(super) claims: &'a [Claim],
    pub(super) ttl_ms: Option<u64>,
    pub(super) transition_ms: u64,
    pub(super) at_least_ms: u64,
    pub(super) metadata: &'a Metadata,
    pub(super) fencing_token: Option<FencingToken>,
    pub(super) requested_expires_at_ns: Option<i64>,
    pub(super) wait: Wait,
    pub(super) allow_upgrade: bool,
    pub(super) request_id: Option<&'a str>,
    pub(super) attempt: u64,
    pub(super) message: Option<MessageSeq>,
    /// Whether views of the claimed locks are wanted even if each claim has the new token.
    pub(super) always_shows: bool,
}

impl<'a> Request<'a> {
    /// Returns the request of an acquire whose holds are kept from others for so long at least.
    pub(super) fn of(acquire: &'a Acquire, at_least_ms: u64) -> Self {
        Self {
            owner: &acquire.owner,
            claims: &acquire.claims,
            ttl_ms: acquire.ttl_ms,
            transition_ms: acquire.transition_ms,
            at_least_ms,
            metadata: &acquire.metadata,
            fencing_token: acquire.fencing_token,
            requested_expires_at_ns: acquire.requested_expires_at_ns,
            wait: acquire.wait,
            allow_upgrade: acquire.allow_upgrade,
            request_id: acquire.request_id.as_deref(),
            attempt: acquire.attempt,
            message: acquire.message,
            always_shows: true,
        }
    }

    /// Returns the request of a connected session, given its owner.
    pub(super) fn of_session(
        (acquire, terms): (&'a SessionAcquire, &'a SessionTerms),
        owner: &'a Owner,
        message: MessageSeq,
    ) -> Self {
        Self {
            owner,
            claims: &acquire.claims,
            ttl_ms: None,
            transition_ms: acquire.transition_ms,
            at_least_ms: terms.at_least_ms,
            metadata: &terms.metadata,
            fencing_token: None,
            requested_expires_at_ns: None,
            wait: acquire.wait,
            allow_upgrade: acquire.allow_upgrade,
            request_id: Some(&acquire.request_id),
            attempt: 0,
            message: Some(message),
            always_shows: false,
        }
    }
}
