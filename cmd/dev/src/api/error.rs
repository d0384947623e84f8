//! Calls that fail, with what to do about it.

use serde_json::Value;

use super::BaseUrl;

/// A call that brought no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The service answered with an error of the contract.
    #[error("{code}: {detail}{}", remedy(code))]
    Problem {
        /// The public code.
        code: String,
        /// What exactly, for people.
        detail: String,
        /// The whole answer.
        body: Value,
    },
    /// Something answered that is not the service.
    #[error("{url} answered with status {status} and not as Holdfast does: is --url the address of a gateway?")]
    NotHoldfast {
        /// What was called.
        url: BaseUrl,
        /// The HTTP status.
        status: u16,
    },
    /// No answer came.
    #[error("{}", no_answer(url, reason))]
    Unreachable {
        /// What was called.
        url: BaseUrl,
        /// Why, and whether a connection was made at all. It is part of the message.
        reason: reqwest::Error,
    },
}

impl CallError {
    /// Whether it is that problem.
    pub(crate) fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Problem { code, .. } if code == wanted)
    }

    /// Whether the same call may succeed later. All calls here may be repeated, so that it is enough that the outcome
    /// is unknown.
    pub(crate) fn is_retryable(&self) -> bool {
        ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RATE_LIMITED"].iter().any(|code| self.has_code(code))
    }
}

/// What to do about a problem, on a line of its own; nothing where the detail says it.
fn remedy(code: &str) -> &'static str {
    match code {
        "UNAUTHENTICATED" => {
            "\n  pass the operator token of the cluster at --url by HOLDFAST_OPERATOR_TOKEN; its first start wrote it to \
             operator.token in its data directory"
        }
        "PERMISSION_DENIED" => "\n  is the account suspended? GET /v1/accounts/{id} with the operator token shows it",
        "ACCOUNT_NOT_FOUND" => "\n  make accounts with `dev seed-accounts`; it prints their ids",
        "QUOTA_EXCEEDED" => "\n  delete what is no longer used, or raise the limit with PATCH /v1/accounts/{id}",
        "UNAVAILABLE" => {
            "\n  nothing was done; a shard has no leader or its nodes are down: see the log of the cluster"
        }
        "DEADLINE_EXCEEDED" => "\n  it may have been done; running this again is safe",
        "INTERNAL" => "\n  see the log of the gateway",
        _ => "",
    }
}

fn no_answer(url: &BaseUrl, error: &reqwest::Error) -> String {
    if error.is_connect() {
        let start =
            "start a cluster with `dev cluster up` (or one process with `make run`), or say with --url where it is";
        return format!("nothing answers at {url}: {}\n  {start}", root_cause(error));
    }
    if error.is_timeout() {
        return format!("{url} accepted the call and did not answer in time; it may have been done");
    }
    format!("the call to {url} broke off, it may have been done: {}", root_cause(error))
}

/// The first cause, which says what happened; those above it say that something did.
fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(code: &str) -> CallError {
        CallError::Problem { code: code.to_owned(), detail: "what happened".to_owned(), body: Value::Null }
    }

    #[test]
    fn a_problem_is_shown_with_its_code_and_what_to_do() {
        let shown = problem("UNAUTHENTICATED").to_string();
        assert!(shown.starts_with("UNAUTHENTICATED: what happened\n") && shown.contains("operator token"), "{shown}");
        assert_eq!(problem("INVALID_ARGUMENT").to_string(), "INVALID_ARGUMENT: what happened");
    }

    #[test]
    fn only_what_may_succeed_later_is_tried_again() {
        assert!(problem("UNAVAILABLE").is_retryable());
        assert!(!problem("ALREADY_EXISTS").is_retryable());
    }
}
