//! How large a body and a message may be.

use crate::session_message::ClientPayload;
use crate::{ApiError, ApiResult, Code};

/// The largest body of a request, and the largest message of most kinds, in bytes.
pub const MAX_BODY_BYTES: usize = 64 * 1_024;
/// What a client may say that lists all that its session holds. It comes once in a connection, so that it may be larger
/// than other messages.
pub const MAX_LOCK_INFO_BYTES: usize = 1_024 * 1_024;

/// Refuses a message that is larger than one of its kind may be.
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
