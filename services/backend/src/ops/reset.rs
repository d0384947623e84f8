//! Resets a namespace: ends everything of owners that no longer exist.

use holdfast_api::{ApiResult, ResetAnswer, ResetNamespace, validate};
use holdfast_routing::RetryPolicy;
use holdfast_types::{Command, LocksCommand, Reset, Response, Scopes};

use crate::shard_call::{ShardRequest, expect_answer};
use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Ends the holds, waiting requests and sessions of every owner that is not listed, in one step.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND`, besides those of every call.
    pub async fn reset_namespace(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: ResetNamespace,
    ) -> ApiResult<ResetAnswer> {
        let tenant = caller.require(Scopes::LOCKS_FORCE)?;
        tenant.check_namespace("namespace", &request.namespace)?;
        validate::live_owners(&request.live_owners)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        let make = |namespace| {
            let (live_owners, before_revision) = (request.live_owners.clone(), request.before_revision);
            let reset = Reset { namespace, live_owners, before_revision };
            // A second execution could end holds that were granted in between, as with the deletion of a lock.
            let command = caller.audited(context, Command::Locks(LocksCommand::Reset(reset)));
            ShardRequest::Command(Box::new(command), RetryPolicy::Never)
        };
        let reply = self.call_locks(tenant, &request.namespace, context, make).await?;
        expect_answer!(
            reply.outcome?,
            Response::Reset { removed_holds, removed_waiters } => ResetAnswer { removed_holds, removed_waiters }
        )
    }
}
