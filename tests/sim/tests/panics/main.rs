//! Panics in the middle of an entry and in long-lived tasks: a failure is reported, the task restarted or the replica
//! stopped, and nothing else stops. Panics of tasks need a build with mutations; `make panics` runs them in one.

mod cluster;
#[cfg(feature = "mutations")]
mod gateway;
mod reports;
mod state_machine;
#[cfg(feature = "mutations")]
mod tasks;

/// Injected panics and their counters belong to the process: one cluster at a time.
static EXCLUSIVE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
