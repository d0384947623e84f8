//! Latches: requests and responses of their operations. Each view serializes as its JSON form in the contract.

use holdfast_types::{Jobs, LatchIds, LatchStatus, Metadata, Revision};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{LatchIdsName, LatchOutcomeName, LatchStatusName, PageRequest, ThingName};
use crate::Timestamp;

/// A latch, or only the one with this id.
#[derive(Clone, Debug)]
pub struct LatchName {
    /// The latch.
    pub thing: ThingName,
    /// If given, only the latch with this id: one that was deleted and made again has another.
    pub id: Option<Revision>,
}

/// A new latch.
#[derive(Clone, Debug)]
pub struct CreateLatch {
    /// The latch.
    pub thing: ThingName,
    /// How many jobs have to be done.
    pub total: u64,
    /// How it names them; frontends set NAMED when the caller says nothing.
    pub ids: LatchIds,
    /// How long it may stay active, in milliseconds; 24 h when absent.
    pub expires_in_ms: Option<u64>,
    /// How long it is kept once it is final, in milliseconds; 1 h when absent.
    pub retain_ms: Option<u64>,
    /// For people; empty when absent.
    pub description: Option<String>,
    /// Kept with the latch.
    pub metadata: Metadata,
}

/// A report of what is done.
#[derive(Clone, Debug)]
pub struct CountDown {
    /// The latch.
    pub latch: LatchName,
    /// Ids, for a latch that counts ids.
    pub ids: Option<Vec<String>>,
    /// Ranges of indexes, both ends included, for a latch that counts indexes.
    pub ranges: Option<Vec<(u64, u64)>>,
}

/// A change of the total of a latch.
#[derive(Clone, Debug)]
pub struct SetLatchTotal {
    /// The latch.
    pub latch: LatchName,
    /// The new total.
    pub total: u64,
    /// Change it only if this is the present one.
    pub if_total: Option<u64>,
}

/// A wait for a latch.
#[derive(Clone, Debug)]
pub struct WaitForLatch {
    /// The latch.
    pub latch: LatchName,
    /// How long to wait, in milliseconds; with 0 the answer comes at once.
    pub wait_ms: u64,
}

/// A look at a latch and a page of what is done.
#[derive(Clone, Debug)]
pub struct GetLatch {
    /// The latch.
    pub latch: LatchName,
    /// The page.
    pub page: PageRequest,
}

/// The current state of a latch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Latch)]
pub struct LatchInfo {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Its path.
    pub path: Vec<String>,
    /// The revision of its creation.
    pub id: u64,
    /// All but ACTIVE are final.
    #[serde(serialize_with = "status_as_name")]
    #[schema(value_type = LatchStatusName)]
    pub status: LatchStatus,
    /// How many jobs have to be done.
    pub total: u64,
    /// How many are done.
    pub done: u64,
    /// How it names them.
    #[serde(serialize_with = "ids_as_name")]
    #[schema(value_type = LatchIdsName)]
    pub ids: LatchIds,
    /// Computed from `remaining_ms`; absent once it is final.
    pub expires_at: Option<Timestamp>,
    /// How long it stays active unless it is completed; absent once it is final.
    pub remaining_ms: Option<u64>,
    /// When it became final; absent while it is active.
    pub finished_at: Option<Timestamp>,
    /// How long it is kept once it is final, in milliseconds.
    pub retain_ms: u64,
    /// As given.
    pub description: String,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The revision of its last change.
    pub revision: u64,
    /// How many others wait for it now. Absent in the response to a change, and while a new leader does not know it yet.
    pub waiters: Option<u64>,
}

/// The response of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateLatchAnswer {
    /// The latch.
    pub latch: LatchInfo,
    /// Whether this call made it.
    pub created: bool,
}

/// The response of a count-down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CountDownAnswer {
    /// How many were not done before: 0 may mean that an earlier copy of this counted them.
    pub counted: u64,
    /// The latch as it now is.
    pub latch: LatchInfo,
}

/// The response of a change of the total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SetLatchTotalAnswer {
    /// False when the present total is neither `if_total` nor `total`, or the latch is not active.
    pub success: bool,
    /// The latch as it now is.
    pub latch: LatchInfo,
}

/// How a wait for a latch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchOutcome {
    /// All jobs are done.
    Completed,
    /// Not all were done in time.
    Expired,
    /// The wait ended first.
    TimedOut,
}

impl LatchOutcome {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::Expired => "EXPIRED",
            Self::TimedOut => "TIMED_OUT",
        }
    }
}

impl From<LatchStatus> for LatchOutcome {
    fn from(status: LatchStatus) -> Self {
        match status {
            LatchStatus::Active => Self::TimedOut,
            LatchStatus::Completed => Self::Completed,
            LatchStatus::Expired => Self::Expired,
        }
    }
}

/// The response of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct WaitForLatchAnswer {
    /// How the wait ended.
    #[serde(serialize_with = "outcome_as_name")]
    #[schema(value_type = LatchOutcomeName)]
    pub outcome: LatchOutcome,
    /// The latch as it now is.
    pub latch: LatchInfo,
}

/// A latch, and a page of what is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchDone {
    /// The latch.
    pub latch: LatchInfo,
    /// Ids or ranges of indexes, in order.
    pub done: Jobs,
    /// The token of the next page; absent on the last.
    pub next_page_token: Option<String>,
}

/// Returns how a latch names its jobs, by its public name.
pub fn parse_latch_ids(name: &str) -> Option<LatchIds> {
    [LatchIds::Named, LatchIds::Indexed].into_iter().find(|ids| ids.name() == name)
}

fn status_as_name<S: Serializer>(status: &LatchStatus, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(status.name())
}

fn ids_as_name<S: Serializer>(ids: &LatchIds, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(ids.name())
}

fn outcome_as_name<S: Serializer>(outcome: &LatchOutcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_latch_is_shown_by_the_names_of_the_contract() {
        let latch = LatchInfo {
            namespace: "ns".into(),
            name: None,
            path: vec!["a".into(), "b".into()],
            id: 7,
            status: LatchStatus::Active,
            total: 3,
            done: 1,
            ids: LatchIds::Indexed,
            expires_at: Some(Timestamp(1_700_000_000_123)),
            remaining_ms: Some(5),
            finished_at: None,
            retain_ms: 60_000,
            description: "d".into(),
            metadata: Metadata::new(),
            revision: 9,
            waiters: Some(4),
        };
        let shown = serde_json::to_value(WaitForLatchAnswer { outcome: latch.status.into(), latch }).unwrap();
        let expected = json!({"outcome": "TIMED_OUT", "latch": {
            "namespace": "ns", "name": null, "path": ["a", "b"], "id": 7, "status": "ACTIVE", "total": 3, "done": 1,
            "ids": "INDEXED", "expires_at": "2023-11-14T22:13:20.123Z", "remaining_ms": 5, "finished_at": null,
            "retain_ms": 60_000, "description": "d", "metadata": {}, "revision": 9, "waiters": 4,
        }});
        assert_eq!(shown, expected);
        assert_eq!(parse_latch_ids("NAMED"), Some(LatchIds::Named));
        assert_eq!(parse_latch_ids("named"), None);
    }
}
