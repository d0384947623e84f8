//! Calls about conditions as they are made through the gateway's service.

use holdfast_api::{ApiResult, AwaitCondition, SignalCondition};
use holdfast_backend::{AuthContext, CallContext};

use super::Client;
use super::perform::owner_fields;
use super::perform_things::thing;
use crate::condition_calls::{AwaitOp, ConditionAnswer, ConditionOp, SignalOp};
use crate::history::CALL_KEY;

impl Client {
    pub(super) async fn perform_for_condition(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: ConditionOp,
        id: usize,
    ) -> ApiResult<ConditionAnswer> {
        Ok(match op {
            ConditionOp::Await(AwaitOp { path, owner, token, condition, wait_ms, relock_ms, ttl_ms }) => {
                let request = AwaitCondition {
                    lock: thing(namespace, path),
                    owner: owner_fields(owner),
                    fencing_token: token,
                    condition,
                    wait_ms,
                    relock_ms: Some(relock_ms),
                    poll_ms: None,
                    ttl_ms,
                    transition_ms: None,
                    metadata: Some([(CALL_KEY.to_owned(), id.to_string())].into()),
                };
                self.service.await_condition(caller, context, request).await?.into()
            }
            ConditionOp::Signal(SignalOp { path, owner, condition, all, token, signal_id }) => {
                let (lock, owner) = (thing(namespace, path), owner_fields(owner));
                let request = SignalCondition { lock, owner, condition, all, fencing_token: token, signal_id };
                self.service.signal_condition(caller, context, request).await?.into()
            }
        })
    }
}
