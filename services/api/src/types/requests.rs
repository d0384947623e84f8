//! Requests of operations, the same for every frontend. Frontends parse, the service validates.

use holdfast_types::{AccountStatus, Durability, Limits};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// Selects a page of a list.
#[derive(Clone, Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageRequest {
    /// Rows, 1 to 1,000; 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    pub page_size: Option<u32>,
    /// The token from the previous page; absent or empty for the first.
    pub page_token: Option<String>,
}

/// A new account.
#[derive(Clone, Debug)]
pub struct CreateAccount {
    /// Trimmed and lower-cased by the service.
    pub email: String,
    /// The name for display.
    pub full_name: String,
    /// 25 when absent.
    pub max_number_of_namespaces: Option<u32>,
}

/// Changes of an account; absent fields keep their values.
#[derive(Clone, Debug, Default)]
pub struct UpdateAccount {
    /// New name.
    pub full_name: Option<String>,
    /// New status.
    pub status: Option<AccountStatus>,
    /// New maximum number of namespaces.
    pub max_number_of_namespaces: Option<u32>,
    /// Changes of limits.
    pub limits: Option<LimitsPatch>,
}

macro_rules! limits_patch {
    ($($field:ident: $type:ty),* $(,)?) => {
        /// Changes of an account's limits; absent fields keep their values. Fields are those of [`Limits`].
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct LimitsPatch {
            $(
                #[doc = concat!("New `", stringify!($field), "`.")]
                pub $field: Option<$type>,
            )*
        }

        /// Describes [`Limits`] to callers; generated here, so that it has the same fields as a patch of them.
        #[derive(Debug, ToSchema)]
        #[schema(as = Limits)]
        #[expect(dead_code, reason = "it is described, never made")]
        pub struct LimitsSchema {
            $(
                #[doc = concat!("Present `", stringify!($field), "`.")]
                $field: $type,
            )*
        }

        impl LimitsPatch {
            /// Returns the limits with these changes.
            pub fn applied_to(&self, limits: &Limits) -> Limits {
                Limits { $($field: self.$field.unwrap_or(limits.$field),)* }
            }
        }
    };
}

limits_patch! {
    max_description_bytes: u32,
    max_metadata_bytes: u32,
    max_claims_per_request: u32,
    max_readers_per_lock: u32,
    max_path_depth: u32,
    min_ttl_ms: u64,
    max_ttl_ms: u64,
    max_transition_ms: u64,
    max_wait_ms: u64,
    min_session_ttl_ms: u64,
    max_session_ttl_ms: u64,
    max_holds_per_namespace: u64,
    max_waiting_per_namespace: u64,
    max_waiting_per_lock: u64,
    max_sessions_per_namespace: u64,
    max_requests_per_second: u32,
    max_state_bytes: u64,
    max_tangle: u64,
    max_waiting_per_owner: u64,
    max_holds_of_waiting_owner: u64,
    max_requests_per_hold: u64,
    max_requests_per_session: u64,
    max_owners_per_session: u64,
    max_event_bytes: u64,
    max_lock_info: u64,
    max_connections: u64,
    max_open_calls: u64,
    max_held_calls: u64,
    max_buffered_bytes: u64,
    max_key_changes: u64,
    max_namespace_changes: u64,
    max_latches_per_namespace: u64,
    max_latch_ids: u64,
    max_latch_indexes: u64,
    max_semaphores_per_namespace: u64,
    max_holds_per_semaphore: u64,
    max_waiting_per_semaphore: u64,
    max_permit_holds_per_session: u64,
    max_primitive_bytes: u64,
    max_held_questions: u64,
    max_pools_per_namespace: u64,
    max_members_per_pool: u64,
    max_members_per_take: u64,
    max_barriers_per_namespace: u64,
    max_parties_per_barrier: u64,
    max_awaiting_per_lock: u64,
    max_conditions_per_lock: u64,
}

/// A new API key.
#[derive(Clone, Debug, Default)]
pub struct CreateApiKey {
    /// For people.
    pub description: Option<String>,
    /// Public names of scopes; the caller's own when absent, and never more than those.
    pub scopes: Option<Vec<String>>,
    /// The namespaces that it covers; the caller's own list when absent, and never more than that.
    pub namespaces: Option<Vec<String>>,
    /// When it expires; never later than the caller's own key.
    pub expires_at: Option<OffsetDateTime>,
}

/// A new namespace.
#[derive(Clone, Debug)]
pub struct CreateNamespace {
    /// Unique in the account.
    pub name: String,
    /// For people; empty when absent.
    pub description: Option<String>,
    /// Where its lock table is kept; frontends set FULL when the caller says nothing.
    pub durability: Durability,
}
