//! Every error that a caller can see.
//!
//! `UNAVAILABLE` means that the call changed nothing; `DEADLINE_EXCEEDED` that it may have taken effect.

use std::time::Duration;

use holdfast_types::limit::{self, Limit, Reached};
use holdfast_types::{CommandError, Path};

use crate::Code;

/// How long a caller should wait before it retries when the service is unavailable, or the account calls too much.
const RETRY_AFTER_UNAVAILABLE: Duration = Duration::from_secs(1);
/// The same when a node has no memory for new items.
const RETRY_AFTER_FULL: Duration = Duration::from_secs(5);

/// The result of an operation.
pub type ApiResult<T> = Result<T, ApiError>;

/// The id of which an error has one for each segment of a path.
pub const PATH_MEMBER: &str = "path";

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
        let is_temporary = matches!(code, Code::Unavailable | Code::RateLimited);
        let retry_after = is_temporary.then_some(RETRY_AFTER_UNAVAILABLE);
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
        Self::new(Code::DeadlineExceeded, "the call did not end within its deadline; it may have been executed")
    }

    /// A fault of the service; `detail` must contain nothing that a caller should not see.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Code::Internal, detail)
    }

    /// A limit is reached that now allows `max`. `hint` is the remedy.
    pub fn limited(limit: &Limit, max: u64, hint: &str) -> Self {
        Self::limited_to(limit, limit.what.first().copied().unwrap_or(limit.name), max, hint)
    }

    /// As [`Self::limited`], for one of several things that the limit is about.
    pub fn limited_to(limit: &Limit, what: &str, max: u64, hint: &str) -> Self {
        let code = Code::from_name(limit.code).unwrap_or(Code::QuotaExceeded);
        Self::new(code, format!("{what} is limited to {max}; {hint}")).at_limit(limit, max)
    }

    /// Names the limit that is reached, and what it allows.
    #[must_use]
    pub fn at_limit(self, limit: &Limit, max: u64) -> Self {
        self.with("limit", limit.name).with("max", max.to_string())
    }

    /// As [`Self::at_limit`], if there is one.
    fn at_reached(self, reached: Option<Reached>) -> Self {
        match reached {
            Some(Reached { limit, max }) => self.at_limit(limit, max),
            None => self,
        }
    }

    /// Returns the limit that is reached, if the error is about one.
    pub fn limit(&self) -> Option<&'static Limit> {
        self.ids.iter().find(|(name, _)| *name == "limit").and_then(|(_, limit)| limit::find(limit))
    }

    /// Too many requests a second; the caller may retry after `wait`.
    pub fn rate_limited(max: u32, wait: Duration) -> Self {
        Self::limited(&limit::REQUEST_RATE, max.into(), "send them more slowly").retry_in(wait)
    }

    /// Sets when a retry makes sense.
    #[must_use]
    pub fn retry_in(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds an id concerned.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.ids.push((name, value.into()));
        self
    }

    /// Names a path: an id for each of its segments.
    fn with_path(self, path: Path) -> Self {
        path.0.into_iter().fold(self, |error, segment| error.with(PATH_MEMBER, segment))
    }

    /// `Retry-After` in whole seconds, at least 1.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).map(|s| s.max(1))
    }
}

impl From<CommandError> for ApiError {
    fn from(refusal: CommandError) -> Self {
        let (detail, reached) = (refusal.to_string(), refusal.reached());
        let limit = reached.map(|reached| reached.limit);
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
            CommandError::PrimitiveNotFound { kind, path } => {
                Self::new(Code::PrimitiveNotFound, detail).with("kind", kind.name()).with_path(path)
            }
            CommandError::PrimitiveTaken { kind, path } => {
                Self::new(Code::AlreadyExists, detail).with("kind", kind.name()).with_path(path)
            }
            // Its text may begin with the field.
            CommandError::InvalidArgument(text) => match text.split_once(':') {
                Some((field, _)) if !field.contains(' ') => Self::invalid(field, detail),
                _ => Self::new(Code::InvalidArgument, detail),
            },
            CommandError::QuotaExceeded { what, max, .. } => {
                let limit = limit.map_or(what, |limit| limit.name.to_owned());
                Self::new(Code::QuotaExceeded, detail).with("limit", limit).with("max", max.to_string())
            }
            CommandError::RateLimited { what, max, wait_ms } => {
                let limit = limit.map_or(what, |limit| limit.name.to_owned());
                let error = Self::new(Code::RateLimited, detail).retry_in(Duration::from_millis(wait_ms));
                error.with("limit", limit).with("max", max.to_string())
            }
            // The service draws another id before a caller could see this.
            CommandError::IdTaken
            | CommandError::Busy(_)
            | CommandError::NotProposed(_)
            | CommandError::Unreported { .. }
            | CommandError::Quarantined => Self::new(Code::Unavailable, detail).at_reached(reached),
            CommandError::Full(_) => {
                Self::new(Code::Unavailable, detail).retry_in(RETRY_AFTER_FULL).at_reached(reached)
            }
            // Only change feeds and nodes send these queries; a caller would see such an error only through a fault.
            CommandError::ChangesCompacted { .. } | CommandError::NotWaiting => Self::internal(detail),
            CommandError::Malformed(_) => Self::internal(detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{AccountId, Kind, Path};

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
    fn a_rate_that_a_leader_counts_is_named_with_when_to_try_again() {
        let what = limit::KEY_CHANGES.what[0].to_owned();
        let error = ApiError::from(CommandError::RateLimited { what, max: 60, wait_ms: 1_500 });
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(2)));
        assert_eq!(error.ids, [("limit", "max_key_changes".to_owned()), ("max", "60".to_owned())]);
    }

    #[test]
    fn a_place_without_room_is_unavailable_and_names_what_is_full() {
        let reached = |limit| Reached { limit, max: 9 }.to_string();
        let cases = [
            (CommandError::Full(reached(&limit::SHARD_BYTES)), "shard_bytes", 5),
            (CommandError::Full(reached(&limit::MEMORY)), "node_memory_bytes", 5),
            (CommandError::Busy(reached(&limit::PENDING_CHANGES)), "pending_changes", 1),
            (CommandError::NotProposed(reached(&limit::COMMANDS_OF_SHARD)), "queued_commands_of_shard", 1),
        ];
        for (refusal, limit, seconds) in cases {
            let error = ApiError::from(refusal);
            assert_eq!((error.code, error.retry_after_seconds()), (Code::Unavailable, Some(seconds)), "{limit}");
            assert_eq!(error.ids, [("limit", limit.to_owned()), ("max", "9".to_owned())]);
        }
        assert!(ApiError::from(CommandError::Busy("a job is not done".into())).ids.is_empty());
    }

    #[test]
    fn each_limit_has_a_code_and_a_refusal_names_it() {
        for limit in limit::ALL {
            assert!(Code::from_name(limit.code).is_some(), "{}: {}", limit.name, limit.code);
        }
        let error = ApiError::limited(&limit::OPEN_CALLS, 3, "wait for answers");
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(
            error.detail,
            "the number of open calls of an account at one gateway is limited to 3; wait for answers"
        );
        assert_eq!(error.ids, [("limit", "max_open_calls".to_owned()), ("max", "3".to_owned())]);
        assert_eq!(error.limit(), Some(&limit::OPEN_CALLS));
        assert_eq!(ApiError::invalid("limit", "limit: must be a number").limit(), None);
        let error = ApiError::rate_limited(5, Duration::from_millis(1_200));
        assert_eq!((error.ids.len(), error.retry_after_seconds()), (2, Some(2)));
    }

    #[test]
    fn refusals_about_sessions_requests_and_history_have_codes_of_their_own() {
        let cases = [
            (CommandError::SessionNotFound("se_1".into()), Code::SessionNotFound, ("session_id", "se_1")),
            (CommandError::Superseded { epoch: 9 }, Code::Superseded, ("epoch", "9")),
            (CommandError::RequestIdTaken("r".into()), Code::InvalidArgument, ("field", "request_id")),
            (CommandError::RevisionCompacted { oldest: 7 }, Code::RevisionCompacted, ("oldest", "7")),
            (CommandError::InvalidArgument("total: is too low".into()), Code::InvalidArgument, ("field", "total")),
        ];
        for (refusal, code, (name, value)) in cases {
            let error = ApiError::from(refusal);
            assert_eq!((error.code, error.ids), (code, vec![(name, value.to_owned())]));
        }
    }

    #[test]
    fn refusals_about_a_thing_name_its_kind_and_path() {
        let path = Path(vec!["a".into(), "b".into()]);
        let missing = ApiError::from(CommandError::PrimitiveNotFound { kind: Kind::Latch, path: path.clone() });
        let taken = ApiError::from(CommandError::PrimitiveTaken { kind: Kind::Latch, path });
        assert_eq!((missing.code, taken.code), (Code::PrimitiveNotFound, Code::AlreadyExists));
        let ids = vec![("kind", "latch".to_owned()), ("path", "a".to_owned()), ("path", "b".to_owned())];
        assert_eq!((&missing.ids, &taken.ids), (&ids, &ids));
    }
}
