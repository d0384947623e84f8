//! The contract of contention and elections, kept with owners of this process and with owners of a running service,
//! pushed and polled.

/// What tests of the client use, too.
#[path = "../../../rust/tests/support/mod.rs"]
mod support;

mod elections;
mod kit;
mod lifecycle;
mod listeners;
mod locker;
mod loss;
mod many_contenders;
mod periods;
mod schedules;
mod service_only;
mod values;
