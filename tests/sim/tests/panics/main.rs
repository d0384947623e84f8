//! Panics in the middle of an entry and in long-lived tasks: what fails is said, started again or left out, and nothing
//! else stops. Those in tasks need an armed build; `make mutations` makes one.

mod cluster;
mod state_machine;
#[cfg(feature = "mutations")]
mod tasks;

/// What is armed, and what is counted, is that of the process: one cluster at a time.
static EXCLUSIVE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
