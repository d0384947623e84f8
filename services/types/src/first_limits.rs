//! Limits as they were before rules 2. Types that already existed then store them in this form: the encoding is
//! positional, so they can't get further fields. The later limits then have their defaults.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Limits;

macro_rules! first_limits {
    ($($field:ident: $type:ty),* $(,)?) => {
        #[derive(Serialize, Deserialize)]
        pub(super) struct FirstLimits {
            $($field: $type,)*
        }

        impl From<&Limits> for FirstLimits {
            fn from(limits: &Limits) -> Self {
                Self { $($field: limits.$field,)* }
            }
        }

        impl From<FirstLimits> for Limits {
            fn from(first: FirstLimits) -> Self {
                Self { $($field: first.$field,)* ..Self::default() }
            }
        }

        impl Limits {
            /// Returns the first limits of `self` with the later limits of `others`.
            #[must_use]
            pub fn with_later_of(&self, others: &Self) -> Self {
                Self { $($field: self.$field,)* ..others.clone() }
            }
        }
    };
}

first_limits! {
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

impl Limits {
    /// Returns the first limits, with defaults for the later ones.
    #[must_use]
    pub fn first(&self) -> Self {
        self.with_later_of(&Self::default())
    }

    /// Returns whether the first limits suffice, because the later ones have their defaults.
    pub fn are_first(&self) -> bool {
        self.first() == *self
    }
}

/// For a field that stores only the first limits.
pub fn serialize<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
    FirstLimits::from(limits).serialize(serializer)
}

/// For a field that stores only the first limits.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
    FirstLimits::deserialize(deserializer).map(Limits::from)
}

/// For an optional field.
pub mod option {
    use super::{Deserialize, Deserializer, FirstLimits, Limits, Serialize, Serializer};

    /// As [`super::serialize`].
    pub fn serialize<S: Serializer>(limits: &Option<Limits>, serializer: S) -> Result<S::Ok, S::Error> {
        limits.as_ref().map(FirstLimits::from).serialize(serializer)
    }

    /// As [`super::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limits>, D::Error> {
        Ok(Option::<FirstLimits>::deserialize(deserializer)?.map(Limits::from))
    }
}
