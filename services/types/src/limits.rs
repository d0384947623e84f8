//! Limits of requests and of accounts. Bounds of the state machines are in [`super::Bounds`]; [`crate::limit`] describes
//! the limits that callers can meet.

use serde::{Deserialize, Serialize};

/// Maximum length of a name, a path segment, a process id or a holder: 1 to this many bytes of UTF-8 without NUL.
pub const MAX_NAME_BYTES: usize = 128;
/// Maximum length of an e-mail address in bytes.
pub const MAX_EMAIL_BYTES: usize = 254;
/// Maximum length of the full name of an account in bytes.
pub const MAX_FULL_NAME_BYTES: usize = 256;
/// Maximum number of rows in one page of a list.
pub const MAX_PAGE_SIZE: u32 = 1_000;
/// Maximum encoded bytes of one page of a list: a page ends early if it would exceed this, but has at least one row.
/// Each step of a page, such as reading it or writing it as JSON, keeps a thread for as long as it takes: with so many
/// bytes for less than a millisecond.
pub const MAX_PAGE_BYTES: usize = 256 * 1024;
/// Number of rows in a page if the caller does not specify it.
pub const DEFAULT_PAGE_SIZE: u32 = 100;
/// Maximum number of events that one query examines, whether they match or not; the response tells where to continue.
pub const MAX_EVENTS_EXAMINED: usize = 1_024;
/// Maximum encoded bytes of the events that one query examines; but at least one event.
pub const MAX_EVENT_BYTES_EXAMINED: usize = 256 * 1024;

/// The limits of an account. Every field can be changed per account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a namespace's description.
    pub max_description_bytes: u32,
    /// Bytes of one hold's metadata: keys and values together.
    pub max_metadata_bytes: u32,
    /// Claims in one request.
    pub max_claims_per_request: u32,
    /// Readers of one lock.
    pub max_readers_per_lock: u32,
    /// Segments in a path.
    pub max_path_depth: u32,
    /// Shortest time to live of a hold.
    pub min_ttl_ms: u64,
    /// Longest time to live of a hold.
    pub max_ttl_ms: u64,
    /// Longest transition.
    pub max_transition_ms: u64,
    /// Longest wait.
    pub max_wait_ms: u64,
    /// Shortest time to live of a session.
    pub min_session_ttl_ms: u64,
    /// Longest time to live of a session.
    pub max_session_ttl_ms: u64,
    /// Holds in one namespace.
    pub max_holds_per_namespace: u64,
    /// Waiting requests in one namespace.
    pub max_waiting_per_namespace: u64,
    /// Waiting requests for one lock.
    pub max_waiting_per_lock: u64,
    /// Sessions in one namespace.
    pub max_sessions_per_namespace: u64,
    /// Requests per second at one gateway, with bursts of twice that; 0 means no rate limit.
    pub max_requests_per_second: u32,
    /// Bytes that a locks shard keeps for the account, as charged. This limit and all following ones can be changed from
    /// rules 2 on.
    pub max_state_bytes: u64,
    /// Tangled owners of a namespace; and [`Limits::UNITS_PER_TANGLED_OWNER`] times as many of their awaited holds and
    /// waiting claims together.
    pub max_tangle: u64,
    /// Waiting requests of one owner.
    pub max_waiting_per_owner: u64,
    /// Holds of a waiting owner: an owner with more may acquire, but not wait.
    pub max_holds_of_waiting_owner: u64,
    /// Requests with an id that claim one hold.
    pub max_requests_per_hold: u64,
    /// Requests with an id of one session that wait, or were granted and are not released.
    pub max_requests_per_session: u64,
    /// Owners of one session that hold or wait.
    pub max_owners_per_session: u64,
    /// Bytes of the events that a namespace retains, as charged; the oldest is evicted first.
    pub max_event_bytes: u64,
    /// Holds and requests in one message in which a client reports its state.
    pub max_lock_info: u64,
    /// Connections to one gateway.
    pub max_connections: u64,
    /// Calls in progress at one gateway that are not held.
    pub max_open_calls: u64,
    /// Held calls at one gateway: acquires that wait, and watches. Their bodies have at most
    /// [`Limits::BYTES_PER_HELD_CALL`] times as many bytes, or 256 KiB if that is more.
    pub max_held_calls: u64,
    /// Bytes of requests and answers that one gateway buffers.
    pub max_buffered_bytes: u64,
    /// Creations and deletions of API keys in a minute.
    pub max_key_changes: u64,
    /// Creations, changes and deletions of namespaces in a minute.
    pub max_namespace_changes: u64,
    /// Latches of one namespace, in any status.
    pub max_latches_per_namespace: u64,
    /// The highest total of a latch that counts ids.
    pub max_latch_ids: u64,
    /// The highest total of a latch that counts numbers.
    pub max_latch_indexes: u64,
    /// Semaphores of one namespace, configured or not.
    pub max_semaphores_per_namespace: u64,
    /// Holds of one semaphore or pool. Waiting requests count as well.
    pub max_holds_per_semaphore: u64,
    /// Waiting requests for one semaphore or pool. Those of a namespace count with the ones for locks.
    pub max_waiting_per_semaphore: u64,
    /// Holds of semaphores and pools, and arrivals at barriers, of one session. Its requests that wait for permits or
    /// members count as well.
    pub max_permit_holds_per_session: u64,
    /// Bytes of the latches, semaphores, pools, barriers and conditions of a namespace, as charged, with all that
    /// they have.
    pub max_primitive_bytes: u64,
    /// Waits for latches and at barriers at one gateway.
    pub max_held_questions: u64,
    /// Pools of one namespace.
    pub max_pools_per_namespace: u64,
    /// Members of one pool.
    pub max_members_per_pool: u64,
    /// Members in one hold.
    pub max_members_per_take: u64,
    /// Barriers of one namespace, configured or not.
    pub max_barriers_per_namespace: u64,
    /// Parties of one barrier.
    pub max_parties_per_barrier: u64,
    /// Owners that await the conditions of one lock.
    pub max_awaiting_per_lock: u64,
    /// Conditions of one lock that are awaited.
    pub max_conditions_per_lock: u64,
}

/// Upper bounds of all accounts' limits.
impl Limits {
    /// Claims in one request.
    pub const CLAIMS_PER_REQUEST: u32 = 256;
    /// Readers of one lock.
    pub const READERS_PER_LOCK: u32 = 10_000;
    /// Segments in a path.
    pub const PATH_DEPTH: u32 = 32;
    /// Awaited holds and waiting claims together, for each owner that may be tangled.
    pub const UNITS_PER_TANGLED_OWNER: u64 = 16;
    /// Holds in one namespace, so that 32 bits suffice to number them.
    pub const HOLDS_PER_NAMESPACE: u64 = 10_000_000;
    /// How often the bytes that a shard may keep for an account fit into what one node may keep for it.
    pub const STATE_SHARES_PER_NODE: u64 = 2;
    /// Bytes of the bodies of all held calls of an account at a gateway, for each that it may have.
    pub const BYTES_PER_HELD_CALL: u64 = 4 * 1024;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_description_bytes: 1_024,
            max_metadata_bytes: 1_024,
            max_claims_per_request: 64,
            max_readers_per_lock: 1_000,
            max_path_depth: 16,
            min_ttl_ms: 100,
            max_ttl_ms: 24 * 60 * 60 * 1_000,
            max_transition_ms: 10 * 60 * 1_000,
            max_wait_ms: 10 * 60 * 1_000,
            min_session_ttl_ms: 1_000,
            max_session_ttl_ms: 10 * 60 * 1_000,
            max_holds_per_namespace: 1_000_000,
            max_waiting_per_namespace: 100_000,
            max_waiting_per_lock: 100_000,
            max_sessions_per_namespace: 100_000,
            max_requests_per_second: 10_000,
            max_state_bytes: 512 * 1024 * 1024,
            max_tangle: 256,
            max_waiting_per_owner: 1_000,
            max_holds_of_waiting_owner: 1_024,
            max_requests_per_hold: 64,
            max_requests_per_session: 100_000,
            max_owners_per_session: 10_000,
            max_event_bytes: 8 * 1024 * 1024,
            max_lock_info: 10_000,
            max_connections: 1_000,
            max_open_calls: 4_096,
            max_held_calls: 65_536,
            max_buffered_bytes: 64 * 1024 * 1024,
            max_key_changes: 60,
            max_namespace_changes: 120,
            max_latches_per_namespace: 10_000,
            max_latch_ids: 100_000,
            max_latch_indexes: 1_000_000,
            max_semaphores_per_namespace: 10_000,
            max_holds_per_semaphore: 10_000,
            max_waiting_per_semaphore: 10_000,
            max_permit_holds_per_session: 10_000,
            max_primitive_bytes: 64 * 1024 * 1024,
            max_held_questions: 10_000,
            max_pools_per_namespace: 1_000,
            max_members_per_pool: 1_000,
            max_members_per_take: 64,
            max_barriers_per_namespace: 10_000,
            max_parties_per_barrier: 1_000,
            max_awaiting_per_lock: 1_000,
            max_conditions_per_lock: 16,
        }
    }
}

/// Maximum number of namespaces of an account if its creator does not specify it.
pub const DEFAULT_MAX_NAMESPACES: u32 = 25;
