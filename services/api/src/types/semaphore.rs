//! Semaphores: requests and responses of their operations. Each view serializes as its JSON form in the contract.

use holdfast_types::{FencingToken, Metadata, Phase};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{OwnerFields, PageRequest, PhaseName, ReasonInfo, ReleaseRequestInfo, ThingName, phase_name};
use crate::Timestamp;

/// The configuration of a semaphore. All values are absolute.
#[derive(Clone, Debug)]
pub struct ConfigureSemaphore {
    /// The semaphore.
    pub thing: ThingName,
    /// How many permits there are; 0 pauses it.
    pub permits: u64,
    /// For people; empty when absent.
    pub description: Option<String>,
    /// Kept with the semaphore.
    pub metadata: Metadata,
}

/// A request for permits, or an extension of a hold.
#[derive(Clone, Debug)]
pub struct AcquirePermits {
    /// The semaphore.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// Names the hold among its owner's.
    pub request_id: String,
    /// How many permits; 1 when absent.
    pub weight: Option<u64>,
    /// How many permits a semaphore has that nobody configured, from 1 on.
    pub permits: Option<u64>,
    /// From 0 to 9; 9 goes first.
    pub priority: u32,
    /// How long the permits are held, in milliseconds. A process id needs it, a session has none.
    pub ttl_ms: Option<u64>,
    /// How long the hold then stays in transition, in milliseconds.
    pub transition_ms: u64,
    /// How long the request waits for the grant, in milliseconds; 0 means that it does not wait.
    pub wait_ms: u64,
    /// Bounds this one call, in milliseconds; the queued request stays for the next call.
    pub poll_ms: Option<u64>,
    /// Kept with the hold.
    pub metadata: Metadata,
    /// Only extend the hold of this token.
    pub fencing_token: Option<FencingToken>,
}

/// A release of one hold, or of one waiting request.
#[derive(Clone, Debug)]
pub struct ReleasePermits {
    /// The semaphore.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// The name of the hold.
    pub request_id: Option<String>,
    /// The token of the hold.
    pub fencing_token: Option<FencingToken>,
}

/// A look at a semaphore and a page of its holders.
#[derive(Clone, Debug)]
pub struct GetSemaphore {
    /// The semaphore.
    pub thing: ThingName,
    /// The page.
    pub page: PageRequest,
}

/// The current state of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Semaphore)]
pub struct SemaphoreInfo {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Its path.
    pub path: Vec<String>,
    /// Whether it was configured; if not, it is gone with its last hold and wait.
    pub configured: bool,
    /// How many permits there are.
    pub permits: u64,
    /// Permits of all holds, in any state.
    pub in_use: u64,
    /// Permits that are free; 0 if more are in use than there are.
    pub available: u64,
    /// The number of holds.
    pub holders_total: u64,
    /// The number of waiting requests.
    pub waiting: u64,
    /// As given.
    pub description: String,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The revision of its last change; of one that does not exist, the shard's current revision.
    pub revision: u64,
}

/// One hold of permits, or of members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PermitHolder)]
pub struct PermitHolderInfo {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when a session holds them.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// Names the hold among its owner's.
    pub request_id: String,
    /// How many permits, or members.
    pub weight: u64,
    /// Of a pool: its members. JSON omits it otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The revision of its grant.
    pub fencing_token: u64,
    /// Wall clock at the grant.
    pub locked_at: Timestamp,
    /// Computed from `remaining_ms`; absent for holds that live as long as a session.
    pub expires_at: Option<Timestamp>,
    /// The remaining time of the present phase: the value to rely on.
    pub remaining_ms: Option<u64>,
    /// Held or in transition.
    #[serde(serialize_with = "phase_as_name")]
    #[schema(value_type = PhaseName)]
    pub phase: Phase,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The latest request to release it. JSON omits it if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_requested: Option<ReleaseRequestInfo>,
}

/// The response of an acquire. JSON omits `fencing_token` of a refused request and `reason` of a granted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AcquirePermitsAnswer {
    /// Whether it was granted.
    pub success: bool,
    /// The token, when granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The reason, when refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// The latest request to release the hold, if this extended one that somebody asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_requested: Option<ReleaseRequestInfo>,
    /// The semaphore as it now is.
    pub semaphore: SemaphoreInfo,
}

/// The response of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReleasePermitsAnswer {
    /// Whether a hold or a wait ended.
    pub released: bool,
    /// The semaphore as it now is.
    pub semaphore: SemaphoreInfo,
}

/// The response of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckPermitsAnswer {
    /// True exactly while the hold of that token is held.
    pub current: bool,
    /// The semaphore as it now is.
    pub semaphore: SemaphoreInfo,
}

/// A semaphore, and a page of its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SemaphoreHolders {
    /// The semaphore.
    pub semaphore: SemaphoreInfo,
    /// Its holders, in order of token.
    pub holders: Vec<PermitHolderInfo>,
    /// The token of the next page; absent on the last.
    pub next_page_token: Option<String>,
}

fn phase_as_name<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase_name(*phase))
}

#[cfg(test)]
mod tests {
    use holdfast_types::Reason;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_shown_by_the_names_of_the_contract() {
        let semaphore = SemaphoreInfo {
            namespace: "ns".into(),
            name: Some("s".into()),
            path: vec!["s".into()],
            configured: true,
            permits: 3,
            in_use: 3,
            available: 0,
            holders_total: 1,
            waiting: 0,
            description: String::new(),
            metadata: Metadata::new(),
            revision: 9,
        };
        let holder = PermitHolderInfo {
            process_id: "p".into(),
            session_id: None,
            holder: None,
            request_id: "r".into(),
            weight: 3,
            members: Vec::new(),
            fencing_token: 7,
            locked_at: Timestamp(1_700_000_000_123),
            expires_at: None,
            remaining_ms: None,
            phase: Phase::Held,
            metadata: Metadata::new(),
            release_requested: None,
        };
        let reason = ReasonInfo {
            code: Reason::Exhausted,
            blockers: Vec::new(),
            queue_position: None,
            cycle: Vec::new(),
            holders: vec![holder],
        };
        let (success, fencing_token, release_requested) = (false, None, None);
        let answer =
            AcquirePermitsAnswer { success, fencing_token, reason: Some(reason), release_requested, semaphore };
        let expected = json!({
            "success": false,
            "reason": {"code": "EXHAUSTED", "blockers": [], "queue_position": null, "holders": [{
                "process_id": "p", "session_id": null, "holder": null, "request_id": "r", "weight": 3,
                "fencing_token": 7, "locked_at": "2023-11-14T22:13:20.123Z", "expires_at": null, "remaining_ms": null,
                "phase": "HELD", "metadata": {},
            }]},
            "semaphore": {
                "namespace": "ns", "name": "s", "path": ["s"], "configured": true, "permits": 3, "in_use": 3,
                "available": 0, "holders_total": 1, "waiting": 0, "description": "", "metadata": {}, "revision": 9,
            },
        });
        assert_eq!(serde_json::to_value(answer).unwrap(), expected);
    }
}
