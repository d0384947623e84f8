//! The query of a request: parsing is strict, so that no misspelt parameter is silently ignored.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use holdfast_api::{ApiError, ApiResult, Code, PageRequest};
use percent_encoding::percent_decode;

use super::problem::Problem;

/// The parameters of a route. Parameters unknown to `T` are rejected.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

/// Extracts its known parameters from a query.
pub(super) trait FromQuery: Sized {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self>;
}

/// The remaining parameters of a query, in order.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(String, String)>);

impl<S: Send + Sync, T: FromQuery> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        read(parts.uri.query().unwrap_or_default()).map(Self).map_err(Problem::from)
    }
}

fn read<T: FromQuery>(query: &str) -> ApiResult<T> {
    let mut parameters = Parameters::parse(query)?;
    let value = T::from_query(&mut parameters)?;
    match parameters.0.first() {
        None => Ok(value),
        Some((name, _)) => Err(invalid_parameter(name, "unknown query parameter")),
    }
}

impl Parameters {
    fn parse(query: &str) -> ApiResult<Self> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name).ok_or_else(|| invalid_parameter("query", "a parameter's name is not UTF-8"))?;
            let value = decode(value).ok_or_else(|| invalid_parameter(&name, "is not UTF-8 once percent-decoded"))?;
            Ok((name, value))
        });
        decoded.collect::<ApiResult<Vec<_>>>().map(Self)
    }

    /// Returns all values of a parameter that may be repeated, in order.
    pub(super) fn all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(found, _)| found == name).map(|(_, value)| value).collect()
    }

    /// Returns the value of a parameter that may occur once.
    pub(super) fn one(&mut self, name: &str) -> ApiResult<Option<String>> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(invalid_parameter(name, "given more than once"));
        }
        Ok(values.pop())
    }

    /// Returns the values of a parameter that may occur once and separates them by commas; none if it is absent.
    pub(super) fn list(&mut self, name: &str) -> ApiResult<Vec<String>> {
        let values = self.one(name)?.unwrap_or_default();
        Ok(values.split(',').filter(|value| !value.is_empty()).map(str::to_owned).collect())
    }
}

impl FromQuery for () {
    fn from_query(_: &mut Parameters) -> ApiResult<Self> {
        Ok(())
    }
}

impl FromQuery for PageRequest {
    fn from_query(parameters: &mut Parameters) -> ApiResult<Self> {
        let size = parameters.one("page_size")?.map(|text| {
            text.parse::<u32>().map_err(|_| invalid_parameter("page_size", "must be a number from 1 to 1000"))
        });
        Ok(Self { page_size: size.transpose()?, page_token: parameters.one("page_token")? })
    }
}

fn decode(text: &str) -> Option<String> {
    // In queries, unlike in paths, a plus is a space.
    let spaced = text.replace('+', " ");
    percent_decode(spaced.as_bytes()).decode_utf8().ok().map(Into::into)
}

fn invalid_parameter(name: &str, why: &str) -> ApiError {
    ApiError::new(Code::InvalidArgument, format!("{name}: {why}")).with("field", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::locks::ListQuery;

    #[test]
    fn parameters_are_decoded_and_repeated_ones_keep_their_order() {
        let query: ListQuery = read("prefix=a%2Fb&page_size=7&prefix=c+d&page_token=x%3D").unwrap();
        assert_eq!(query.prefix, ["a/b", "c d"]);
        assert_eq!(query.page.page_size, Some(7));
        assert_eq!(query.page.page_token.as_deref(), Some("x="));
    }

    #[test]
    fn unknown_repeated_and_malformed_parameters_are_refused_by_name() {
        for (query, field) in [
            ("page_sise=7", "page_sise"),
            ("page_size=7&page_size=8", "page_size"),
            ("page_size=-1", "page_size"),
            ("page_size=", "page_size"),
            ("page_token=%ff", "page_token"),
        ] {
            let error = read::<PageRequest>(query).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.detail.starts_with(field), "{query}: {}", error.detail);
            assert_eq!(error.ids, [("field", field.to_owned())]);
        }
        let list = |query| Parameters::parse(query).unwrap().list("kinds");
        assert_eq!(list("kinds=a,b").unwrap(), ["a", "b"]);
        assert!(list("").unwrap().is_empty() && list("kinds=a&kinds=b").is_err());
        assert!(read::<()>("").is_ok());
        assert!(read::<()>("a=1").is_err());
    }
}
