//! Conditions of locks: requests and responses of their operations. Each view serializes as its JSON form in the
//! contract.

use holdfast_types::{FencingToken, Metadata, Woken};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{Lock, OwnerFields, ReasonInfo, ThingName, WokenName};
use crate::Timestamp;

/// Gives a lock up to await a condition of it.
#[derive(Clone, Debug)]
pub struct AwaitCondition {
    /// The lock.
    pub lock: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// The token of the hold that it gives up.
    pub fencing_token: FencingToken,
    /// The name of the condition; empty for the lock's only condition.
    pub condition: String,
    /// How long it awaits the condition, in milliseconds.
    pub wait_ms: u64,
    /// How long it then waits for the lock, in milliseconds.
    pub relock_ms: Option<u64>,
    /// Bounds this one call, in milliseconds; the wait stays for the next call.
    pub poll_ms: Option<u64>,
    /// How long the new hold lasts, in milliseconds. A process id needs it, a session has none.
    pub ttl_ms: Option<u64>,
    /// How long it then stays in transition, in milliseconds; that of the hold given up when absent.
    pub transition_ms: Option<u64>,
    /// Kept with the new hold; those of the hold given up when absent.
    pub metadata: Option<Metadata>,
}

/// Wakes those who await a condition.
#[derive(Clone, Debug)]
pub struct SignalCondition {
    /// The lock.
    pub lock: ThingName,
    /// The owner, which holds the lock.
    pub owner: OwnerFields,
    /// The name of the condition; empty for the lock's only condition.
    pub condition: String,
    /// Whether all are woken, and not only the one that awaits it longest.
    pub all: bool,
    /// Only as the holder of this token.
    pub fencing_token: Option<FencingToken>,
    /// Names the signal under the hold, so that a repeat wakes nobody.
    pub signal_id: Option<String>,
}

/// The response of an await. JSON omits `fencing_token` and `woken` of a refused one, and `reason` of a granted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AwaitAnswer {
    /// Whether the owner has the lock again.
    pub success: bool,
    /// Why it waited for the lock again, if it did.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "woken_as_name")]
    #[schema(value_type = Option<WokenName>)]
    pub woken: Option<Woken>,
    /// The token of the new hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The reason, when the owner does not hold the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// The lock as it now is.
    pub lock: Lock,
}

/// The response of a signal. JSON omits `reason` of a success, and the numbers otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SignalAnswer {
    /// Whether the owner holds the lock.
    pub success: bool,
    /// How many were woken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signalled: Option<u64>,
    /// How many still await the condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaiting: Option<u64>,
    /// `NOT_HELD`, when the owner does not hold the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// The lock as it now is.
    pub lock: Lock,
}

/// A condition that somebody awaits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Condition)]
pub struct ConditionInfo {
    /// Segments of the lock's path.
    pub path: Vec<String>,
    /// The name; empty for the lock's only condition.
    pub condition: String,
    /// How many await it.
    pub awaiting: u64,
    /// When the one began that awaits it longest.
    pub oldest_since: Timestamp,
}

pub(super) fn woken_as_name<S: Serializer>(woken: &Option<Woken>, serializer: S) -> Result<S::Ok, S::Error> {
    match woken {
        Some(woken) => serializer.serialize_str(woken.name()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_condition_is_shown_by_the_names_of_the_contract() {
        let condition = ConditionInfo {
            path: vec!["jobs".into()],
            condition: "full".into(),
            awaiting: 2,
            oldest_since: Timestamp(1_700_000_000_123),
        };
        let expected =
            json!({"path": ["jobs"], "condition": "full", "awaiting": 2, "oldest_since": "2023-11-14T22:13:20.123Z"});
        assert_eq!(serde_json::to_value(condition).unwrap(), expected);
    }
}
