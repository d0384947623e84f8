//! The contract of contention and elections, kept with owners of this process and with owners of a running service,
//! pushed and polled.

#[path = "../support/mod.rs"]
mod support;

mod elections;
mod kit;
mod listeners;
mod lives;
mod lockers;
mod losing;
mod many;
mod schedules;
mod service_only;
mod values;
