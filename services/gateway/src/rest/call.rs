//! Authentication of REST calls, before the rest of a request is read.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use holdfast_api::ApiResult;
use holdfast_backend::{AuthContext, CallContext, Service};

use super::problem::Problem;
use crate::connection_limiter::ActivityGuard;
use crate::head::{Head, bearer};

/// A call of a caller whose credential was checked.
#[derive(Debug)]
pub(super) struct AuthenticatedCall {
    pub(super) caller: AuthContext,
    pub(super) context: CallContext,
}

impl FromRequestParts<Service> for AuthenticatedCall {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let context = context(parts)?;
        let caller = service.authenticate(bearer(&parts.headers)?, &context).await;
        let activity = parts.extensions.get::<ActivityGuard>();
        let caller = caller.inspect_err(|error| ActivityGuard::refuse_unchecked(activity, error))?;
        if let Some(activity) = activity {
            activity.set_owner(service, &caller)?;
        }
        Ok(Self { caller, context })
    }
}

/// Returns the context of a call from the head that the layer of all routes read, or else from the headers.
pub(super) fn context(parts: &Parts) -> ApiResult<CallContext> {
    match parts.extensions.get::<Arc<Head>>() {
        Some(head) => head.context(),
        None => Head::rest(&parts.headers).context(),
    }
}
