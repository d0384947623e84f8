//! The account that a dlocks client names, where that is allowed.

use holdfast_api::{ApiError, ApiResult};
use tonic::metadata::MetadataMap;

const ACCOUNT_ID: &str = "account-id";

/// Returns the account named in the metadata; absent when the API key identifies the account.
///
/// `trusted` says whether callers may name accounts. An API key takes precedence over a name, because it proves
/// something.
pub(super) fn from_metadata(metadata: &MetadataMap, trusted: bool, has_key: bool) -> ApiResult<Option<String>> {
    let mut values = metadata.get_all(ACCOUNT_ID).iter();
    let first = values.next();
    if has_key || (!trusted && first.is_none()) {
        return Ok(None);
    }
    if !trusted {
        return Err(ApiError::unauthenticated(
            "account-id: is not enough here; send an API key as `authorization: Bearer`",
        ));
    }
    let Some(first) = first else {
        return Err(ApiError::unauthenticated("account-id: is missing from the metadata, and so is an API key"));
    };
    if values.next().is_some() {
        return Err(ApiError::invalid(ACCOUNT_ID, "account-id: given more than once"));
    }
    let text = first.to_str().unwrap_or_default();
    let well_formed = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !well_formed {
        return Err(ApiError::invalid(ACCOUNT_ID, "account-id: must be 16 hex digits, like 9fff3bf7d1f9561d"));
    }
    Ok(Some(text.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;

    use super::*;

    fn metadata(values: &[&'static str]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for value in values {
            metadata.append(ACCOUNT_ID, value.parse().unwrap());
        }
        metadata
    }

    #[test]
    fn the_account_is_sixteen_hex_digits_given_once() {
        let id = from_metadata(&metadata(&["9FFF3bf7d1f9561d"]), true, false).unwrap();
        assert_eq!(id.as_deref(), Some("9fff3bf7d1f9561d"));
        for bad in [&["9fff3bf7d1f9561"][..], &["17376851231650125672"], &["xfff3bf7d1f9561d"], &[""]] {
            let error = from_metadata(&metadata(bad), true, false).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{bad:?}");
        }
        let twice = from_metadata(&metadata(&["9fff3bf7d1f9561d", "9fff3bf7d1f9561d"]), true, false).unwrap_err();
        assert_eq!(twice.code, Code::InvalidArgument);
    }

    #[test]
    fn a_missing_account_is_unauthenticated() {
        assert_eq!(from_metadata(&metadata(&[]), true, false).unwrap_err().code, Code::Unauthenticated);
    }

    #[test]
    fn an_account_cannot_be_named_where_callers_are_not_trusted() {
        let error = from_metadata(&metadata(&["9fff3bf7d1f9561d"]), false, false).unwrap_err();
        assert_eq!(error.code, Code::Unauthenticated);
        assert_eq!(from_metadata(&metadata(&[]), false, false).unwrap(), None);
    }

    #[test]
    fn an_api_key_goes_before_a_name() {
        assert_eq!(from_metadata(&metadata(&["9fff3bf7d1f9561d"]), true, true).unwrap(), None);
        assert_eq!(from_metadata(&metadata(&["9fff3bf7d1f9561d"]), false, true).unwrap(), None);
    }
}
