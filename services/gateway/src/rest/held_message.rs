//! A hold in messages of the session protocol, as JSON.

use holdfast_api::{ApiError, ApiResult, parse_mode};
use holdfast_types::{Mode, Path, ReportedHold};
use serde::Deserialize;

/// A hold that a client reports.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Held {
    path: Vec<String>,
    mode: Option<String>,
    fencing_token: u64,
}

impl Held {
    pub(super) fn read(self) -> ApiResult<ReportedHold> {
        Ok(ReportedHold { path: Path(self.path), mode: mode(self.mode)?, fencing_token: self.fencing_token })
    }
}

/// Returns the mode of this name; WRITE if none is given.
pub(super) fn mode(name: Option<String>) -> ApiResult<Mode> {
    let Some(name) = name else { return Ok(Mode::Write) };
    parse_mode(&name).ok_or_else(|| ApiError::invalid("mode", "mode: must be READ or WRITE"))
}
