//! Every error that a caller can see.
//!
//! `UNAVAILABLE` means that the call changed nothing; `DEADLINE_EXCEEDED` that it may have taken effect.

use std::time::Duration;

use holdfast_types::CommandError;

use crate::Code;

/// How long a caller should wait before it retries when the service is unavailable.
const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);
/// The same when a node has no memory for new items.
const RETRY_AFTER_FULL: Duration = Duration::from_secs(5);

/// The result of an operation.
pub type ApiResult<T> = Result<T, ApiError>;

/// An error as the caller sees it. It reveals nothing about other tenants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", code.name())]
pub struct ApiError {
    /// The kind.
    pub code: Code,
    /// The details, for people.
    pub detail: String,
    /// The ids concerned, by their public names: `field`, `namespace`, `account`, `key_id`, `limit`, …
    pub ids: Vec<(&'static str, String)>,
    /// When a retry makes sense, for codes that say so.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Returns an error of this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = (code == Code::Unavailable).then_some(RETRY_AFTER_UNAVAILABLE);
        Self { code, detail: detail.into(), ids: Vec::new(), retry_after }
    }

    /// A bad field; the detail should name it too, since some frontends show only the detail.
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

    /// The service did not reply to the call in time.
    pub fn deadline_exceeded() -> Self {
        Self::new(Code::DeadlineExceeded, "the call did not end within its deadline; it may have been done")
    }

    /// A fault of the service; `detail` must contain nothing that a caller should not see.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Code::Internal, detail)
    }

    /// Too many requests a second; the caller may retry after `wait`.
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
            // The service draws another id before a caller could see this.
            CommandError::IdTaken | CommandError::Busy(_) => Self::new(Code::Unavailable, detail),
            CommandError::Full(_) => {
                Self { retry_after: Some(RETRY_AFTER_FULL), ..Self::new(Code::Unavailable, detail) }
            }
            // Only change feeds and nodes send these queries; a caller would see such an error only through a fault.
            CommandError::ChangesCompacted { .. } | CommandError::NotWaiting => Self::internal(detail),
            CommandError::Malformed(_) => Self::internal(detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::AccountId;

    use super::*;

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
}
