//! Who calls, checked before anything else of a request is read.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::Problem;
use crate::head::Head;
use crate::server::Stay;
use crate::service::{CallContext, Caller, Service};

/// A call by a caller whose credential was checked.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) caller: Caller,
    pub(super) context: CallContext,
}

impl FromRequestParts<Service> for Call {
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
        if let Some(stay) = parts.extensions.get::<Stay>() {
            stay.is_used_by(caller.principal().account().map(|principal| principal.account));
        }
        Ok(Self { caller, context })
    }
}
