//! Converts what messages about all kinds but locks have in common.

use crate::{ApiError, ApiResult, ListThings, LockName, ThingName};

use super::convert;

/// Returns the thing of a name or of a path: exactly one of them.
pub fn name(namespace: String, name: Option<String>, path: Vec<String>) -> ApiResult<ThingName> {
    let name = match (name, path) {
        (Some(name), path) if path.is_empty() => LockName::Flat(name),
        (None, path) if !path.is_empty() => LockName::Path(path),
        (None, _) => return Err(ApiError::invalid("name", "name: one of name and path is needed")),
        (Some(_), _) => return Err(ApiError::invalid("path", "path: only one of name and path may be given")),
    };
    Ok(ThingName { namespace, name })
}

/// Converts a list.
pub fn list(namespace: String, prefix: Vec<String>, page_size: u32, page_token: String) -> ListThings {
    ListThings { namespace, prefix, page: convert::page_request(page_size, page_token) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_named_in_one_way() {
        let named = |named: Option<&str>, path: &[&str]| {
            let path = path.iter().map(|segment| (*segment).to_owned()).collect();
            name("ns".to_owned(), named.map(str::to_owned), path).map(|thing| thing.name)
        };
        assert_eq!(named(Some("a/b"), &[]).unwrap(), LockName::from("a/b"));
        assert_eq!(named(None, &["a", "b"]).unwrap(), LockName::Path(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(named(None, &[]).unwrap_err().ids[0].1, "name");
        assert_eq!(named(Some("a"), &["a"]).unwrap_err().ids[0].1, "path");
    }
}
