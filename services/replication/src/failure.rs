//! Failures of a replica, and its shutdown.

use std::fmt;

use holdfast_supervise::{TaskFailure, TaskSet};
use openraft::async_runtime::watch::WatchReceiver;

use crate::group::Group;
use crate::state_machine::FailedEntry;

/// Why a replica can't go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The state machine failed in the middle of an entry.
    StateMachine(FailedEntry),
    /// A task that the replica needs ended or panicked.
    Task(TaskFailure),
    /// openraft has stopped, for this reason.
    Raft(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateMachine(FailedEntry { term, index, failure }) => {
                write!(f, "entry {index} of term {term} can't be applied: {failure}")
            }
            Self::Task(failure) => failure.fmt(f),
            Self::Raft(reason) => f.write_str(reason),
        }
    }
}

impl FailedEntry {
    /// Returns true if both failures are at the same step of the same entry.
    pub fn is_same_step(&self, other: &Self) -> bool {
        let place = |broken: &Self| (broken.term, broken.index, broken.failure.step);
        place(self) == place(other)
    }
}

impl Group {
    /// Returns the reason why the replica can't continue, if any, including that it was stopped.
    pub fn failure(&self) -> Option<Failure> {
        if let Some(broken) = self.adapter().failed_entry.borrow().as_ref() {
            return Some(Failure::StateMachine(broken.clone()));
        }
        if let Some(failure) = self.tasks().failed().borrow().as_ref() {
            return Some(Failure::Task(failure.clone()));
        }
        if let Some(reason) = self.adapter().queues.failed() {
            return Some(Failure::Raft(reason));
        }
        let metrics = self.raft().metrics();
        let fatal = metrics.borrow_watched().running_state.clone().err()?;
        Some(Failure::Raft(fatal.to_string()))
    }

    /// Waits until the replica fails or is stopped.
    pub async fn failed(&self) -> Failure {
        let (mut broken, mut tasks) = (self.adapter().failed_entry.clone(), self.tasks().failed());
        let (mut metrics, mut applied) = (self.raft().server_metrics(), self.adapter().queues.progress());
        loop {
            if let Some(failure) = self.failure() {
                return failure;
            }
            let runs = tokio::select! {
                // The channel closes with the adapter: openraft then reports the cause.
                Ok(()) = broken.changed() => true,
                changed = tasks.changed() => changed.is_ok(),
                Ok(()) = applied.changed() => true,
                changed = metrics.changed() => changed.is_ok(),
            };
            if !runs {
                return self.failure().unwrap_or_else(|| Failure::Raft("openraft has panicked".into()));
            }
        }
    }

    /// Returns the tasks of the replica; they end with it.
    pub fn tasks(&self) -> &TaskSet {
        &self.inner.tasks
    }

    /// Stops the replica and all its tasks. In-flight commands fail with "outcome unknown". After this returns, the
    /// replica applies and writes nothing, so it can be restarted from its store.
    pub async fn shutdown(&self) {
        // First, it stops leading.
        self.tasks().shutdown().await;
        if let Err(error) = self.raft().shutdown().await {
            tracing::warn!(group = self.id(), replica = self.replica(), %error, "replica stopped with an error");
        }
        self.adapter().stop().await;
        // A failed or closed store writes nothing more.
        let _ = self.store().flush().await;
    }
}
