//! The problems of a call, declared beside its handler.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use holdfast_api::Code;
use serde_json::Value;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

/// The media type of every error.
const PROBLEM_JSON: &str = "application/problem+json";
/// The member of a response in the document that lists the codes of its status.
pub(crate) const CODES: &str = "x-codes";

/// An error (RFC 9457). Further members name the items concerned: `field`, `namespace`, `account`, `limit`, …
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what answer.rs puts together member by member")]
pub(super) struct ProblemSchema {
    /// `urn:holdfast:error:` and the code.
    #[schema(rename = "type", example = "urn:holdfast:error:NAMESPACE_NOT_FOUND")]
    kind: String,
    /// A short text for people, the same for every error of the code.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The code, for programs.
    #[schema(example = "NAMESPACE_NOT_FOUND")]
    code: String,
    /// The details, for people.
    detail: String,
}

/// The problems of a call: `T` is a tuple of aspects of the call, each with its own possible errors.
pub(crate) struct Problems<T>(PhantomData<T>);

/// An aspect of a call, and its error codes.
pub(crate) trait ErrorSet {
    /// Adds them.
    fn collect(codes: &mut BTreeSet<Code>);
}

macro_rules! error_sets {
    ($($(#[$doc:meta])* $name:ident: $($code:ident),+;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;

            impl ErrorSet for $name {
                fn collect(codes: &mut BTreeSet<Code>) {
                    codes.extend([$(Code::$code),+]);
                }
            }
        )*
    };
}

error_sets! {
    /// Errors of every call.
    BaseErrors: InvalidArgument, Internal, DeadlineExceeded;
    /// It needs a credential, and calls a shard.
    CommonErrors: InvalidArgument, Unauthenticated, PermissionDenied, Internal, Unavailable, DeadlineExceeded;
    /// It reads a body.
    BodyErrors: PayloadTooLarge, UnsupportedMediaType;
    /// It counts against the rate of the account.
    RateErrors: RateLimited;
    /// It concerns an account.
    AccountErrors: AccountNotFound;
    /// It concerns a key.
    KeyErrors: ApiKeyNotFound;
    /// It concerns a namespace.
    NamespaceErrors: NamespaceNotFound;
    /// It concerns a session, or may act for one.
    SessionErrors: SessionNotFound;
    /// It concerns a thing of another kind than locks.
    PrimitiveErrors: PrimitiveNotFound;
    /// It acts for an owner on a thing of another kind than locks.
    ThingErrors: PrimitiveNotFound, SessionNotFound;
    /// It creates a named item.
    ConflictErrors: AlreadyExists;
    /// It creates an item whose number is limited.
    QuotaErrors: QuotaExceeded;
    /// It reads history.
    HistoryErrors: RevisionCompacted;
    /// It reports whether the process can serve.
    ProbeErrors: Unavailable;
    /// It is for this machine and for the operator.
    LocalErrors: Unauthenticated;
}

macro_rules! error_sets_of_tuples {
    ($($name:ident)+) => {
        impl<$($name: ErrorSet),+> ErrorSet for ($($name,)+) {
            fn collect(codes: &mut BTreeSet<Code>) {
                $($name::collect(codes);)+
            }
        }
    };
}

error_sets_of_tuples!(A);
error_sets_of_tuples!(A B);
error_sets_of_tuples!(A B C);
error_sets_of_tuples!(A B C D);
error_sets_of_tuples!(A B C D E);
error_sets_of_tuples!(A B C D E F);

impl<T: ErrorSet> IntoResponses for Problems<T> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut codes = BTreeSet::new();
        T::collect(&mut codes);
        let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
        for code in codes {
            by_status.entry(code.http_status()).or_default().push(code);
        }
        by_status.into_iter().map(|(status, codes)| (status.to_string(), RefOr::T(response(&codes)))).collect()
    }
}

/// Returns one status with all its codes.
fn response(codes: &[Code]) -> Response {
    let said = codes.iter().map(|code| format!("`{}`: {}.", code.name(), code.title())).collect::<Vec<_>>().join(" ");
    let names = codes.iter().map(|code| Value::from(code.name())).collect::<Vec<_>>();
    let schema = Ref::from_schema_name("Problem");
    let mut response = ResponseBuilder::new()
        .description(said)
        .content(PROBLEM_JSON, ContentBuilder::new().schema(Some(schema)).build())
        .extensions(Some(ExtensionsBuilder::new().add(CODES, names).build()));
    if codes.iter().any(|code| matches!(code, Code::RateLimited | Code::Unavailable)) {
        let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).build();
        let header =
            HeaderBuilder::new().schema(Some(seconds)).description(Some("When to try again, in seconds.")).build();
        response = response.header("Retry-After", header);
    }
    response.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_one_status_are_told_together() {
        let responses = Problems::<(CommonErrors, AccountErrors, NamespaceErrors)>::responses();
        let statuses: Vec<&str> = responses.keys().map(String::as_str).collect();
        assert_eq!(statuses, ["400", "401", "403", "404", "500", "503", "504"]);
        let RefOr::T(not_found) = &responses["404"] else { panic!("a response and no reference") };
        assert!(not_found.description.contains("`ACCOUNT_NOT_FOUND`"), "{}", not_found.description);
        assert!(not_found.description.contains("`NAMESPACE_NOT_FOUND`"), "{}", not_found.description);
    }
}
