//! Random bytes of the system, and texts made of them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Bytes of a secret: 256 bits.
pub(crate) const SECRET_BYTES: usize = 32;

/// The system provides no random bytes, so no secret can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes: {0}")]
pub struct RandomError(#[from] getrandom::Error);

/// Returns this many random bytes.
pub(crate) fn bytes<const COUNT: usize>() -> Result<[u8; COUNT], RandomError> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// The URL-safe text of a secret: 43 characters.
pub(crate) fn secret_text(bytes: &[u8; SECRET_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns whether a text could be a secret half: of a plausible length and URL-safe.
pub(crate) fn is_secret_text(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (32..=128).contains(&text.len()) && text.bytes().all(allowed)
}
