//! Maximum sizes of bodies and messages.

use crate::session_message::ClientPayload;
use crate::{ApiError, ApiResult, Code};

/// The largest body of a request, and the largest message of most kinds, in bytes.
pub const MAX_BODY_BYTES: usize = 64 * 1_024;
/// The largest message that lists all holds of a session, in bytes. It comes once per connection, so it may be larger
/// than other messages.
pub const MAX_LOCK_INFO_BYTES: usize = 1_024 * 1_024;

/// Rejects a message that is too large for its kind.
///
/// # Errors
/// `PAYLOAD_TOO_LARGE`.
pub fn message_size(bytes: usize, said: &ClientPayload) -> ApiResult<()> {
    let max = if matches!(said, ClientPayload::LockInfo(_)) { MAX_LOCK_INFO_BYTES } else { MAX_BODY_BYTES };
    if bytes <= max {
        return Ok(());
    }
    Err(ApiError::new(Code::PayloadTooLarge, format!("the message has {bytes} bytes, of at most {max}")))
}
