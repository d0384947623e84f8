//! Public names of enumerations: this module describes them, and the functions beside their types render them. A test
//! compares the two.

use utoipa::ToSchema;

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident as $shown:ident { $($value:ident),+ $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
            #[schema(as = $shown, rename_all = "SCREAMING_SNAKE_CASE")]
            #[expect(missing_docs, reason = "the contract explains the names")]
            pub enum $name { $($value),+ }
        )*
    };
}

named! {
    /// The mode of a hold or claim.
    ModeName as Mode { Read, Write }
    /// The state of a lock.
    StateName as LockState { Unlocked, ReadLocked, WriteLocked }
    /// Whether a hold is in transition.
    PhaseName as Phase { Held, Transition }
    /// Why a lock was not granted.
    ReasonName as RefusalReason {
        Upgrade, Held, Ancestor, Descendant, Transition, Queued, Deadlock, TimedOut, NotHeld, Ended, Exhausted,
        TooLarge, NoMember,
    }
    /// The kind of event.
    EventName as EventType {
        Acquired, Released, Expired, Deleted, Reset, SessionOpened, SessionEnded, LatchCreated, LatchCompleted,
        LatchExpired, LatchDeleted, PermitsAcquired, PermitsReleased, SemaphoreConfigured, SemaphoreDeleted,
        MembersTaken, MembersReturned, PoolConfigured, PoolDeleted, ReleaseRequested,
        BarrierTripped, BarrierBroken, BarrierLeft, Awaiting, Signalled,
    }
    /// Why an owner that awaited a condition waited for its lock again.
    WokenName as Woken { Signalled, Elapsed }
    /// Why permits were released.
    PermitsEndName as PermitsEnd { Released, Expired, Deleted, Reset, Shrunk }
    /// The status of a latch.
    LatchStatusName as LatchStatus { Active, Completed, Expired }
    /// How a latch names its jobs.
    LatchIdsName as LatchIds { Named, Indexed }
    /// How a wait for a latch ended.
    LatchOutcomeName as LatchOutcome { Completed, Expired, TimedOut }
    /// What becomes of a generation of a barrier when an arrival ends before all have come.
    OnLossName as OnLoss { Break, Withdraw }
    /// What a party is told of a generation of a barrier.
    BarrierOutcomeName as BarrierOutcome { Tripped, Broken, Waiting, Left, Withdrawn, Full, Past }
    /// How a generation of a barrier ended.
    GenerationEndName as GenerationEnd { Tripped, Broken }
    /// The kind of action.
    ActionName as AuditAction {
        AccountCreated, AccountUpdated, AccountDeleted, ApiKeyCreated, ApiKeyDeleted, NamespaceCreated,
        NamespaceUpdated, NamespaceDeleted, LockDeleted, NamespaceReset, SemaphoreConfigured, SemaphoreDeleted,
        PoolConfigured, PoolDeleted, ReleaseForced, BarrierConfigured, BarrierDeleted,
    }
    /// Whether an account may make calls.
    StatusName as AccountStatus { Active, Suspended }
    /// Where the lock table of a namespace is kept: in the log, or in the memory of its shard's leader.
    DurabilityName as Durability { Full, Session }
    /// Whether a lock table in its leader's memory grants locks.
    TableStateName as LockTableState { Ready, Rebuilding }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{
        AccountStatus, AuditAction, BarrierOutcome, Durability, EventKind, GenerationEnd, Kind, LatchIds, LatchStatus,
        LockState, Mode, OnLoss, PermitsEnd, Phase, Reason, Woken,
    };
    use serde_json::json;
    use utoipa::PartialSchema;

    use super::*;
    use crate::{LatchOutcome, TABLE_READY, TABLE_REBUILDING, mode_name, phase_name, state_name, status_name};

    fn described<T: PartialSchema>() -> serde_json::Value {
        serde_json::to_value(T::schema()).unwrap()["enum"].clone()
    }

    #[test]
    fn what_is_described_is_what_is_shown() {
        assert_eq!(described::<ModeName>(), json!([Mode::Read, Mode::Write].map(mode_name)));
        let states = [LockState::Unlocked, LockState::ReadLocked, LockState::WriteLocked];
        assert_eq!(described::<StateName>(), json!(states.map(state_name)));
        assert_eq!(described::<PhaseName>(), json!([Phase::Held, Phase::Transition].map(phase_name)));
        assert_eq!(
            described::<StatusName>(),
            json!([AccountStatus::Active, AccountStatus::Suspended].map(status_name))
        );
        let durabilities = [Durability::Full, Durability::Session];
        assert_eq!(described::<DurabilityName>(), json!(durabilities.map(Durability::name)));
        assert_eq!(described::<TableStateName>(), json!([TABLE_READY, TABLE_REBUILDING]));
        use Reason::{
            Ancestor, Deadlock, Descendant, Ended, Exhausted, Held, NoMember, NotHeld, Queued, TimedOut, TooLarge,
            Transition, Upgrade,
        };
        let reasons = [
            Upgrade, Held, Ancestor, Descendant, Transition, Queued, Deadlock, TimedOut, NotHeld, Ended, Exhausted,
            TooLarge, NoMember,
        ];
        assert_eq!(described::<ReasonName>(), json!(reasons.map(|reason| reason.name())));
        let kinds = [
            EventKind::Acquired,
            EventKind::Released,
            EventKind::Expired,
            EventKind::Deleted,
            EventKind::Reset,
            EventKind::SessionOpened,
            EventKind::SessionEnded,
            EventKind::LatchCreated,
            EventKind::LatchCompleted,
            EventKind::LatchExpired,
            EventKind::LatchDeleted,
            EventKind::PermitsAcquired { weight: 1 },
            EventKind::PermitsReleased { weight: 1, cause: PermitsEnd::Released },
            EventKind::SemaphoreConfigured,
            EventKind::SemaphoreDeleted,
            EventKind::MembersTaken,
            EventKind::MembersReturned { cause: PermitsEnd::Released },
            EventKind::PoolConfigured,
            EventKind::PoolDeleted,
            EventKind::ReleaseRequested { of: Kind::Lock },
            EventKind::BarrierTripped { generation: 1, parties: 1 },
            EventKind::BarrierBroken { generation: 1, parties: 1, cause: PermitsEnd::Released },
            EventKind::BarrierLeft { generation: 1, parties: 1, cause: PermitsEnd::Released },
            EventKind::Awaiting,
            EventKind::Signalled { woken: Woken::Elapsed },
        ];
        assert_eq!(described::<EventName>(), json!(kinds.map(|kind| kind.name())));
        assert_eq!(described::<ActionName>(), json!(AuditAction::ALL.map(AuditAction::name)));
        use PermitsEnd::{Deleted, Expired, Released, Reset, Shrunk};
        let ends = [Released, Expired, Deleted, Reset, Shrunk];
        assert_eq!(described::<PermitsEndName>(), json!(ends.map(|end| end.name())));
        let woken = [Woken::Signalled, Woken::Elapsed];
        assert_eq!(described::<WokenName>(), json!(woken.map(|woken| woken.name())));
        let statuses = [LatchStatus::Active, LatchStatus::Completed, LatchStatus::Expired];
        assert_eq!(described::<LatchStatusName>(), json!(statuses.map(|status| status.name())));
        assert_eq!(described::<LatchIdsName>(), json!([LatchIds::Named, LatchIds::Indexed].map(|ids| ids.name())));
        assert_eq!(described::<OnLossName>(), json!([OnLoss::Break, OnLoss::Withdraw].map(|it| it.name())));
        let ends = [GenerationEnd::Tripped, GenerationEnd::Broken];
        assert_eq!(described::<GenerationEndName>(), json!(ends.map(|end| end.name())));
        use BarrierOutcome::{Broken, Full, Left, Past, Tripped, Waiting, Withdrawn};
        let outcomes = [Tripped, Broken, Waiting, Left, Withdrawn, Full, Past];
        assert_eq!(described::<BarrierOutcomeName>(), json!(outcomes.map(|outcome| outcome.name())));
        let outcomes = [LatchOutcome::Completed, LatchOutcome::Expired, LatchOutcome::TimedOut];
        assert_eq!(described::<LatchOutcomeName>(), json!(outcomes.map(|outcome| outcome.name())));
    }
}
