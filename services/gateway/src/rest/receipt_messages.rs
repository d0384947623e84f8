//! Receipts in the list of a resumed session, as JSON: hex digits.

use holdfast_api::session_message::GrantedLock;
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::Receipt;
use serde::Deserialize;

use super::held_message::Held;

/// A granted request with its receipt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Granted {
    request_id: String,
    holder: Option<String>,
    resources: Vec<Held>,
    receipt: String,
}

impl Granted {
    pub(super) fn read(self) -> ApiResult<GrantedLock> {
        let Self { request_id, holder, resources, receipt } = self;
        let resources = resources.into_iter().map(Held::read).collect::<ApiResult<_>>()?;
        Ok(GrantedLock { request_id, holder, resources, receipt: read_receipt(&receipt)? })
    }
}

pub(super) fn read_receipt(text: &str) -> ApiResult<Receipt> {
    text.parse().map_err(|error| ApiError::invalid("receipt", format!("receipt: {error}")))
}
