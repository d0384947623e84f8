//! What operations are asked: the same for every door. Doors parse, the service checks.

use holdfast_core::{AccountStatus, Limits, Metadata, Mode};
use serde::Deserialize;
use time::OffsetDateTime;

/// Which page of a list.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Rows, 1 to 1,000; 100 when absent.
    pub page_size: Option<u32>,
    /// From the page before; absent or empty for the first.
    pub page_token: Option<String>,
}

/// A new account.
#[derive(Clone, Debug)]
pub struct CreateAccount {
    /// Trimmed and lower-cased by the service.
    pub email: String,
    /// As it is to be shown.
    pub full_name: String,
    /// 25 when absent.
    pub max_number_of_namespaces: Option<u32>,
}

/// Changes of an account; what is absent stays.
#[derive(Clone, Debug, Default)]
pub struct UpdateAccount {
    /// New name.
    pub full_name: Option<String>,
    /// New status.
    pub status: Option<AccountStatus>,
    /// New number of namespaces.
    pub max_number_of_namespaces: Option<u32>,
    /// New limits, those that are given.
    pub limits: Option<LimitsPatch>,
}

macro_rules! limits_patch {
    ($($field:ident: $type:ty),* $(,)?) => {
        /// Changes of an account's limits; what is absent stays. Fields are those of [`Limits`].
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct LimitsPatch {
            $(
                #[doc = concat!("New `", stringify!($field), "`.")]
                pub $field: Option<$type>,
            )*
        }

        impl LimitsPatch {
            /// The limits with these changes.
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
}

/// A new API key.
#[derive(Clone, Debug, Default)]
pub struct CreateApiKey {
    /// For people.
    pub description: Option<String>,
    /// Public names of scopes; the maker's own when absent, and never more than those.
    pub scopes: Option<Vec<String>>,
    /// The namespaces it may be used for; the maker's own list when absent, and never more than that.
    pub namespaces: Option<Vec<String>>,
    /// When it ends; never later than the maker's own end.
    pub expires_at: Option<OffsetDateTime>,
}

/// A new namespace.
#[derive(Clone, Debug)]
pub struct CreateNamespace {
    /// Unique in the account.
    pub name: String,
    /// For people; empty when absent.
    pub description: Option<String>,
}

/// An acquire on one lock by a process id.
#[derive(Clone, Debug)]
pub struct AcquireLock {
    /// Where.
    pub namespace: String,
    /// Which: a flat name of any characters but NUL.
    pub name: String,
    /// Who.
    pub process_id: String,
    /// How; the doors put WRITE where the caller does not say.
    pub mode: Mode,
    /// How long it is held. Exactly one of this and an instant.
    pub ttl_ms: Option<u64>,
    /// Until when it is held, by this gateway's clock.
    pub expires_at: Option<OffsetDateTime>,
    /// The same as a dlocks client says it, in Unix nanoseconds: read back as it was written.
    pub dlocks_expires_at_ns: Option<i64>,
    /// How long it then stays in transition; 0 when the caller does not say.
    pub transition_ms: u64,
    /// Kept with the hold.
    pub metadata: Metadata,
    /// Only extend the hold of this token.
    pub fencing_token: Option<u64>,
}

/// A release of one lock by a process id.
#[derive(Clone, Debug)]
pub struct ReleaseLock {
    /// Where.
    pub namespace: String,
    /// Which.
    pub name: String,
    /// Who.
    pub process_id: String,
    /// Only the hold of this token.
    pub fencing_token: Option<u64>,
}

/// A list of held locks.
#[derive(Clone, Debug, Default)]
pub struct ListLocks {
    /// Where.
    pub namespace: String,
    /// Segments of the path under which to list; empty for the whole namespace.
    pub prefix: Vec<String>,
    /// Which page.
    pub page: PageRequest,
}
