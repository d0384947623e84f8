//! What an account uses, and what it may.

use holdfast_core::{Limits, NamespaceUsage, StateBytes, UsageTotals};
use serde::Serialize;
use utoipa::ToSchema;

use super::LimitsSchema;

/// What an account uses, and what it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageInfo {
    /// 16 lower-case hex digits.
    pub account_id: String,
    /// How many namespaces it may have.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    #[schema(value_type = LimitsSchema)]
    pub limits: Limits,
    /// All that follows, together. Present figures add up, and so does what was done; peaks are the highest of one
    /// namespace.
    pub total: NamespaceFigures,
    /// What all its namespaces are charged with by the bytes kept of them; the limit `max_state_bytes` is for each shard.
    pub state_bytes: StateBytesInfo,
    /// The most of that in one shard.
    pub state_bytes_of_fullest_shard: u64,
    /// Each namespace, in order of name; only those that the key is for.
    pub namespaces: Vec<NamespaceUsageInfo>,
    /// Namespaces that are deleted; absent for a key that is for some namespaces only.
    pub deleted_namespaces: Option<UsageTotalsInfo>,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = NamespaceUsage)]
pub struct NamespaceUsageInfo {
    /// Its name.
    pub name: String,
    /// Its incarnation: 16 lower-case hex digits.
    pub id: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: NamespaceFigures,
    /// What it is charged with by the bytes kept of it.
    pub state_bytes: StateBytesInfo,
}

/// Bytes that are charged, by what they are of: an upper bound of the memory that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StateBytes)]
pub struct StateBytesInfo {
    /// All together.
    pub total: u64,
    /// Open namespaces by themselves.
    pub namespace: u64,
    /// Paths that somebody holds or awaits, and those above them.
    pub paths: u64,
    /// Owners that hold or await something.
    pub owners: u64,
    /// Holds.
    pub holds: u64,
    /// Metadata of holds.
    pub metadata: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Requests of sessions that have an id and are not released.
    pub requests: u64,
    /// Sessions.
    pub sessions: u64,
    /// Events.
    pub events: u64,
}

impl From<StateBytes> for StateBytesInfo {
    fn from(bytes: StateBytes) -> Self {
        let total = bytes.total();
        let StateBytes { namespace, paths, owners, holds, metadata, waiting, requests, sessions, events } = bytes;
        Self { total, namespace, paths, owners, holds, metadata, waiting, requests, sessions, events }
    }
}

/// What there is, and what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageFigures)]
pub struct NamespaceFigures {
    /// Holds now, in any state.
    pub holds: u64,
    /// Waiting requests now.
    pub waiting: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Since it was made.
    #[serde(flatten)]
    pub totals: UsageTotalsInfo,
}

/// What there is in a namespace at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLoad {
    /// Holds, in any state.
    pub holds: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Sessions.
    pub sessions: u64,
}

/// What was done, and the most that there was at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageTotals)]
pub struct UsageTotalsInfo {
    /// Acquires, releases, forced deletions, resets, sessions opened and closed. What only looks, and signs of life,
    /// are not counted.
    pub operations: u64,
    /// Holds that were granted, at once or after a wait; extensions are none.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Sessions that were opened.
    pub sessions_opened: u64,
    /// The most holds at once in one namespace.
    pub peak_holds: u64,
    /// The most waiting requests at once in one namespace.
    pub peak_waiting: u64,
    /// The most sessions at once in one namespace.
    pub peak_sessions: u64,
}

impl From<UsageTotals> for UsageTotalsInfo {
    fn from(totals: UsageTotals) -> Self {
        let UsageTotals { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions } =
            totals;
        Self { operations, grants, waits, sessions_opened, peak_holds, peak_waiting, peak_sessions }
    }
}

impl From<NamespaceUsage> for NamespaceUsageInfo {
    fn from(usage: NamespaceUsage) -> Self {
        let NamespaceUsage { name, incarnation, holds, waiting, sessions, totals } = usage;
        let figures = NamespaceFigures { holds, waiting, sessions, totals: totals.into() };
        Self { name, id: incarnation.to_string(), figures, state_bytes: StateBytesInfo::default() }
    }
}
