//! Authentication of gRPC calls.

use std::sync::Arc;

use holdfast_api::ApiResult;
use holdfast_backend::{AuthContext, CallContext, Service};
use tonic::{Request, Status};

use super::status;
use crate::connection_limiter::ActivityGuard;
use crate::head::{Head, bearer};

/// A call of a caller whose credential was checked, and its message.
#[derive(Debug)]
pub(crate) struct AuthenticatedCall<T> {
    pub(crate) caller: AuthContext,
    pub(crate) context: CallContext,
    pub(crate) message: T,
}

impl<T> AuthenticatedCall<T> {
    /// Checks the credential in the metadata.
    pub(crate) async fn check(service: &Service, request: Request<T>) -> Result<Self, Status> {
        let (context, caller) = identify(service, &request).await.map_err(status)?;
        Ok(Self { caller, context, message: request.into_inner() })
    }
}

async fn identify<T>(service: &Service, request: &Request<T>) -> ApiResult<(CallContext, AuthContext)> {
    let context = context(request)?;
    let caller = service.authenticate(bearer(request.metadata().as_ref())?, &context).await;
    let activity = request.extensions().get::<ActivityGuard>();
    let caller = caller.inspect_err(|error| ActivityGuard::refuse_unchecked(activity, error))?;
    count_request(service, request, &caller, &context)?;
    Ok((context, caller))
}

/// Records that the connection of a call is this caller's, and the length of the body of the call.
///
/// # Errors
/// `RATE_LIMITED` if the account has as many other connections as it may.
pub(crate) fn count_request<T>(
    service: &Service,
    request: &Request<T>,
    caller: &AuthContext,
    context: &CallContext,
) -> ApiResult<()> {
    let Some(activity) = request.extensions().get::<ActivityGuard>() else { return Ok(()) };
    context.report.set_body_bytes(activity.request_bytes());
    activity.set_owner(service, caller)
}

/// Returns the context of a call from the head that the layer of all methods read, or else from the metadata.
pub(crate) fn context<T>(request: &Request<T>) -> ApiResult<CallContext> {
    match request.extensions().get::<Arc<Head>>() {
        Some(head) => head.context(),
        None => Head::grpc(request.metadata().as_ref()).context(),
    }
}
