//! REST calls that fail, and whether they may have taken effect.

use std::error::Error;
use std::fmt;

use serde_json::Value;

/// What is known of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It took no effect.
    NotDone,
    /// It may have taken effect, or may still do so.
    Unknown,
}

/// A call that failed.
#[derive(Clone, Debug)]
pub struct CallError {
    /// Whether it may have taken effect.
    pub outcome: CallOutcome,
    /// The HTTP status; 0 without an answer.
    pub status: u16,
    /// The public code; empty without an answer.
    pub code: String,
    /// For people.
    pub detail: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.detail)
    }
}

impl Error for CallError {}

impl CallError {
    /// A call without an answer.
    pub(crate) fn unanswered(outcome: CallOutcome, detail: String) -> Self {
        Self { outcome, status: 0, code: String::new(), detail }
    }

    /// A call whose connection failed.
    pub(crate) fn from_transport(error: &hyper_util::client::legacy::Error) -> Self {
        let outcome = if error.is_connect() { CallOutcome::NotDone } else { CallOutcome::Unknown };
        let mut detail = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            detail = format!("{detail}: {inner}");
            cause = inner.source();
        }
        Self::unanswered(outcome, detail)
    }

    /// An answer that is an error.
    pub(crate) fn from_answer(status: u16, text: &str) -> Self {
        let problem: Value = serde_json::from_str(text).unwrap_or_default();
        let field = |name: &str| problem[name].as_str().unwrap_or(text).to_owned();
        // 503 promises that the call took no effect, 4xx reject it. All others promise nothing.
        let outcome =
            if status == 503 || (400..500).contains(&status) { CallOutcome::NotDone } else { CallOutcome::Unknown };
        Self { outcome, status, code: field("code"), detail: field("detail") }
    }

    /// A good answer that can't be read.
    pub(crate) fn unreadable(status: u16, detail: String) -> Self {
        Self { outcome: CallOutcome::Unknown, status, code: String::new(), detail }
    }
}
