//! One table of the limits that callers can meet: their names, values, scopes and error codes. Refusals, the ranges of
//! accounts' limits and the documentation come from it.
//!
//! A limit is enforced elsewhere, and each refusal names its row.

mod reached;
mod scope;

pub use reached::Reached;
pub use scope::{Scope, counted_address};

use super::{DEFAULT_MAX_NAMESPACES, Limits, MAX_FORFEITS, MAX_MEMBERS_PER_TAKE, MAX_PARTIES, MAX_SESSION_TABLE_BYTES};

/// The upper bound of limits in milliseconds: ten years, far from any overflow of instants.
const MAX_TIME_MS: u64 = 10 * 366 * 24 * 60 * 60 * 1_000;
/// The upper bound of limits in bytes of a text: the size of a request body.
const MAX_TEXT_BYTES: u64 = 64 * 1_024;
/// The upper bound of limits that are only to be numbers.
const MAX_COUNT: u64 = u32::MAX as u64;

/// Milliseconds that a call waits in the queue of a gateway.
pub const MAX_QUEUED_MS: u64 = 1_000;
/// Calls of an account, queued or in progress at a gateway, that end or keep holds.
pub const MAX_URGENT_CALLS: u64 = 16_384;
/// Calls in progress at one node, to one shard or of one account.
pub const MAX_LINK_CALLS: u64 = 4_096;
/// Of those, as many as only urgent calls may be, which end or keep holds.
pub const MIN_URGENT_LINK_CALLS: u64 = 1_024;
/// Calls to one node that wait there.
pub const MAX_HELD_LINK_CALLS: u64 = 262_144;
/// Credentials from one address that are refused in a second, unless a gateway is started with another number.
pub const REFUSED_CREDENTIALS_PER_SECOND: u32 = 20;
/// Open streams of events of an account at a gateway.
pub const MAX_WATCHERS: u64 = 1_000;
/// Connections of sessions of an account at a gateway.
pub const MAX_SESSION_CONNECTIONS: u64 = 65_536;
/// Connections to a gateway, or fewer if it may open fewer files.
pub const MAX_GATEWAY_CONNECTIONS: u64 = 10_000;
/// TLS handshakes of a gateway at a time.
pub const MAX_TLS_HANDSHAKES: u64 = 64;
/// Held-back replies about one latch or one barrier at a leader.
pub const MAX_QUESTIONS_OF_LATCH: u64 = 10_000;
/// Held-back replies about the latches and barriers of one namespace at a leader.
pub const MAX_QUESTIONS_OF_NAMESPACE: u64 = 50_000;
/// Held-back replies of one shard at a leader.
pub const MAX_QUESTIONS_OF_SHARD: u64 = 200_000;
/// Calls that wait for one request at a leader.
pub const MAX_CALLERS_OF_WAIT: usize = 16;
/// Bytes of the lock tables in a node's memory, unless it is started with another number.
pub const MAX_TABLE_BYTES: u64 = 512 << 20;
/// Pairs in the metadata of a hold or a session.
pub const MAX_METADATA_PAIRS: u64 = 64;
/// Messages about an account that other shards have not confirmed to a shard.
pub const MAX_PENDING_MESSAGES: u64 = 256;
/// Bytes of the state of a shard, beyond which it accepts nothing new.
pub const MAX_SHARD_BYTES: u64 = 2 << 30;
/// Calls in progress in one shard, from all gateways.
pub const MAX_SHARD_CALLS: u64 = 16_384;
/// What [`HELD_CALLS`] is about, besides their number.
pub const HELD_BYTES: &str = "the bytes of waits and watches of an account at one gateway";
/// What [`BUFFERED_BYTES`] is about, besides those of an account: 8 MiB for each connection.
pub const CONNECTION_BYTES: &str = "the bytes of answers of one connection";

/// A limit. Two are equal if they have the same name.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Its name, in the member `limit` of an error and in the documentation.
    pub name: &'static str,
    /// What is limited, as errors call it: `WHAT is limited to MAX`. Some limits are about several things.
    pub what: &'static [&'static str],
    /// What each has for itself.
    pub scope: Scope,
    /// Who enforces it.
    pub kept_by: KeptBy,
    /// The public name of the error code of a refusal.
    pub code: &'static str,
    /// How much it allows.
    pub value: Value,
}

/// Who enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// Every replica alike, as part of the rules.
    Rules,
    /// The leader, before it proposes.
    Leader,
    /// The node that is called.
    Node,
    /// The gateway.
    Gateway,
}

/// How much a limit allows.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A field of [`Limits`], which operators change for each account.
    OfAccount {
        /// Returns the field.
        get: fn(&Limits) -> u64,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// The same for every account; or given when an account is created, with this default.
    Fixed(u64),
    /// A part of the memory of a machine, in percent, unless a node is started with another number.
    PercentOfMemory(u64),
}

impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Limit {}

impl Limit {
    /// Returns the value for an account that nobody changed; 0 if it differs from machine to machine.
    pub fn default_value(&self) -> u64 {
        self.value_of(&Limits::default())
    }

    /// Returns the value for an account with these limits; 0 if it differs from machine to machine.
    pub fn value_of(&self, limits: &Limits) -> u64 {
        match self.value {
            Value::OfAccount { get, .. } => get(limits),
            Value::Fixed(value) => value,
            Value::PercentOfMemory(_) => 0,
        }
    }

    /// Returns the greatest value that an operator can set.
    pub fn max_value(&self) -> u64 {
        match self.value {
            Value::OfAccount { max, .. } => max,
            Value::Fixed(_) | Value::PercentOfMemory(_) => self.default_value(),
        }
    }
}

/// Returns the limit of this name.
pub fn find(name: &str) -> Option<&'static Limit> {
    ALL.iter().copied().find(|limit| limit.name == name)
}

macro_rules! value {
    ($field:ident in $min:expr, $max:expr) => {
        Value::OfAccount { get: |limits| u64::from(limits.$field), min: $min, max: $max }
    };
    (fixed $value:expr) => {
        Value::Fixed($value)
    };
    ($value:literal percent of memory) => {
        Value::PercentOfMemory($value)
    };
}

macro_rules! limits {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $scope:ident, $kept_by:ident, $code:literal,
        [$($what:expr),+], ($($value:tt)+);)*) => {
        $(
            $(#[$doc])*
            pub static $id: Limit = Limit {
                name: $name,
                what: &[$($what),+],
                scope: Scope::$scope,
                kept_by: KeptBy::$kept_by,
                code: $code,
                value: value!($($value)+),
            };
        )*

        /// Every limit.
        pub static ALL: &[&Limit] = &[$(&$id),*];
    };
}

limits! {
    /// Bytes of a namespace's or a key's description.
    DESCRIPTION_BYTES = "max_description_bytes", Request, Gateway, "INVALID_ARGUMENT",
        ["the length of a description in bytes"], (max_description_bytes in 0, MAX_TEXT_BYTES);
    /// Bytes of the metadata of a hold or a session.
    METADATA_BYTES = "max_metadata_bytes", Hold, Gateway, "INVALID_ARGUMENT",
        ["the length of metadata in bytes"], (max_metadata_bytes in 0, MAX_TEXT_BYTES);
    /// Pairs in the metadata of a hold or a session.
    METADATA_PAIRS = "metadata_pairs", Hold, Gateway, "INVALID_ARGUMENT",
        ["the number of pairs in metadata"], (fixed MAX_METADATA_PAIRS);
    /// Claims in one request.
    CLAIMS = "max_claims_per_request", Request, Gateway, "INVALID_ARGUMENT",
        ["the number of claims in a request"], (max_claims_per_request in 1, Limits::CLAIMS_PER_REQUEST as u64);
    /// Readers of one lock.
    READERS = "max_readers_per_lock", Lock, Rules, "QUOTA_EXCEEDED",
        ["the number of readers of a lock"], (max_readers_per_lock in 1, Limits::READERS_PER_LOCK as u64);
    /// Segments in a path.
    PATH_DEPTH = "max_path_depth", Request, Gateway, "INVALID_ARGUMENT",
        ["the number of segments in a path"], (max_path_depth in 1, Limits::PATH_DEPTH as u64);
    /// Longest time to live of a hold.
    MAX_TTL = "max_ttl_ms", Hold, Gateway, "INVALID_ARGUMENT",
        ["the time to live of a hold in milliseconds"], (max_ttl_ms in 1, MAX_TIME_MS);
    /// Shortest time to live of a hold; at most the longest one.
    MIN_TTL = "min_ttl_ms", Hold, Gateway, "INVALID_ARGUMENT",
        ["the shortest time to live of a hold in milliseconds"], (min_ttl_ms in 1, MAX_TIME_MS);
    /// Longest transition.
    TRANSITION = "max_transition_ms", Hold, Gateway, "INVALID_ARGUMENT",
        ["the transition of a hold in milliseconds"], (max_transition_ms in 0, MAX_TIME_MS);
    /// Longest wait.
    WAIT = "max_wait_ms", Request, Gateway, "INVALID_ARGUMENT",
        ["the wait of a request in milliseconds"], (max_wait_ms in 0, MAX_TIME_MS);
    /// Longest time to live of a session.
    MAX_SESSION_TTL = "max_session_ttl_ms", Session, Gateway, "INVALID_ARGUMENT",
        ["the time to live of a session in milliseconds"], (max_session_ttl_ms in 1, MAX_TIME_MS);
    /// Shortest time to live of a session; at most the longest one.
    MIN_SESSION_TTL = "min_session_ttl_ms", Session, Gateway, "INVALID_ARGUMENT",
        ["the shortest time to live of a session in milliseconds"], (min_session_ttl_ms in 1, MAX_TIME_MS);
    /// Holds in one namespace.
    HOLDS = "max_holds_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of holds in a namespace"], (max_holds_per_namespace in 0, Limits::HOLDS_PER_NAMESPACE);
    /// Waiting requests in one namespace.
    WAITING = "max_waiting_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of waiting requests in a namespace"], (max_waiting_per_namespace in 0, MAX_COUNT);
    /// Waiting requests for one lock.
    WAITING_FOR_LOCK = "max_waiting_per_lock", Lock, Rules, "QUOTA_EXCEEDED",
        ["the number of requests that wait for a lock"], (max_waiting_per_lock in 0, MAX_COUNT);
    /// Sessions in one namespace.
    SESSIONS = "max_sessions_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of sessions in a namespace"], (max_sessions_per_namespace in 0, MAX_COUNT);
    /// Requests a second; 0 for any number.
    REQUEST_RATE = "max_requests_per_second", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of requests a second at one gateway"], (max_requests_per_second in 0, MAX_COUNT);
    /// Bytes of the bodies of requests in a second; twice as many at once. Also if requests have no limit.
    REQUEST_BYTES = "request_bytes_per_second", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the bytes of the bodies of requests a second at one gateway"], (fixed 16 << 20);
    /// Bytes that a shard keeps for an account.
    STATE_BYTES = "max_state_bytes", AccountAndShard, Rules, "QUOTA_EXCEEDED",
        ["the state of the account in this shard, in bytes,"], (max_state_bytes in 0, 8 << 30);
    /// Tangled owners, and what they hold and wait for.
    TANGLE = "max_tangle", Namespace, Rules, "QUOTA_EXCEEDED",
        [
            "the number of owners that wait and are waited for",
            "the number of claims of owners that wait and are waited for",
            "the number of holds of owners that wait and are waited for",
            "the number of steps to find out who waits for whom"
        ],
        (max_tangle in 0, 1_024);
    /// Waiting requests of one owner.
    WAITING_OF_OWNER = "max_waiting_per_owner", Owner, Rules, "QUOTA_EXCEEDED",
        ["the number of waiting requests of an owner"], (max_waiting_per_owner in 0, 10_000);
    /// Holds of an owner that waits.
    HOLDS_OF_WAITING_OWNER = "max_holds_of_waiting_owner", Owner, Rules, "QUOTA_EXCEEDED",
        [
            "the number of holds of an owner that waits",
            "the number of holds of owners that wait, when a request waits above holds"
        ],
        (max_holds_of_waiting_owner in 0, 16_384);
    /// Requests with an id that claim one hold.
    REQUESTS_OF_HOLD = "max_requests_per_hold", Hold, Rules, "QUOTA_EXCEEDED",
        ["the number of requests that claim one hold"], (max_requests_per_hold in 1, 1_024);
    /// Requests with an id of one session.
    REQUESTS_OF_SESSION = "max_requests_per_session", Session, Rules, "QUOTA_EXCEEDED",
        ["the number of requests of a session that are not released"], (max_requests_per_session in 1, 1_000_000);
    /// Owners of one session.
    OWNERS_OF_SESSION = "max_owners_per_session", Session, Rules, "QUOTA_EXCEEDED",
        ["the number of holders of a session that hold or wait"], (max_owners_per_session in 1, 100_000);
    /// Bytes of a namespace's events; the oldest are evicted, and nothing is refused.
    EVENT_BYTES = "max_event_bytes", Namespace, Rules, "REVISION_COMPACTED",
        ["the length of a namespace's events in bytes"], (max_event_bytes in 0, 64 << 20);
    /// Holds and requests in one report of a client.
    LOCK_INFO = "max_lock_info", Request, Gateway, "PAYLOAD_TOO_LARGE",
        ["the number of holds and requests in one lock_info"], (max_lock_info in 1, 10_000);
    /// Connections to one gateway.
    CONNECTIONS = "max_connections", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of connections of an account to one gateway"], (max_connections in 1, 10_000);
    /// Calls in progress at one gateway, besides those that are held.
    OPEN_CALLS = "max_open_calls", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of open calls of an account at one gateway"], (max_open_calls in 1, 16_384);
    /// Waits and watches at one gateway.
    HELD_CALLS = "max_held_calls", AccountAndGateway, Gateway, "RATE_LIMITED",
        [
            "the number of waits and watches of an account at one gateway",
            HELD_BYTES
        ],
        (max_held_calls in 0, 262_144);
    /// Bytes of requests at one gateway, and as many of answers.
    BUFFERED_BYTES = "max_buffered_bytes", AccountAndGateway, Gateway, "RATE_LIMITED",
        [
            "the bytes of requests and answers of an account at one gateway",
            CONNECTION_BYTES
        ],
        (max_buffered_bytes in 1 << 20, 1 << 30);
    /// Creations and deletions of API keys in a minute.
    KEY_CHANGES = "max_key_changes", Account, Leader, "RATE_LIMITED",
        ["the number of changes of API keys in a minute"], (max_key_changes in 1, 6_000);
    /// Creations, changes and deletions of namespaces in a minute.
    NAMESPACE_CHANGES = "max_namespace_changes", Account, Leader, "RATE_LIMITED",
        ["the number of changes of namespaces in a minute"], (max_namespace_changes in 1, 6_000);
    /// Latches in one namespace.
    LATCHES = "max_latches_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of latches in a namespace"], (max_latches_per_namespace in 0, 100_000);
    /// Total of a latch that counts ids.
    LATCH_IDS = "max_latch_ids", Latch, Rules, "QUOTA_EXCEEDED",
        ["the total of a latch that counts ids"], (max_latch_ids in 0, 100_000);
    /// Total of a latch that counts numbers.
    LATCH_INDEXES = "max_latch_indexes", Latch, Rules, "QUOTA_EXCEEDED",
        ["the total of a latch that counts numbers"], (max_latch_indexes in 0, 1_000_000);
    /// Semaphores in one namespace.
    SEMAPHORES = "max_semaphores_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of semaphores in a namespace"], (max_semaphores_per_namespace in 0, 100_000);
    /// Holds of one semaphore or pool.
    HOLDS_OF_SEMAPHORE = "max_holds_per_semaphore", Semaphore, Rules, "QUOTA_EXCEEDED",
        ["the number of holds of a semaphore or pool"], (max_holds_per_semaphore in 0, 10_000);
    /// Waiting requests for one semaphore or pool.
    WAITING_FOR_SEMAPHORE = "max_waiting_per_semaphore", Semaphore, Rules, "QUOTA_EXCEEDED",
        ["the number of requests that wait for a semaphore or pool"], (max_waiting_per_semaphore in 0, 10_000);
    /// Holds of semaphores and pools, and arrivals at barriers, of one session.
    PERMIT_HOLDS_OF_SESSION = "max_permit_holds_per_session", Session, Rules, "QUOTA_EXCEEDED",
        ["the number of holds of semaphores, pools and barriers of a session"],
        (max_permit_holds_per_session in 0, 100_000);
    /// Bytes of latches, semaphores, pools, barriers and conditions of a namespace.
    PRIMITIVE_BYTES = "max_primitive_bytes", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the state of latches, semaphores, pools, barriers and conditions of a namespace, in bytes,"],
        (max_primitive_bytes in 0, 8 << 30);
    /// Waits for latches and at barriers at one gateway.
    HELD_QUESTIONS = "max_held_questions", AccountAndGateway, Gateway, "QUOTA_EXCEEDED",
        ["the number of waits for latches and at barriers of an account at one gateway"],
        (max_held_questions in 0, 262_144);
    /// Pools in one namespace.
    POOLS = "max_pools_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of pools in a namespace"], (max_pools_per_namespace in 0, 10_000);
    /// Members of one pool.
    MEMBERS_OF_POOL = "max_members_per_pool", Pool, Rules, "QUOTA_EXCEEDED",
        ["the number of members of a pool"], (max_members_per_pool in 0, 1_000);
    /// Members in one hold.
    MEMBERS_OF_HOLD = "max_members_per_take", Hold, Rules, "QUOTA_EXCEEDED",
        ["the number of members in a hold"], (max_members_per_take in 0, MAX_MEMBERS_PER_TAKE);
    /// Barriers in one namespace.
    BARRIERS = "max_barriers_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of barriers in a namespace"], (max_barriers_per_namespace in 0, 100_000);
    /// Parties of one barrier.
    PARTIES = "max_parties_per_barrier", Barrier, Rules, "QUOTA_EXCEEDED",
        ["the number of parties of a barrier"], (max_parties_per_barrier in 0, MAX_PARTIES as u64);
    /// Owners that await the conditions of one lock.
    AWAITING_LOCK = "max_awaiting_per_lock", Lock, Rules, "QUOTA_EXCEEDED",
        ["the number of owners that await conditions of a lock"], (max_awaiting_per_lock in 0, 1_000);
    /// Conditions of one lock that are awaited.
    CONDITIONS_OF_LOCK = "max_conditions_per_lock", Lock, Rules, "QUOTA_EXCEEDED",
        ["the number of conditions of a lock"], (max_conditions_per_lock in 0, 1_000);
    /// Holds of lock tables in a leader's memory that were ended by force, until their sessions end.
    FORFEITS = "forfeits_per_namespace", Namespace, Rules, "QUOTA_EXCEEDED",
        ["the number of holds of a namespace that were ended by force and whose sessions have not ended"],
        (fixed MAX_FORFEITS);
    /// Waits for one latch, or at one barrier.
    QUESTIONS_OF_LATCH = "held_questions_of_latch", Latch, Leader, "QUOTA_EXCEEDED",
        ["the number of waits for a latch", "the number of waits at a barrier"], (fixed MAX_QUESTIONS_OF_LATCH);
    /// Waits for the latches and at the barriers of a namespace.
    QUESTIONS_OF_NAMESPACE = "held_questions_of_namespace", Namespace, Leader, "QUOTA_EXCEEDED",
        ["the number of waits for the latches and at the barriers of a namespace"], (fixed MAX_QUESTIONS_OF_NAMESPACE);
    /// Waits for all latches and at all barriers of a shard.
    QUESTIONS_OF_SHARD = "held_questions_of_shard", Shard, Leader, "QUOTA_EXCEEDED",
        ["the number of waits for the latches and at the barriers of a shard"], (fixed MAX_QUESTIONS_OF_SHARD);
    /// Calls that wait for one request: repeats of an acquire. A further one ends the oldest.
    CALLERS_OF_WAIT = "callers_of_wait", Request, Leader, "RATE_LIMITED",
        ["the number of calls that wait for one request"], (fixed MAX_CALLERS_OF_WAIT as u64);
    /// Namespaces of an account.
    NAMESPACES = "max_number_of_namespaces", Account, Rules, "QUOTA_EXCEEDED",
        ["the number of namespaces of an account"], (fixed DEFAULT_MAX_NAMESPACES as u64);
    /// Bytes that all shards of a node keep for an account: twice `max_state_bytes`.
    NODE_BYTES = "max_node_bytes", AccountAndNode, Leader, "QUOTA_EXCEEDED",
        ["the state of the account in this node, in bytes,"], (fixed 1 << 30);
    /// Bytes of the lock tables in a node's memory, unless it is started with another number.
    TABLE_BYTES = "max_table_bytes", Node, Leader, "QUOTA_EXCEEDED",
        ["the bytes of lock tables in the memory of a node"], (fixed MAX_TABLE_BYTES);
    /// Bytes of the requests of a session in such a table, which its gateway reports to the next leader.
    SESSION_TABLE_BYTES = "max_table_bytes_of_session", Session, Gateway, "QUOTA_EXCEEDED",
        ["the bytes of a session's requests in a lock table in memory"], (fixed MAX_SESSION_TABLE_BYTES);
    /// Bytes of the state of a shard.
    SHARD_BYTES = "shard_bytes", Shard, Leader, "UNAVAILABLE",
        ["the state of a shard, in bytes,"], (fixed MAX_SHARD_BYTES);
    /// Bytes of all shards of a node, unless it is started with another number. From 80 % on, accounts with more than an
    /// equal share get nothing new.
    MEMORY = "node_memory_bytes", Node, Leader, "UNAVAILABLE",
        ["the state in a node, in bytes,"], (70 percent of memory);
    /// Changes of an account, such as new namespaces, of which other shards have to learn.
    PENDING_CHANGES = "pending_changes", AccountAndShard, Rules, "UNAVAILABLE",
        ["the number of changes of an account that other shards have yet to confirm"], (fixed MAX_PENDING_MESSAGES);
    /// Commands of an account in the queue of a group's leader.
    COMMANDS_OF_ACCOUNT = "queued_commands_of_account", AccountAndGroup, Leader, "UNAVAILABLE",
        ["the number of commands of an account in the queue of a group, and their size in units of 4 KiB,"],
        (fixed 1_024);
    /// Commands for a shard in the queue of its group's leader. Accounts with fewer than 128 there may queue more.
    COMMANDS_OF_SHARD = "queued_commands_of_shard", Shard, Leader, "UNAVAILABLE",
        ["the number of commands for a shard in the queue of its group, and their size in units of 4 KiB,"],
        (fixed 2_048);
    /// Commands in the queue of a group's leader.
    COMMANDS_OF_GROUP = "queued_commands_of_group", Group, Leader, "UNAVAILABLE",
        ["the number of commands in the queue of a group, and their size in units of 4 KiB,"], (fixed 16_384);
    /// API keys of an account.
    API_KEYS = "max_api_keys", Account, Rules, "QUOTA_EXCEEDED",
        ["the number of API keys of an account"], (fixed 1_000);
    /// Open streams of events.
    WATCHERS = "max_watchers", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of watchers of an account at one gateway"], (fixed MAX_WATCHERS);
    /// Connections of sessions.
    SESSION_CONNECTIONS = "session_connections", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of session connections of an account at one gateway"], (fixed MAX_SESSION_CONNECTIONS);
    /// Tokens issued in a second.
    TOKENS = "tokens_per_second", AccountAndGateway, Gateway, "RATE_LIMITED",
        ["the number of tokens a second at one gateway"], (fixed 100);
    /// Credentials that are not valid, in a second; twice as many at once.
    REFUSED_CREDENTIALS = "refused_credentials_per_second", AddressAndGateway, Gateway, "RATE_LIMITED",
        ["the number of refused credentials a second from one address"], (fixed REFUSED_CREDENTIALS_PER_SECOND as u64);
    /// API keys whose ids look invented, in a second; twice as many at once.
    UNKNOWN_KEYS = "unknown_keys_per_second", AddressAndGateway, Gateway, "RATE_LIMITED",
        ["the number of unknown API keys a second from one address"], (fixed 5);
    /// The same from all addresses together.
    ALL_UNKNOWN_KEYS = "all_unknown_keys_per_second", Gateway, Gateway, "RATE_LIMITED",
        ["the number of unknown API keys a second at one gateway"], (fixed 50);
    /// Requests for pages that need no credential, in a second; twice as many at once.
    PUBLIC_PAGES = "public_pages_per_second", AddressAndGateway, Gateway, "RATE_LIMITED",
        ["the number of requests without a credential a second from one address"], (fixed 100);
    /// Connections to one gateway. At the limit, another one ends.
    GATEWAY_CONNECTIONS = "gateway_connections", Gateway, Gateway, "UNAVAILABLE",
        ["the number of connections to a gateway"], (fixed MAX_GATEWAY_CONNECTIONS);
    /// TLS handshakes of one gateway at a time. Further ones wait, and then end those that take long.
    TLS_HANDSHAKES = "tls_handshakes", Gateway, Gateway, "UNAVAILABLE",
        ["the number of TLS handshakes of a gateway at a time"], (fixed MAX_TLS_HANDSHAKES);
    /// TLS handshakes in a second; five times as many at once. Further ones that would have to wait are closed.
    TLS_HANDSHAKE_RATE = "tls_handshakes_per_second", AddressAndGateway, Gateway, "UNAVAILABLE",
        ["the number of TLS handshakes a second from one address"], (fixed 10);
    /// Connections of nodes and gateways to one node. Further ones are rejected.
    NODE_PROCESSES = "node_processes", Node, Node, "UNAVAILABLE",
        ["the number of connections of nodes and gateways to a node"], (fixed 624);
    /// Connections of operators to one node. A further one ends the oldest.
    NODE_HTTP_CONNECTIONS = "node_http_connections", Node, Node, "UNAVAILABLE",
        ["the number of HTTP connections to a node"], (fixed 256);
    /// Connections of operators from one address to one node. A further one ends the oldest.
    NODE_HTTP_CONNECTIONS_OF_ADDRESS = "node_http_connections_of_address", AddressAndNode, Node, "UNAVAILABLE",
        ["the number of HTTP connections from one address to a node"], (fixed 64);
    /// Connections without a certificate of the cluster, where TLS is on; each for 10 s. A further one ends the oldest.
    NODE_PROBES = "node_probes", Node, Node, "UNAVAILABLE",
        ["the number of connections without a certificate to a node"], (fixed 16);
    /// Handshakes of one node at a time, and as many from addresses of processes. A further one ends the oldest.
    NODE_HANDSHAKES = "node_handshakes", Node, Node, "UNAVAILABLE",
        ["the number of handshakes of a node at a time"], (fixed 64);
    /// Handshakes from one address that is not that of a process. A further one ends the oldest.
    NODE_HANDSHAKES_OF_ADDRESS = "node_handshakes_of_address", AddressAndNode, Node, "UNAVAILABLE",
        ["the number of handshakes from one address at a time"], (fixed 8);
    /// Calls in the queue of a gateway, besides waits and urgent ones: 1,024 bytes of a request are one.
    QUEUED_CALLS = "queued_calls", AccountAndGateway, Gateway, "UNAVAILABLE",
        ["the size in KiB of the calls of an account in the queue of a gateway (at least 1 for each)"], (fixed 4_096);
    /// Acquires in the queue of a gateway that may wait.
    QUEUED_WAITS = "queued_waits", AccountAndGateway, Gateway, "UNAVAILABLE",
        ["the size in KiB of the waits of an account in the queue of a gateway (at least 1 for each)"], (fixed 16_384);
    /// Time in the queue of a gateway.
    QUEUED_TIME = "queued_ms", Request, Gateway, "UNAVAILABLE",
        ["the time of a call in the queue of a gateway in milliseconds"], (fixed MAX_QUEUED_MS);
    /// Releases, extensions, keep-alives and closes at one gateway, queued or in progress.
    URGENT_CALLS = "urgent_calls", AccountAndGateway, Gateway, "UNAVAILABLE",
        ["the size in KiB of the releases and extensions of an account at one gateway (at least 1 for each)"],
        (fixed MAX_URGENT_CALLS);
    /// Calls from one gateway to one shard. A quarter is for urgent ones, which end or keep holds; those that may wait, and
    /// do not yet, have half as much for themselves. The same goes for those of an account and those to a node.
    CALLS_TO_SHARD = "calls_to_shard", ShardAndGateway, Gateway, "UNAVAILABLE",
        ["the number of calls from one gateway to a shard, and their size in units of 4 KiB,"], (fixed MAX_LINK_CALLS);
    /// Those of one account, so that it leaves half of the shard's to the others.
    CALLS_OF_ACCOUNT_TO_SHARD = "calls_of_account_to_shard", AccountShardAndGateway, Gateway, "UNAVAILABLE",
        ["the number of calls of an account from one gateway to a shard, and their size in units of 4 KiB,"],
        (fixed MAX_LINK_CALLS / 2);
    /// Calls of an account from one gateway to one node.
    CALLS_OF_ACCOUNT = "calls_of_account", AccountAndConnection, Gateway, "UNAVAILABLE",
        ["the number of calls of an account from one gateway to a node, and their size in units of 4 KiB,"],
        (fixed MAX_LINK_CALLS);
    /// Calls in progress at a shard, from all gateways, besides those that wait.
    CALLS_IN_SHARD = "calls_in_shard", Shard, Node, "UNAVAILABLE",
        ["the number of calls in progress at a shard"], (fixed MAX_SHARD_CALLS);
    /// Calls of one connection that are in progress at a node, besides those that wait. A quarter is for urgent ones.
    CALLS_AT_NODE = "calls_at_node", Connection, Node, "UNAVAILABLE",
        ["the number of calls of one gateway in progress at a node, and their size in units of 2 KiB,"],
        (fixed 131_072);
    /// Those of one account.
    CALLS_OF_ACCOUNT_AT_NODE = "calls_of_account_at_node", AccountAndConnection, Node, "UNAVAILABLE",
        ["the number of calls of an account of one gateway in progress at a node, and their size in units of 4 KiB,"],
        (fixed MAX_LINK_CALLS);
    /// Calls of one connection that wait at a node.
    CALLS_HELD_AT_NODE = "calls_held_at_node", Connection, Node, "UNAVAILABLE",
        ["the number of calls of one gateway that wait at a node"], (fixed 300_000);
    /// Calls from one gateway to one node.
    CALLS_TO_NODE = "calls_to_node", Connection, Gateway, "UNAVAILABLE",
        ["the number of calls from one gateway to a node, and their size in units of 2 KiB,"], (fixed 131_072);
    /// Calls from one gateway that wait at one node.
    HELD_CALLS_TO_NODE = "held_calls_to_node", Connection, Gateway, "UNAVAILABLE",
        ["the number of calls from one gateway that wait at a node"], (fixed MAX_HELD_LINK_CALLS);
}

#[cfg(test)]
mod tests;
