//! The commands of a client, and what they mean for its requests.

use std::sync::Arc;

use futures::future::BoxFuture;
use holdfast_api::session_message::{Lock, LockInfo, Release};
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{Reply, ReportedHold};

/// One command of the client.
#[derive(Clone, Debug)]
pub(super) enum ClientCommand {
    Lock(Arc<Lock>),
    /// Queries the state of a waiting request at a new leader.
    Requery(String),
    Release(Release),
    ReleaseAll,
    LockInfo(LockInfo),
    /// Queries whether these holds still exist, after a change of leader.
    ReconcileHolds(Vec<ReportedHold>),
    Close,
    /// The client broke the protocol.
    Malformed(ApiError),
}

/// Client commands that one shard command executes, in their order.
pub(super) struct InFlightBatch {
    pub(super) commands: Vec<ClientCommand>,
    /// How often the batch was sent before and ignored by the shard.
    pub(super) attempts: u8,
    pub(super) reply: BoxFuture<'static, ApiResult<Reply>>,
}

impl InFlightBatch {
    /// Returns whether it acquires the request.
    pub(super) fn acquires(&self, request_id: &str) -> bool {
        self.commands.iter().any(|job| job.acquire_request_id() == Some(request_id))
    }

    /// Returns whether it may add holds that are not known yet: it acquires some, or lists those from before a resume.
    pub(super) fn may_add_holds(&self) -> bool {
        self.lists_holds() || self.commands.iter().any(|job| job.acquire_request_id().is_some())
    }

    /// Returns whether it lists holds from before a resume.
    pub(super) fn lists_holds(&self) -> bool {
        self.commands.iter().any(|job| matches!(job, ClientCommand::LockInfo(_)))
    }

    /// Returns whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        self.commands.iter().any(|job| job.ends(request_id))
    }
}

impl ClientCommand {
    /// Returns the request that it acquires.
    pub(super) fn acquire_request_id(&self) -> Option<&str> {
        match self {
            Self::Lock(lock) => Some(&lock.request_id),
            Self::Requery(request_id) => Some(request_id),
            _ => None,
        }
    }

    /// Returns whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        match self {
            Self::Release(release) => release.request_id == request_id,
            Self::ReleaseAll | Self::Close => true,
            _ => false,
        }
    }

    /// Returns whether it is a part of a `lock_info` that has others.
    pub(super) fn is_one_of_several_parts(&self) -> bool {
        matches!(self, Self::LockInfo(info) if info.part.count > 1)
    }

    /// Returns whether its reply says more than that it was done.
    pub(super) fn needs_reply(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::ReleaseAll)
    }

    /// Returns whether the shard command may contain others like it.
    pub(super) fn is_batchable(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Requery(_) | Self::Release(_) | Self::ReleaseAll)
    }
}
