//! Locks of the client against a running service.

#[path = "../support/mod.rs"]
mod support;

mod cancelling;
mod connections;
mod excluding;
mod kinds;
mod losing;
mod pausing;
mod recorder;
mod service_view;
