//! Limits as they were before rules 2, which is how what was there before has them: the encoding goes by position, so
//! that nothing that had limits then can have more of them now. The later ones are then as by default.

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
            /// The first ones of these, and the later ones of the others.
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
    /// These without the later ones, which are as by default.
    #[must_use]
    pub(crate) fn first(&self) -> Self {
        self.with_later_of(&Self::default())
    }

    /// Whether the first ones say all.
    pub(crate) fn are_first(&self) -> bool {
        self.first() == *self
    }
}

/// Of a field that has the first ones only.
pub(crate) fn serialize<S: Serializer>(limits: &Limits, serializer: S) -> Result<S::Ok, S::Error> {
    FirstLimits::from(limits).serialize(serializer)
}

/// The same, the other way.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
    FirstLimits::deserialize(deserializer).map(Limits::from)
}

/// For a field that need not be there.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, FirstLimits, Limits, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(limits: &Option<Limits>, serializer: S) -> Result<S::Ok, S::Error> {
        limits.as_ref().map(FirstLimits::from).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limits>, D::Error> {
        Ok(Option::<FirstLimits>::deserialize(deserializer)?.map(Limits::from))
    }
}
