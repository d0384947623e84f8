//! The bytes of the view of a hold. The encoding is positional, and the view is older than requests to release: a hold
//! that was asked for has another phase, which contains the request.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{FencingToken, HolderView, Metadata, Mode, Owner, Phase, ReleaseRequest};

/// Borrowed for writing, owned for reading.
#[derive(Serialize, Deserialize)]
struct HolderWire<O, P, M, R> {
    owner: O,
    process_id: P,
    mode: Mode,
    fencing_token: FencingToken,
    locked_at_ms: u64,
    deadline_ms: Option<u64>,
    requested_expires_at_ns: Option<i64>,
    phase: PhaseWire<R>,
    metadata: M,
}

#[derive(Serialize, Deserialize)]
enum PhaseWire<R> {
    Held,
    Transition,
    /// Since rules 2.
    HeldAsked(R),
    /// Since rules 2.
    TransitionAsked(R),
}

impl Serialize for HolderView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let phase = match (self.phase, self.release_requested.as_deref()) {
            (Phase::Held, None) => PhaseWire::Held,
            (Phase::Transition, None) => PhaseWire::Transition,
            (Phase::Held, Some(request)) => PhaseWire::HeldAsked(request),
            (Phase::Transition, Some(request)) => PhaseWire::TransitionAsked(request),
        };
        let wire = HolderWire {
            owner: &self.owner,
            process_id: &self.process_id,
            mode: self.mode,
            fencing_token: self.fencing_token,
            locked_at_ms: self.locked_at_ms,
            deadline_ms: self.deadline_ms,
            requested_expires_at_ns: self.requested_expires_at_ns,
            phase,
            metadata: &self.metadata,
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HolderView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = HolderWire::<Owner, String, Metadata, Box<ReleaseRequest>>::deserialize(deserializer)?;
        let (phase, release_requested) = match wire.phase {
            PhaseWire::Held => (Phase::Held, None),
            PhaseWire::Transition => (Phase::Transition, None),
            PhaseWire::HeldAsked(request) => (Phase::Held, Some(request)),
            PhaseWire::TransitionAsked(request) => (Phase::Transition, Some(request)),
        };
        Ok(Self {
            owner: wire.owner,
            process_id: wire.process_id,
            mode: wire.mode,
            fencing_token: wire.fencing_token,
            locked_at_ms: wire.locked_at_ms,
            deadline_ms: wire.deadline_ms,
            requested_expires_at_ns: wire.requested_expires_at_ns,
            phase,
            metadata: wire.metadata,
            release_requested,
        })
    }
}
