//! Errors of calls, each with its remedy.

use serde_json::Value;

use super::BaseUrl;

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The service responded with an error of its API.
    #[error("{code}: {detail}{}", remedy(code))]
    Problem {
        /// The public code.
        code: String,
        /// The details, for people.
        detail: String,
        /// The whole response.
        body: Value,
    },
    /// The response does not come from Holdfast.
    #[error("{url} answered with status {status} and not as Holdfast does: is --url the address of a gateway?")]
    NotHoldfast {
        /// The address called.
        url: BaseUrl,
        /// The HTTP status.
        status: u16,
    },
    /// No response arrived.
    #[error("{}", no_answer(url, reason))]
    Unreachable {
        /// The address called.
        url: BaseUrl,
        /// The cause, which tells whether a connection was made. It is part of the message.
        reason: reqwest::Error,
    },
}

impl CallError {
    /// Returns whether it is a problem with that code.
    pub fn has_code(&self, wanted: &str) -> bool {
        matches!(self, Self::Problem { code, .. } if code == wanted)
    }

    /// Returns whether a retry may succeed. Every call here is idempotent, so an unknown outcome allows a retry too.
    pub(super) fn is_retryable(&self) -> bool {
        ["UNAVAILABLE", "DEADLINE_EXCEEDED", "RATE_LIMITED"].iter().any(|code| self.has_code(code))
    }
}

/// Returns the remedy for a problem, on a line of its own; empty if the detail contains it.
fn remedy(code: &str) -> &'static str {
    match code {
        "UNAUTHENTICATED" => {
            "\n  pass the operator token of the cluster at --url by HOLDFAST_OPERATOR_TOKEN; its first start wrote it to \
             operator.token in its data directory"
        }
        "PERMISSION_DENIED" => "\n  is the account suspended? GET /v1/accounts/{id} with the operator token shows it",
        "ACCOUNT_NOT_FOUND" => "\n  GET /v1/accounts lists all accounts; `dev seed-accounts` makes some for trials",
        "QUOTA_EXCEEDED" => "\n  delete what is no longer used, or raise the limit with PATCH /v1/accounts/{id}",
        "UNAVAILABLE" => {
            "\n  nothing was done; a shard has no leader or its nodes are down: see the log of the cluster"
        }
        "DEADLINE_EXCEEDED" => "\n  it may have been executed; running this again is safe",
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
        return format!("{url} accepted the call and did not answer in time; it may have been executed");
    }
    format!("the call to {url} was interrupted, it may have been executed: {}", root_cause(error))
}

/// Returns the innermost cause, which names the actual failure.
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
