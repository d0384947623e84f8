//! Requests to release what somebody holds, as clients ask for it, what they are answered, and what is shown of them.

use holdfast_api::{AskLockAnswer, AskPoolAnswer, AskSemaphoreAnswer, ReleaseRequestInfo};
use holdfast_core::{Kind, Path, ReleaseRequest};

use crate::history::ObservedLock;
use crate::things::{ObservedPool, ObservedSemaphore};

/// What the reason of a request begins with; the number of its call follows.
const REASON: &str = "call ";

/// A request to release.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AskOp {
    /// A lock, a semaphore or a pool.
    pub(crate) kind: Kind,
    pub(crate) path: Path,
    /// Only who has that member of a pool.
    pub(crate) member: Option<String>,
    pub(crate) within_ms: Option<u64>,
    /// Whether what is still held then ends.
    pub(crate) force: bool,
}

impl AskOp {
    /// Returns whether it may concern a hold of that lock.
    pub(crate) fn concerns_lock(&self, path: &Path) -> bool {
        let is_on_the_way = || path.0.starts_with(&self.path.0) || self.path.0.starts_with(&path.0);
        self.kind == Kind::Lock && (self.path == *path || (!self.force && is_on_the_way()))
    }

    /// Returns the time as its hold shows it.
    pub(crate) fn shown_within_ms(&self) -> Option<u64> {
        self.within_ms.or(self.force.then_some(0))
    }
}

/// The answer to it: how many are asked, and what they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskAnswer {
    pub(crate) asked: u64,
    pub(crate) seen: SeenThing,
}

/// What somebody is asked to release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SeenThing {
    Lock(ObservedLock),
    Semaphore(ObservedSemaphore),
    Pool(ObservedPool),
}

/// The latest request to release a hold, as its view shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedAsk {
    pub(crate) reason: String,
    pub(crate) within_ms: Option<u64>,
    pub(crate) force: bool,
}

/// Returns the reason by which a call names itself in its request.
pub(crate) fn reason_of(call: usize) -> String {
    format!("{REASON}{call}")
}

/// Returns the call that a request names.
pub(crate) fn call_of_reason(reason: &str) -> Option<usize> {
    reason.strip_prefix(REASON)?.parse().ok()
}

impl From<ReleaseRequestInfo> for ObservedAsk {
    fn from(request: ReleaseRequestInfo) -> Self {
        let ReleaseRequestInfo { reason, within_ms, force, .. } = request;
        Self { reason, within_ms, force }
    }
}

impl From<&ReleaseRequest> for ObservedAsk {
    fn from(request: &ReleaseRequest) -> Self {
        Self { reason: request.reason.clone(), within_ms: request.within_ms, force: request.force }
    }
}

impl From<AskLockAnswer> for AskAnswer {
    fn from(answer: AskLockAnswer) -> Self {
        Self { asked: answer.asked, seen: SeenThing::Lock(answer.lock.into()) }
    }
}

impl From<AskSemaphoreAnswer> for AskAnswer {
    fn from(answer: AskSemaphoreAnswer) -> Self {
        Self { asked: answer.asked, seen: SeenThing::Semaphore(answer.semaphore.into()) }
    }
}

impl From<AskPoolAnswer> for AskAnswer {
    fn from(answer: AskPoolAnswer) -> Self {
        Self { asked: answer.asked, seen: SeenThing::Pool(answer.pool.into()) }
    }
}
