//! Drives the console in a real browser, beside a running service.
//!
//! Invariant: no browser and no profile of one outlives the tests that made it. Where there is no Chromium the tests say
//! so and are skipped.
//!
//! Deliberately unknown here: how the console is made. What the tests see is what people see.

mod chromium;
mod env;
mod page;

pub use env::{Tenant, create_tenant, operator_token};
pub use page::{Page, Screen};
