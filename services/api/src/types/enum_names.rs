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
        Upgrade, Held, Ancestor, Descendant, Transition, Queued, Deadlock, TimedOut, NotHeld, Ended,
    }
    /// The kind of event.
    EventName as EventType { Acquired, Released, Expired, Deleted, Reset, SessionOpened, SessionEnded }
    /// The kind of action.
    ActionName as AuditAction {
        AccountCreated, AccountUpdated, AccountDeleted, ApiKeyCreated, ApiKeyDeleted, NamespaceCreated,
        NamespaceUpdated, NamespaceDeleted, LockDeleted, NamespaceReset,
    }
    /// Whether an account may make calls.
    StatusName as AccountStatus { Active, Suspended }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{AccountStatus, AuditAction, EventKind, LockState, Mode, Phase, Reason};
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
