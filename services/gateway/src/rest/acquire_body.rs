//! The body of an acquire, of one lock and of a set.

use holdfast_api::{ApiError, ApiResult, ModeName, OwnerFields, Resource, Terms, parse_mode};
use holdfast_types::Mode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{Rfc3339, StrictObject, StringMap};

/// Derives the fields that both bodies share: serde cannot both flatten fields and reject unknown ones.
macro_rules! acquire_body {
    ($(#[$doc:meta])* $name:ident { $($(#[$meta:meta])* $field:ident: $type:ty),* $(,)? }) => {
        #[derive(Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$doc])*
        pub(super) struct $name {
            $($(#[$meta])* pub(super) $field: $type,)*
            process_id: Option<String>,
            session_id: Option<String>,
            holder: Option<String>,
            ttl_ms: Option<u64>,
            #[schema(value_type = Option<String>, format = DateTime)]
            expires_at: Option<Rfc3339>,
            wait_ms: Option<u64>,
            poll_ms: Option<u64>,
            transition_ms: Option<u64>,
            at_least_ms: Option<u64>,
            #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
            metadata: Option<StringMap>,
            allow_upgrade: Option<bool>,
            fencing_token: Option<u64>,
            signed: Option<bool>,
        }

        impl $name {
            /// Splits the body into owner and terms.
            pub(super) fn owner_and_terms(self) -> (OwnerFields, Terms) {
                let owner =
                    OwnerFields { process_id: self.process_id, session_id: self.session_id, holder: self.holder };
                let terms = Terms {
                    ttl_ms: self.ttl_ms,
                    expires_at: self.expires_at.map(|instant| instant.0),
                    dlocks_expires_at_ns: None,
                    wait_ms: self.wait_ms.unwrap_or(0),
                    poll_ms: self.poll_ms,
                    transition_ms: self.transition_ms.unwrap_or(0),
                    at_least_ms: self.at_least_ms.unwrap_or(0),
                    metadata: self.metadata.unwrap_or_default().0,
                    allow_upgrade: self.allow_upgrade.unwrap_or(false),
                    fencing_token: self.fencing_token,
                    signed: self.signed.unwrap_or(false),
                };
                (owner, terms)
            }
        }
    };
}

acquire_body! {
    /// The body of an acquire of one lock.
    #[schema(as = AcquireLock)]
    AcquireBody {
        #[schema(value_type = Option<ModeName>)]
        mode: Option<String>,
    }
}

acquire_body! {
    /// The body of an acquire of a set.
    #[schema(as = AcquireLocks)]
    AcquireSetBody {
        #[schema(value_type = Vec<ResourceBody>)]
        resources: Vec<StrictObject<ResourceBody>>,
        request_id: Option<String>,
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Resource)]
pub(super) struct ResourceBody {
    path: Vec<String>,
    #[schema(value_type = Option<ModeName>)]
    mode: Option<String>,
}

/// Returns the resources of a set, in order.
pub(super) fn resources(bodies: Vec<StrictObject<ResourceBody>>) -> ApiResult<Vec<Resource>> {
    let resource = |(index, body): (usize, StrictObject<ResourceBody>)| {
        let mode = mode(&format!("resources[{index}].mode"), body.0.mode.as_deref())?;
        Ok(Resource { path: body.0.path, mode })
    };
    bodies.into_iter().enumerate().map(resource).collect()
}

/// Parses a mode by its public name; WRITE when it is absent.
pub(super) fn mode(field: &str, name: Option<&str>) -> ApiResult<Mode> {
    let Some(name) = name else { return Ok(Mode::Write) };
    parse_mode(name).ok_or_else(|| ApiError::invalid(field, format!("{field}: must be READ or WRITE")))
}
