//! Every error that a caller can see: one exhaustive table of public codes, with what each means over REST and gRPC.
//!
//! `UNAVAILABLE` means that nothing was done; `DEADLINE_EXCEEDED` that it may have been.

use std::time::Duration;

use holdfast_core::CommandError;

use holdfast_routing::RouteError;

/// How long a caller is asked to wait before it tries again when the service is not available.
const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);
/// The same when a node has no memory for anything new.
const RETRY_AFTER_FULL: Duration = Duration::from_secs(5);

/// What an operation answers.
pub type ApiResult<T> = Result<T, ApiError>;

/// The public codes. Each has one HTTP status and one gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The request itself is wrong; the detail names the field.
    InvalidArgument,
    /// No credential, or one that is unknown, wrong, expired or revoked.
    Unauthenticated,
    /// The credential does not allow this, or the account is suspended.
    PermissionDenied,
    /// No such account.
    AccountNotFound,
    /// No such namespace in the caller's account.
    NamespaceNotFound,
    /// No such session.
    SessionNotFound,
    /// No such API key in that account.
    ApiKeyNotFound,
    /// No such route.
    NotFound,
    /// The route exists, with other methods.
    MethodNotAllowed,
    /// Something of that name exists.
    AlreadyExists,
    /// A limit is reached; what exists stays.
    QuotaExceeded,
    /// A newer connection took the session over.
    Superseded,
    /// The history asked for is no longer kept.
    RevisionCompacted,
    /// The body is larger than is read.
    PayloadTooLarge,
    /// The body is of a type that is not read.
    UnsupportedMediaType,
    /// Too many requests a second.
    RateLimited,
    /// A fault of the service.
    Internal,
    /// The service cannot answer now; nothing was done.
    Unavailable,
    /// The deadline ended first; it may have been done.
    DeadlineExceeded,
}

impl Code {
    /// Every code, for tables and tests.
    pub const ALL: [Self; 19] = [
        Self::InvalidArgument,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::AccountNotFound,
        Self::NamespaceNotFound,
        Self::SessionNotFound,
        Self::ApiKeyNotFound,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::AlreadyExists,
        Self::QuotaExceeded,
        Self::Superseded,
        Self::RevisionCompacted,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::RateLimited,
        Self::Internal,
        Self::Unavailable,
        Self::DeadlineExceeded,
    ];

    /// The public name, as in the `code` member of a problem and in `google.rpc.ErrorInfo`.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status.
    pub fn http_status(self) -> u16 {
        self.row().1
    }

    /// The gRPC status.
    pub fn grpc_code(self) -> tonic::Code {
        self.row().2
    }

    /// A short text for people, the `title` of a problem; the same for every error of the code.
    pub fn title(self) -> &'static str {
        self.row().3
    }

    /// Whether the very same request may succeed when it is sent again later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Unavailable | Self::DeadlineExceeded)
    }

    /// Whether it is certain that nothing was done.
    pub fn has_no_side_effects(self) -> bool {
        !matches!(self, Self::DeadlineExceeded | Self::Internal)
    }

    fn row(self) -> (&'static str, u16, tonic::Code, &'static str) {
        use tonic::Code as Grpc;
        match self {
            Self::InvalidArgument => ("INVALID_ARGUMENT", 400, Grpc::InvalidArgument, "The request is not valid"),
            Self::Unauthenticated => ("UNAUTHENTICATED", 401, Grpc::Unauthenticated, "A valid credential is needed"),
            Self::PermissionDenied => ("PERMISSION_DENIED", 403, Grpc::PermissionDenied, "Not allowed"),
            Self::AccountNotFound => ("ACCOUNT_NOT_FOUND", 404, Grpc::NotFound, "No such account"),
            Self::NamespaceNotFound => ("NAMESPACE_NOT_FOUND", 404, Grpc::NotFound, "No such namespace"),
            Self::SessionNotFound => ("SESSION_NOT_FOUND", 404, Grpc::NotFound, "No such session"),
            Self::ApiKeyNotFound => ("API_KEY_NOT_FOUND", 404, Grpc::NotFound, "No such API key"),
            Self::NotFound => ("NOT_FOUND", 404, Grpc::NotFound, "No such route"),
            Self::MethodNotAllowed => ("METHOD_NOT_ALLOWED", 405, Grpc::Unimplemented, "Another method is needed"),
            Self::AlreadyExists => ("ALREADY_EXISTS", 409, Grpc::AlreadyExists, "It exists already"),
            Self::QuotaExceeded => ("QUOTA_EXCEEDED", 409, Grpc::ResourceExhausted, "A limit is reached"),
            Self::Superseded => ("SUPERSEDED", 409, Grpc::Aborted, "Taken over by a newer connection"),
            Self::RevisionCompacted => ("REVISION_COMPACTED", 410, Grpc::OutOfRange, "No longer kept"),
            Self::PayloadTooLarge => ("PAYLOAD_TOO_LARGE", 413, Grpc::ResourceExhausted, "The body is too large"),
            Self::UnsupportedMediaType => {
                ("UNSUPPORTED_MEDIA_TYPE", 415, Grpc::InvalidArgument, "The body is of another type")
            }
            Self::RateLimited => ("RATE_LIMITED", 429, Grpc::ResourceExhausted, "Too many requests"),
            Self::Internal => ("INTERNAL", 500, Grpc::Internal, "A fault of the service"),
            Self::Unavailable => ("UNAVAILABLE", 503, Grpc::Unavailable, "Not available now; nothing was done"),
            Self::DeadlineExceeded => {
                ("DEADLINE_EXCEEDED", 504, Grpc::DeadlineExceeded, "Out of time; it may have been done")
            }
        }
    }
}

/// An error as the caller sees it. Nothing in it tells one tenant about another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", code.name())]
pub struct ApiError {
    /// What kind.
    pub code: Code,
    /// What exactly, for people.
    pub detail: String,
    /// The ids concerned, by their public names: `field`, `namespace`, `account`, `key_id`, `limit`, …
    pub ids: Vec<(&'static str, String)>,
    /// When it makes sense to try again, for codes that say so.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// An error of that code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = (code == Code::Unavailable).then_some(RETRY_AFTER_UNAVAILABLE);
        Self { code, detail: detail.into(), ids: Vec::new(), retry_after }
    }

    /// A bad field; the detail should name it too, since some doors show only the detail.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, detail).with("field", field)
    }

    /// No credential, or one that is unknown, wrong, expired or revoked.
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        Self::new(Code::Unauthenticated, detail)
    }

    /// The credential does not allow this.
    pub fn denied(detail: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, detail)
    }

    /// The namespace is unknown, or another tenant's: the two look alike. The detail is part of the contract.
    pub fn namespace_not_found(name: &str) -> Self {
        Self::from(CommandError::NamespaceNotFound).with("namespace", name)
    }

    /// A fault of the service; `detail` must hold nothing that a caller should not see.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Code::Internal, detail)
    }

    /// Too many requests a second; try again after `wait`.
    pub fn rate_limited(limit: u32, wait: Duration) -> Self {
        let detail = format!("the account may make {limit} requests a second at one gateway");
        let mut error = Self::new(Code::RateLimited, detail).with("limit", "max_requests_per_second");
        error.retry_after = Some(wait);
        error
    }

    /// Adds an id concerned.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.ids.push((name, value.into()));
        self
    }

    /// `Retry-After` in whole seconds, at least 1.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).map(|s| s.max(1))
    }
}

impl From<CommandError> for ApiError {
    fn from(refusal: CommandError) -> Self {
        let (detail, limit) = (refusal.to_string(), refusal.limit());
        match refusal {
            CommandError::AccountNotFound(id) => {
                Self::new(Code::AccountNotFound, detail).with("account", id.to_string())
            }
            CommandError::NamespaceNotFound => Self::new(Code::NamespaceNotFound, detail),
            CommandError::ApiKeyNotFound => Self::new(Code::ApiKeyNotFound, detail),
            CommandError::SessionNotFound(id) => Self::new(Code::SessionNotFound, detail).with("session_id", id),
            CommandError::Superseded { epoch } => Self::new(Code::Superseded, detail).with("epoch", epoch.to_string()),
            CommandError::RequestIdTaken(_) => Self::invalid("request_id", format!("request_id: {detail}")),
            CommandError::RevisionCompacted { oldest } => {
                Self::new(Code::RevisionCompacted, detail).with("oldest", oldest.to_string())
            }
            CommandError::EmailTaken(email) => Self::new(Code::AlreadyExists, detail).with("email", email),
            CommandError::NamespaceTaken(name) => Self::new(Code::AlreadyExists, detail).with("namespace", name),
            CommandError::QuotaExceeded { what, max, .. } => {
                let limit = limit.map_or(what, str::to_owned);
                Self::new(Code::QuotaExceeded, detail).with("limit", limit).with("max", max.to_string())
            }
            // Ids are drawn again before a caller could see this.
            CommandError::IdTaken | CommandError::Busy(_) => Self::new(Code::Unavailable, detail),
            CommandError::Full(_) => {
                Self { retry_after: Some(RETRY_AFTER_FULL), ..Self::new(Code::Unavailable, detail) }
            }
            // Only followers of changes and nodes ask what these answer; a caller that saw one would have met a fault.
            CommandError::ChangesCompacted { .. } | CommandError::NotWaiting => Self::internal(detail),
            CommandError::Malformed(_) => Self::internal(detail),
        }
    }
}

impl From<RouteError> for ApiError {
    fn from(error: RouteError) -> Self {
        let detail = error.to_string();
        match error {
            RouteError::Unavailable { .. } => Self::new(Code::Unavailable, detail),
            RouteError::OutcomeUnknown { .. } => Self::new(Code::DeadlineExceeded, detail),
            RouteError::InvalidReply { .. } => Self::internal(detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use holdfast_core::AccountId;

    use super::*;

    #[test]
    fn the_statuses_are_those_of_the_contract() {
        let expected = [
            ("INVALID_ARGUMENT", 400),
            ("UNAUTHENTICATED", 401),
            ("PERMISSION_DENIED", 403),
            ("ACCOUNT_NOT_FOUND", 404),
            ("NAMESPACE_NOT_FOUND", 404),
            ("SESSION_NOT_FOUND", 404),
            ("API_KEY_NOT_FOUND", 404),
            ("NOT_FOUND", 404),
            ("METHOD_NOT_ALLOWED", 405),
            ("ALREADY_EXISTS", 409),
            ("QUOTA_EXCEEDED", 409),
            ("SUPERSEDED", 409),
            ("REVISION_COMPACTED", 410),
            ("PAYLOAD_TOO_LARGE", 413),
            ("UNSUPPORTED_MEDIA_TYPE", 415),
            ("RATE_LIMITED", 429),
            ("INTERNAL", 500),
            ("UNAVAILABLE", 503),
            ("DEADLINE_EXCEEDED", 504),
        ];
        assert_eq!(Code::ALL.map(|code| (code.name(), code.http_status())), expected);
        assert_eq!(Code::ALL.into_iter().collect::<HashSet<_>>().len(), Code::ALL.len());
        assert!(Code::ALL.into_iter().all(|code| code.grpc_code() != tonic::Code::Ok && !code.title().is_empty()));
    }

    #[test]
    fn an_unknown_namespace_has_the_text_of_the_contract() {
        let error = ApiError::namespace_not_found("other");
        assert_eq!((error.code, error.detail.as_str()), (Code::NamespaceNotFound, "namespace not found"));
    }

    #[test]
    fn refusals_keep_the_ids_concerned() {
        let error = ApiError::from(CommandError::AccountNotFound(AccountId(0x1f)));
        assert_eq!((error.code, error.ids), (Code::AccountNotFound, vec![("account", "000000000000001f".to_owned())]));
        let quota = CommandError::QuotaExceeded { what: "namespaces".into(), max: 25, hint: "delete some".into() };
        let error = ApiError::from(quota);
        assert_eq!(
            (error.code, error.detail.as_str()),
            (Code::QuotaExceeded, "namespaces is limited to 25; delete some")
        );
        let what = "the number of holds in a namespace";
        let quota = CommandError::QuotaExceeded { what: what.into(), max: 7, hint: "release some".into() };
        let ids = vec![("limit", "max_holds_per_namespace".to_owned()), ("max", "7".to_owned())];
        assert_eq!(ApiError::from(quota).ids, ids, "the limit is called as its field is");
    }

    #[test]
    fn refusals_about_sessions_requests_and_history_have_codes_of_their_own() {
        let cases = [
            (CommandError::SessionNotFound("se_1".into()), Code::SessionNotFound, ("session_id", "se_1")),
            (CommandError::Superseded { epoch: 9 }, Code::Superseded, ("epoch", "9")),
            (CommandError::RequestIdTaken("r".into()), Code::InvalidArgument, ("field", "request_id")),
            (CommandError::RevisionCompacted { oldest: 7 }, Code::RevisionCompacted, ("oldest", "7")),
        ];
        for (refusal, code, (name, value)) in cases {
            let error = ApiError::from(refusal);
            assert_eq!((error.code, error.ids), (code, vec![(name, value.to_owned())]));
        }
    }

    #[test]
    fn only_what_was_certainly_not_done_is_unavailable() {
        let (shard, reason) = ("locks_00".to_owned(), "no leader".to_owned());
        let error = ApiError::from(RouteError::Unavailable { shard: shard.clone(), reason: reason.clone() });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::Unavailable, Some(1)));
        assert!(error.code.has_no_side_effects());
        let error = ApiError::from(RouteError::OutcomeUnknown { shard, reason });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::DeadlineExceeded, None));
        assert!(!error.code.has_no_side_effects());
    }
}
