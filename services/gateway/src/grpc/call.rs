//! Authentication of gRPC calls.

use std::borrow::Cow;

use holdfast_api::ApiResult;
use holdfast_backend::{AuthContext, CallContext, Service};
use tonic::{Request, Status};

use super::status;
use crate::connection_limiter::ActivityGuard;
use crate::head::Head;

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
    let head = head(request);
    let context = head.context()?;
    let caller = service.authenticate(head.bearer()?, &context).await?;
    if let Some(stay) = request.extensions().get::<ActivityGuard>() {
        stay.set_owner(caller.principal().account().map(|principal| principal.account));
    }
    Ok((context, caller))
}

/// Returns the head that the frontend read, or else reads it from the metadata.
pub(crate) fn head<T>(request: &Request<T>) -> Cow<'_, Head> {
    match request.extensions().get::<Head>() {
        Some(head) => Cow::Borrowed(head),
        None => Cow::Owned(Head::grpc(request.metadata().as_ref())),
    }
}
