//! Long-lived tasks that never stop without somebody noticing.
//!
//! Purpose: a [`TaskSet`] runs the tasks of one owner (a replica, a leadership, a process), notices when one of them ends
//! or panics, says so in the log and in `holdfast_task_failures_total`, and either starts it again or tells the owner that
//! it has failed. [`brief`] runs what belongs to one call or connection, and [`catch`] what may panic under a lock.
//!
//! Invariants:
//! - No task of a set outlives the set.
//! - A task that ended or panicked outside of a shutdown is counted, logged, and shown by [`TaskSet::trouble`].
//! - A task that fails again and again is started again after 1 s, 2 s, 4 s, and so on, at most 60 s.
//!
//! Deliberately unknown here: what the tasks do.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod brief;
mod caught;
mod tasks;

pub use brief::brief;
pub use caught::{Panicked, catch};
pub use tasks::{Owner, TaskFailure, TaskSet, restarts};
