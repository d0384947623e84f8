//! Requests to release as they are made through the gateway's service.

use holdfast_api::{ApiResult, AskRelease};
use holdfast_backend::{AuthContext, CallContext};
use holdfast_core::Kind;

use super::Client;
use super::perform::lock_name;
use crate::ask_calls::{AskAnswer, AskOp, reason_of};

impl Client {
    pub(super) async fn perform_ask(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        namespace: &str,
        op: AskOp,
        id: usize,
    ) -> ApiResult<AskAnswer> {
        let (service, AskOp { kind, path, member, within_ms, force }) = (&self.service, op);
        let (namespace, name, reason) = (namespace.to_owned(), lock_name(path), Some(reason_of(id)));
        let request = AskRelease { namespace, name, member, reason, within_ms, force };
        Ok(match kind {
            Kind::Semaphore => service.ask_semaphore(caller, context, request).await?.into(),
            Kind::Pool => service.ask_pool(caller, context, request).await?.into(),
            _ => service.ask_lock(caller, context, request).await?.into(),
        })
    }
}
