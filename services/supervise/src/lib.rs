//! Long-lived tasks that never stop without somebody noticing.
//!
//! Purpose: a [`TaskSet`] runs the tasks of one owner (a replica, a leadership, a process), notices when one of them ends
//! or panics, says so in the log and in `holdfast_task_failures_total`, and either starts it again or tells the owner that
//! it has failed. [`spawn_temporary`] runs what belongs to one call or connection, and [`catch_panic`] what may panic under a lock.
//!
//! Invariants:
//! - No task of a set outlives the set.
//! - A task that ended or panicked outside of a shutdown is counted, logged, and shown by [`TaskSet::unhealthy_reason`].
//! - A task that fails again and again is started again after 1 s, 2 s, 4 s, and so on, at most 60 s.
//!
//! Deliberately unknown here: what the tasks do.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod panics;
mod tasks;
mod temporary;

pub use panics::{CaughtPanic, catch_panic};
pub use tasks::{TaskFailure, TaskOwner, TaskSet, restart_delays};
pub use temporary::spawn_temporary;
