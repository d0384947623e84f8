//! The table of all public codes, with their meaning over REST and gRPC.

/// The public codes. Each has one HTTP status and one gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The request is invalid; the detail names the field.
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
    /// No such semaphore or latch in the namespace.
    PrimitiveNotFound,
    /// No such route.
    NotFound,
    /// The route exists, with other methods.
    MethodNotAllowed,
    /// The name is in use.
    AlreadyExists,
    /// A limit is reached; existing items stay.
    QuotaExceeded,
    /// A newer connection took the session over.
    Superseded,
    /// The requested history is no longer kept.
    RevisionCompacted,
    /// The body is too large.
    PayloadTooLarge,
    /// The type of the body is not supported.
    UnsupportedMediaType,
    /// Too many requests a second.
    RateLimited,
    /// A fault of the service.
    Internal,
    /// The service is unavailable; the call changed nothing.
    Unavailable,
    /// The deadline ended first; the call may have taken effect.
    DeadlineExceeded,
}

impl Code {
    /// Every code, for tables and tests.
    pub const ALL: [Self; 20] = [
        Self::InvalidArgument,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::AccountNotFound,
        Self::NamespaceNotFound,
        Self::SessionNotFound,
        Self::ApiKeyNotFound,
        Self::PrimitiveNotFound,
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

    /// Returns the code with that public name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
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

    /// Returns whether the same request may succeed later.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::RateLimited | Self::Unavailable | Self::DeadlineExceeded)
    }

    /// Returns whether it is certain that the call changed nothing.
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
            Self::PrimitiveNotFound => ("PRIMITIVE_NOT_FOUND", 404, Grpc::NotFound, "No such semaphore or latch"),
            Self::NotFound => ("NOT_FOUND", 404, Grpc::NotFound, "No such route"),
            Self::MethodNotAllowed => ("METHOD_NOT_ALLOWED", 405, Grpc::Unimplemented, "Method not allowed"),
            Self::AlreadyExists => ("ALREADY_EXISTS", 409, Grpc::AlreadyExists, "It exists already"),
            Self::QuotaExceeded => ("QUOTA_EXCEEDED", 409, Grpc::ResourceExhausted, "A limit is reached"),
            Self::Superseded => ("SUPERSEDED", 409, Grpc::Aborted, "Taken over by a newer connection"),
            Self::RevisionCompacted => ("REVISION_COMPACTED", 410, Grpc::OutOfRange, "No longer kept"),
            Self::PayloadTooLarge => ("PAYLOAD_TOO_LARGE", 413, Grpc::ResourceExhausted, "The body is too large"),
            Self::UnsupportedMediaType => {
                ("UNSUPPORTED_MEDIA_TYPE", 415, Grpc::InvalidArgument, "Unsupported type of the body")
            }
            Self::RateLimited => ("RATE_LIMITED", 429, Grpc::ResourceExhausted, "Too many requests"),
            Self::Internal => ("INTERNAL", 500, Grpc::Internal, "A fault of the service"),
            Self::Unavailable => ("UNAVAILABLE", 503, Grpc::Unavailable, "Not available now; nothing was done"),
            Self::DeadlineExceeded => {
                ("DEADLINE_EXCEEDED", 504, Grpc::DeadlineExceeded, "Out of time; the call may have been executed")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

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
            ("PRIMITIVE_NOT_FOUND", 404),
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
}
