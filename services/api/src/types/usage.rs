//! An account's usage and limits.

use holdfast_types::limit::Limit;
use holdfast_types::{Limits, NamespaceUsage, StateBytes, UsageTotals};
use serde::Serialize;
use utoipa::ToSchema;

use super::LimitsSchema;

/// An account's usage and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageInfo {
    /// 16 lower-case hex digits.
    pub account_id: String,
    /// The maximum number of namespaces.
    pub max_number_of_namespaces: u32,
    /// Its limits.
    #[schema(value_type = LimitsSchema)]
    pub limits: Limits,
    /// Every limit, and how much is used of it. For a key that is limited to some namespaces, only the use of limits of
    /// namespaces.
    pub limit_usage: Vec<LimitUsageInfo>,
    /// The sum of all that follows. Present values and totals add up; peaks are the highest of one namespace.
    pub total: NamespaceFigures,
    /// Charged bytes of the state of all its namespaces; the limit `max_state_bytes` applies to each shard.
    pub state_bytes: StateBytesInfo,
    /// The largest part of that in one shard.
    pub state_bytes_of_fullest_shard: u64,
    /// Each namespace, in order of name; only those that the key covers.
    pub namespaces: Vec<NamespaceUsageInfo>,
    /// Deleted namespaces; absent for a key that is limited to some namespaces.
    pub deleted_namespaces: Option<UsageTotalsInfo>,
}

/// A limit, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = LimitUsage)]
pub struct LimitUsageInfo {
    /// The name of the limit, as in errors.
    pub limit: String,
    /// What has the limit for itself: `account`, `namespace`, `lock`, `account and gateway`, and so on.
    pub each: String,
    /// The present use: of the namespace, shard or node where it is highest. Of a rate, the calls that are not paid off
    /// yet; for `max_requests_per_second` and `request_bytes_per_second` up to twice `max`. Absent for limits that count
    /// neither for the account nor for its namespaces, such as those of each lock, and for those whose use is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// How much the limit allows now; 0 for a rate that is not limited. Of nodes, what they have by default, and 0 for a
    /// part of the memory of their machines.
    pub max: u64,
    /// Whether the use is that of the gateway which answers, and other gateways have their own.
    pub of_this_gateway: bool,
}

impl LimitUsageInfo {
    /// The use of a limit in the whole service.
    pub fn new(limit: &Limit, used: u64, max: u64) -> Self {
        Self { used: Some(used), ..Self::without_use(limit, max) }
    }

    /// A limit without its use.
    pub fn without_use(limit: &Limit, max: u64) -> Self {
        let (limit, each) = (limit.name.to_owned(), limit.scope.name().to_owned());
        Self { limit, each, used: None, max, of_this_gateway: false }
    }

    /// The use of a limit at this gateway by an account with these limits.
    pub fn of_this_gateway(limit: &Limit, used: u64, limits: &Limits) -> Self {
        Self { of_this_gateway: true, ..Self::new(limit, used, limit.value_of(limits)) }
    }
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = NamespaceUsage)]
pub struct NamespaceUsageInfo {
    /// Its name.
    pub name: String,
    /// Its incarnation: 16 lower-case hex digits.
    pub id: String,
    /// Its usage.
    #[serde(flatten)]
    pub figures: NamespaceFigures,
    /// Charged bytes of its state.
    pub state_bytes: StateBytesInfo,
}

/// Charged bytes by kind of item: an upper bound of the memory that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StateBytes)]
pub struct StateBytesInfo {
    /// All together.
    pub total: u64,
    /// Open namespaces by themselves.
    pub namespace: u64,
    /// Paths with holds or waiting requests, and those above them.
    pub paths: u64,
    /// Owners with holds or waiting requests.
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
    /// Latches, with what is done.
    pub latches: u64,
    /// Semaphores and pools, with their members, holds and waiting requests.
    pub semaphores: u64,
    /// Barriers, with their arrivals and the latest generations.
    pub barriers: u64,
    /// Owners that await conditions, with what their waits for the locks take.
    pub conditions: u64,
}

impl From<StateBytes> for StateBytesInfo {
    fn from(bytes: StateBytes) -> Self {
        let total = bytes.total();
        let StateBytes { namespace, paths, owners, holds, metadata, waiting, requests, sessions, events, .. } = bytes;
        let StateBytes { latches, semaphores, barriers, conditions, .. } = bytes;
        let of_locks = Self { total, namespace, paths, owners, holds, metadata, waiting, requests, ..Self::default() };
        Self { sessions, events, latches, semaphores, barriers, conditions, ..of_locks }
    }
}

/// Present state and totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageFigures)]
pub struct NamespaceFigures {
    /// Holds now, in any state.
    pub holds: u64,
    /// Waiting requests now.
    pub waiting: u64,
    /// Sessions now.
    pub sessions: u64,
    /// Latches now, in any status.
    pub latches: u64,
    /// Semaphores now, configured or not.
    pub semaphores: u64,
    /// Holds of semaphores and pools now, in any state.
    pub permit_holds: u64,
    /// Requests that wait for permits or members now.
    pub permit_waits: u64,
    /// Pools now.
    pub pools: u64,
    /// Barriers now, configured or not.
    pub barriers: u64,
    /// Arrivals at barriers now, those inside double ones included.
    pub arrivals: u64,
    /// Owners that await conditions now.
    pub awaiting: u64,
    /// Since its creation.
    #[serde(flatten)]
    pub totals: UsageTotalsInfo,
}

/// The present load of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLoad {
    /// Holds, in any state.
    pub holds: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Sessions.
    pub sessions: u64,
}

/// Totals and peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = UsageTotals)]
pub struct UsageTotalsInfo {
    /// Acquires, releases, forced deletions, resets, sessions opened and closed. Reads and keep-alives are not counted.
    pub operations: u64,
    /// Granted holds, at once or after a wait; extensions do not count.
    pub grants: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Opened sessions.
    pub sessions_opened: u64,
    /// The most concurrent holds in one namespace.
    pub peak_holds: u64,
    /// The most concurrent waiting requests in one namespace.
    pub peak_waiting: u64,
    /// The most concurrent sessions in one namespace.
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
        let figures = NamespaceFigures {
            holds: usage.holds,
            waiting: usage.waiting,
            sessions: usage.sessions,
            latches: usage.latches,
            semaphores: usage.semaphores,
            permit_holds: usage.permit_holds,
            permit_waits: usage.permit_waits,
            pools: usage.pools,
            barriers: usage.barriers,
            arrivals: usage.arrivals,
            awaiting: usage.awaiting,
            totals: usage.totals.into(),
        };
        let id = usage.incarnation.to_string();
        Self { name: usage.name, id, figures, state_bytes: StateBytesInfo::default() }
    }
}
