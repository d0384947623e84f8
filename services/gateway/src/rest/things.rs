//! Names in the bodies of calls about other kinds of things than locks.

use holdfast_api::{ApiError, ApiResult, LockName, ThingName};

/// Returns the thing of a body: exactly one of `name` and `path` is given.
pub(super) fn thing(namespace: String, named: (Option<String>, Option<Vec<String>>)) -> ApiResult<ThingName> {
    let name = match named {
        (Some(name), None) => LockName::Flat(name),
        (None, Some(path)) => LockName::Path(path),
        (None, None) => return Err(ApiError::invalid("name", "name: one of name and path is needed")),
        (Some(_), Some(_)) => return Err(ApiError::invalid("path", "path: only one of name and path may be given")),
    };
    Ok(ThingName { namespace, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_thing_in_one_way() {
        let named = |name: Option<&str>, path: Option<Vec<String>>| {
            thing("ns".to_owned(), (name.map(str::to_owned), path)).map(|thing| thing.name)
        };
        assert_eq!(named(Some("a/b"), None).unwrap(), LockName::from("a/b"));
        assert_eq!(named(None, Some(Vec::new())).unwrap(), LockName::Path(Vec::new()));
        assert_eq!(named(None, None).unwrap_err().ids[0].1, "name");
        assert_eq!(named(Some("a"), Some(Vec::new())).unwrap_err().ids[0].1, "path");
    }
}
