//! The first start of a cluster: its secrets, and an account to try it with.
//!
//! Invariant: what exists is never changed. Every step can be repeated, so a first start that was interrupted is taken
//! up where it ended; one that is complete is never taken up again, also when its account was deleted since.
//!
//! Deliberately unknown here: where the processes run, and how the service is called ([`FirstStart`]).

mod demo;
mod error;
mod secrets;

pub use demo::{DEMO_EMAIL, DEMO_KEY_DESCRIPTION, DEMO_NAME, DEMO_NAMESPACE, FirstStart, IDEMPOTENCY_KEY};
pub use error::BootstrapError;
pub use secrets::Secrets;
