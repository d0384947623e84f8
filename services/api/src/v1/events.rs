//! Converts events to messages.

use holdfast_proto::v1;
use holdfast_types::{EventKind, Mode};

use super::convert;
use crate::EventInfo;

/// Converts an event.
pub fn event(event: EventInfo) -> v1::Event {
    let claims = event.claims.into_iter();
    v1::Event {
        revision: event.revision,
        r#type: kind(event.kind).into(),
        at: Some(convert::instant(event.at)),
        process_id: event.process_id,
        session_id: event.session_id,
        holder: event.holder,
        fencing_token: event.fencing_token,
        claims: claims.map(|claim| v1::event::Claim { path: claim.path, mode: mode(claim.mode).into() }).collect(),
        kind: event.thing.map(str::to_owned),
        path: event.path.unwrap_or_default(),
        weight: event.weight,
        members: event.members,
        cause: event.cause.map(|cause| cause.name().to_owned()),
        generation: event.generation,
        parties: event.parties,
        condition: event.condition,
        woken: event.woken.map(|woken| woken.name().to_owned()),
    }
}

fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Read => v1::Mode::Read,
        Mode::Write => v1::Mode::Write,
    }
}

fn kind(kind: EventKind) -> v1::event::Type {
    match kind {
        EventKind::Acquired => v1::event::Type::Acquired,
        EventKind::Released => v1::event::Type::Released,
        EventKind::Expired => v1::event::Type::Expired,
        EventKind::Deleted => v1::event::Type::Deleted,
        EventKind::Reset => v1::event::Type::Reset,
        EventKind::SessionOpened => v1::event::Type::SessionOpened,
        EventKind::SessionEnded => v1::event::Type::SessionEnded,
        EventKind::LatchCreated => v1::event::Type::LatchCreated,
        EventKind::LatchCompleted => v1::event::Type::LatchCompleted,
        EventKind::LatchExpired => v1::event::Type::LatchExpired,
        EventKind::LatchDeleted => v1::event::Type::LatchDeleted,
        EventKind::PermitsAcquired { .. } => v1::event::Type::PermitsAcquired,
        EventKind::PermitsReleased { .. } => v1::event::Type::PermitsReleased,
        EventKind::SemaphoreConfigured => v1::event::Type::SemaphoreConfigured,
        EventKind::SemaphoreDeleted => v1::event::Type::SemaphoreDeleted,
        EventKind::MembersTaken => v1::event::Type::MembersTaken,
        EventKind::MembersReturned { .. } => v1::event::Type::MembersReturned,
        EventKind::PoolConfigured => v1::event::Type::PoolConfigured,
        EventKind::PoolDeleted => v1::event::Type::PoolDeleted,
        EventKind::ReleaseRequested { .. } => v1::event::Type::ReleaseRequested,
        EventKind::BarrierTripped { .. } => v1::event::Type::BarrierTripped,
        EventKind::BarrierBroken { .. } => v1::event::Type::BarrierBroken,
        EventKind::BarrierLeft { .. } => v1::event::Type::BarrierLeft,
        EventKind::Awaiting => v1::event::Type::Awaiting,
        EventKind::Signalled { .. } => v1::event::Type::Signalled,
    }
}
