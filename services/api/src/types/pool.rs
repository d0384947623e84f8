//! Pools: requests and responses of their operations. Each view serializes as its JSON form in the contract.

use holdfast_types::{FencingToken, Metadata};
use serde::Serialize;
use utoipa::ToSchema;

use super::{OwnerFields, PageRequest, PermitHolderInfo, ReasonInfo, ReleaseRequestInfo, ThingName};
use crate::Timestamp;

/// The configuration of a pool. All values are absolute.
#[derive(Clone, Debug)]
pub struct ConfigurePool {
    /// The pool.
    pub thing: ThingName,
    /// All members; one that is missing leaves once it is free.
    pub members: Vec<PoolMember>,
    /// How long a member rests after its hold ended, in milliseconds.
    pub cooldown_ms: u64,
    /// For people; empty when absent.
    pub description: Option<String>,
    /// Kept with the pool.
    pub metadata: Metadata,
}

/// A member as configured.
#[derive(Clone, Debug)]
pub struct PoolMember {
    /// Its name.
    pub name: String,
    /// Whether it is not given out.
    pub disabled: bool,
    /// Kept with the member.
    pub metadata: Metadata,
}

/// A change of some members.
#[derive(Clone, Debug)]
pub struct ChangePool {
    /// The pool.
    pub thing: ThingName,
    /// Members to add.
    pub add: Vec<PoolMember>,
    /// Members to remove; a held one leaves once its hold ends.
    pub remove: Vec<String>,
    /// Members that are not given out from now on.
    pub disable: Vec<String>,
    /// Members that are given out again, at once also if they rest.
    pub enable: Vec<String>,
}

/// A request for members, or an extension of a hold.
#[derive(Clone, Debug)]
pub struct TakeMembers {
    /// The pool.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// Names the hold among its owner's.
    pub request_id: String,
    /// How many members; 1 when absent. Does not go with `member`.
    pub count: Option<u64>,
    /// The one member that is wanted.
    pub member: Option<String>,
    /// The member that is taken first if it is free.
    pub prefer: Option<String>,
    /// From 0 to 9; 9 goes first.
    pub priority: u32,
    /// How long the members are held, in milliseconds. A process id needs it, a session has none.
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

/// The return of one hold or of some of its members, or the end of one waiting request.
#[derive(Clone, Debug)]
pub struct ReturnMembers {
    /// The pool.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// The name of the hold.
    pub request_id: Option<String>,
    /// The members to return, at least one; absent for all.
    pub members: Option<Vec<String>>,
    /// The token of the hold.
    pub fencing_token: Option<FencingToken>,
}

/// A look at a pool and a page of its members.
#[derive(Clone, Debug)]
pub struct GetPool {
    /// The pool.
    pub thing: ThingName,
    /// The page.
    pub page: PageRequest,
}

/// The current state of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Pool)]
pub struct PoolInfo {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Its path.
    pub path: Vec<String>,
    /// The number of members, those that leave included.
    pub members_total: u64,
    /// Members that can be taken now.
    pub free: u64,
    /// Members of all holds, in any state.
    pub in_use: u64,
    /// Members that leave once their hold ends.
    pub leaving: u64,
    /// How long a member rests after its hold ended, in milliseconds.
    pub cooldown_ms: u64,
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

/// One member of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = PoolMemberState)]
pub struct MemberInfo {
    /// Its name.
    pub name: String,
    /// Whether it is not given out.
    pub disabled: bool,
    /// Whether it is gone once its hold ends.
    pub leaving: bool,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The latest of these revisions: of its addition, of the end of a hold of it, and of being enabled while it was
    /// disabled or rested.
    pub free_since: u64,
    /// Computed from `rests_ms`; absent unless it rests.
    pub rests_until: Option<Timestamp>,
    /// How much longer it rests: the value to rely on.
    pub rests_ms: Option<u64>,
    /// Its hold, without the members.
    pub holder: Option<PermitHolderInfo>,
}

/// The response of a take. JSON omits `fencing_token` and `members` of a refused request, and `reason` of a granted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TakeMembersAnswer {
    /// Whether it was granted.
    pub success: bool,
    /// The token, when granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The members, when granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// The reason, when refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// The latest request to release the hold, if this extended one that somebody asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_requested: Option<ReleaseRequestInfo>,
    /// The pool as it now is.
    pub pool: PoolInfo,
}

/// The response of a return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReturnMembersAnswer {
    /// Whether a hold or a wait ended, or members were returned.
    pub released: bool,
    /// The pool as it now is.
    pub pool: PoolInfo,
}

/// The response of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckPoolAnswer {
    /// True exactly while the hold of that token is held, and has the member that was named.
    pub current: bool,
    /// The pool as it now is.
    pub pool: PoolInfo,
}

/// A pool, and a page of its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PoolMembers {
    /// The pool.
    pub pool: PoolInfo,
    /// Its members, in order of name.
    pub members: Vec<MemberInfo>,
    /// The token of the next page; absent on the last.
    pub next_page_token: Option<String>,
}
