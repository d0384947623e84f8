//! Supervision of long-lived tasks: no task stops unnoticed.
//!
//! Purpose: a [`TaskSet`] runs the tasks of one owner (a replica, a leadership, a process) and detects when one of them
//! ends or panics. It reports the failure in the log and in `holdfast_task_failures_total`, and either restarts the
//! task or notifies the owner. [`spawn_temporary`] and [`survive_panic`] run the work of one call or connection, and
//! [`catch_panic`] work that may panic under a lock. The tasks of a [`SchedulingGroup`] take turns.
//!
//! Invariants:
//! - No task of a set outlives the set.
//! - A task that ended or panicked outside of a shutdown is counted, logged, and reported by
//!   [`TaskSet::unhealthy_reason`], or if it belongs to no part of the process by [`failing_process_task`] or, if no
//!   call needs it, by [`failing_background_task`].
//! - A repeatedly failing task is restarted after 1 s, 2 s, 4 s, and so on, at most 60 s.
//!
//! Deliberately unknown here: what the tasks do.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod group_registry;
mod panics;
mod scheduling_group;
mod tasks;
mod temporary;
mod yield_to_ready;

pub use group_registry::GroupRegistry;
pub use panics::{CaughtPanic, catch_panic};
pub use scheduling_group::{SchedulingGroup, SharedGroup};
pub use tasks::{TaskFailure, TaskOwner, TaskSet, failing_background_task, failing_process_task, restart_delays};
pub use temporary::{spawn_alongside, spawn_temporary, survive_panic};
pub use yield_to_ready::YieldToReady;
