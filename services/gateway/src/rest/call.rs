//! Authentication of REST calls, before the rest of a request is read.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use holdfast_backend::{AuthContext, CallContext, Service};

use super::Problem;
use crate::connection_limiter::ActivityGuard;
use crate::head::Head;

/// A call of a caller whose credential was checked.
#[derive(Debug)]
pub(super) struct AuthenticatedCall {
    pub(super) caller: AuthContext,
    pub(super) context: CallContext,
}

impl FromRequestParts<Service> for AuthenticatedCall {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Problem> {
        let read;
        let head = match parts.extensions.get::<Head>() {
            Some(head) => head,
            None => {
                read = Head::rest(&parts.headers);
                &read
            }
        };
        let context = head.context()?;
        let caller = service.authenticate(head.bearer()?, &context).await?;
        if let Some(stay) = parts.extensions.get::<ActivityGuard>() {
            stay.set_owner(caller.principal().account().map(|principal| principal.account));
        }
        Ok(Self { caller, context })
    }
}
