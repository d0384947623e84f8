//! Requests and responses of the operations, the same for every frontend. Each response serializes as its JSON form in
//! the contract.

mod ask;
mod audit;
mod barrier;
mod cluster;
mod condition;
mod enum_names;
mod event;
mod latch;
mod lock_requests;
mod lock_view;
mod pool;
mod requests;
mod semaphore;
mod session;
mod thing;
mod token;
mod usage;
mod view;
mod wait;

pub use ask::*;
pub use audit::{AuditEntry, ListAudit};
pub use barrier::*;
pub use cluster::{ClusterInfo, GroupInfo, GroupReplicaInfo, NodeInfo, PoisonInfo, ReplicaInfo, ShardInfo};
pub use condition::*;
pub use enum_names::*;
pub use event::{ClaimInfo, EventInfo, EventPage, WatchEvents};
pub use latch::*;
pub use lock_requests::*;
pub use lock_view::*;
pub use pool::*;
pub use requests::*;
pub use semaphore::*;
pub use session::{CreateSession, SessionInfo};
pub use thing::{ListThings, ThingName};
pub use token::{CreateToken, CreatedToken};
pub use usage::{
    LimitUsageInfo, NamespaceFigures, NamespaceLoad, NamespaceUsageInfo, StateBytesInfo, UsageInfo, UsageTotalsInfo,
};
pub use view::*;
pub use wait::{ListWaits, ResourceInfo, WaitInfo};
