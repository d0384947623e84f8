//! Page tokens: opaque to callers, bound to one list.
//!
//! base64url of a checksum and the encoded cursor. The checksum also covers the list, so that a damaged token, or a
//! token of another list, is rejected. A token is no secret, and grants nothing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use holdfast_types::codec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{ApiError, ApiResult};

const CHECKSUM_BYTES: usize = 4;

/// Returns the token of the page after `cursor`. `list` names the list and all its filters.
pub fn encode<C: Serialize>(list: &str, cursor: &C) -> String {
    let cursor = codec::encode(cursor);
    let mut bytes = checksum(list, &cursor).to_vec();
    bytes.extend_from_slice(&cursor);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Parses a token; absent and empty ones mean the first page.
pub fn decode<C: DeserializeOwned>(list: &str, token: Option<&str>) -> ApiResult<Option<C>> {
    let Some(token) = token.filter(|token| !token.is_empty()) else { return Ok(None) };
    let bad = || ApiError::invalid("page_token", "page_token: was not returned by this list");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
    let (sum, cursor) = bytes.split_at_checked(CHECKSUM_BYTES).ok_or_else(bad)?;
    if sum != checksum(list, cursor) {
        return Err(bad());
    }
    codec::decode(cursor).map(Some).map_err(|_| bad())
}

fn checksum(list: &str, cursor: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(list.len() as u64).to_be_bytes());
    hasher.update(list.as_bytes());
    hasher.update(cursor);
    hasher.finalize().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn a_token_brings_back_its_cursor() {
        let token = encode("accounts", &42_u64);
        assert_eq!(decode::<u64>("accounts", Some(&token)).unwrap(), Some(42));
    }

    #[test]
    fn absent_and_empty_tokens_mean_the_first_page() {
        assert_eq!(decode::<u64>("accounts", None).unwrap(), None);
        assert_eq!(decode::<u64>("accounts", Some("")).unwrap(), None);
    }

    #[test]
    fn damaged_tokens_and_tokens_of_another_list_are_refused() {
        let token = encode("namespaces of 1", &"demo".to_owned());
        let mut damaged = token.clone().into_bytes();
        let middle = damaged.len() / 2;
        damaged[middle] = if damaged[middle] == b'A' { b'B' } else { b'A' };
        let damaged = String::from_utf8(damaged).unwrap();
        let other = decode::<String>("namespaces of 2", Some(&token));
        for refused in
            [decode("namespaces of 1", Some(&damaged)), other, decode("x", Some("!")), decode("x", Some("AA"))]
        {
            let error = refused.unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert_eq!(error.ids, [("field", "page_token".to_owned())]);
        }
    }
}
