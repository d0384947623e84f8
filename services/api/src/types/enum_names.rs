//! Enumerations as callers see them: described here, shown by the functions beside their types. A test keeps the two
//! alike.

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
    /// How a lock is held or claimed.
    ModeName as Mode { Read, Write }
    /// What state a lock is in.
    StateName as LockState { Unlocked, ReadLocked, WriteLocked }
    /// Whether a hold is in transition.
    PhaseName as Phase { Held, Transition }
    /// Why a lock was not granted.
    ReasonName as RefusalReason {
        Upgrade, Held, Ancestor, Descendant, Transition, Queued, Deadlock, TimedOut, NotHeld, Ended,
    }
    /// What happened.
    EventName as EventType { Acquired, Released, Expired, Deleted, Reset, SessionOpened, SessionEnded }
    /// What was done.
    ActionName as AuditAction {
        AccountCreated, AccountUpdated, AccountDeleted, ApiKeyCreated, ApiKeyDeleted, NamespaceCreated,
        NamespaceUpdated, NamespaceDeleted, LockDeleted, NamespaceReset,
    }
    /// Whether an account may call.
    StatusName as AccountStatus { Active, Suspended }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AccountStatus, AuditAction, EventKind, LockState, Mode, Phase, Reason};
    use serde_json::json;
    use utoipa::PartialSchema;

    use super::*;
    use crate::{mode_name, phase_name, state_name, status_name};

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
        use Reason::{Ancestor, Deadlock, Descendant, Ended, Held, NotHeld, Queued, TimedOut, Transition, Upgrade};
        let reasons = [Upgrade, Held, Ancestor, Descendant, Transition, Queued, Deadlock, TimedOut, NotHeld, Ended];
        assert_eq!(described::<ReasonName>(), json!(reasons.map(|reason| reason.name())));
        use EventKind::{Acquired, Deleted, Expired, Released, Reset, SessionEnded, SessionOpened};
        let kinds = [Acquired, Released, Expired, Deleted, Reset, SessionOpened, SessionEnded];
        assert_eq!(described::<EventName>(), json!(kinds.map(|kind| kind.name())));
        assert_eq!(described::<ActionName>(), json!(AuditAction::ALL.map(AuditAction::name)));
    }
}
