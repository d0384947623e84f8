//! The requests of a connection that may have been executed, and whose outcome its client does not know.

use holdfast_api::{ApiError, Code};

use super::channel::CloseReason;
use super::client_command::ClientCommand;
use super::connection::SessionConnection;

/// Maximum number of such requests to which this connection adds one.
const MAX_UNANSWERED: usize = 10_000;

impl SessionConnection<'_> {
    /// Returns whether the client has or may have made the request before.
    pub(super) fn is_known(&self, request_id: &str) -> bool {
        self.requests.state(request_id).is_some()
            || self.permits.state(request_id).is_some()
            || self.arrivals.get(request_id).is_some()
            || self.unanswered.contains(request_id)
    }

    /// Returns whether an earlier copy of a command may have been executed, so that nothing can be said of it without a
    /// reply to this copy.
    pub(super) fn may_be_done(&self, job: &ClientCommand, attempts: u8) -> bool {
        let is_repeat = match job {
            // Its request is known as that of its lock.
            ClientCommand::Await(awaits) => self.unanswered.contains(&awaits.request_id),
            job => job.made_request_id().is_some_and(|request_id| self.is_known(request_id)),
        };
        attempts > 0 || is_repeat
    }

    /// Returns the error to answer a command with that was not sent for this reason: whether its caller still has access
    /// says nothing of an earlier copy.
    pub(super) fn unsent_error(&self, job: &ClientCommand, attempts: u8, error: ApiError) -> ApiError {
        let is_about_caller = matches!(error.code, Code::Unavailable | Code::PermissionDenied);
        if is_about_caller && self.may_be_done(job, attempts) { unknown_outcome() } else { error }
    }

    /// Remembers a request that may have been executed: its repeat requests nothing new. With too many of them the
    /// connection ends, and its client lists them when it resumes.
    pub(super) fn remember_unanswered(&mut self, job: &ClientCommand) -> Result<(), CloseReason> {
        let Some(request_id) = job.made_request_id().filter(|id| !self.unanswered.contains(*id)) else {
            return Ok(());
        };
        if self.unanswered.len() >= MAX_UNANSWERED {
            return Err(CloseReason::Failed(unknown_outcome()));
        }
        self.unanswered.insert(request_id.to_owned());
        Ok(())
    }

    /// Forgets a request that the shard has answered.
    pub(super) fn remove_unanswered(&mut self, job: &ClientCommand) {
        let request_id = match job {
            ClientCommand::Release(release) | ClientCommand::Leave(release) => Some(release.request_id.as_str()),
            ClientCommand::ReleaseAll => {
                self.unanswered.clear();
                None
            }
            job => job.acquire_request_id(),
        };
        if let Some(request_id) = request_id {
            self.unanswered.remove(request_id);
        }
    }
}

/// The error for a command that may have been executed.
pub(super) fn unknown_outcome() -> ApiError {
    ApiError::new(Code::DeadlineExceeded, "it may have been executed, with an unknown outcome; repeat it")
}
