//! Drives the console in a real browser, beside a running service.
//!
//! Invariant: no browser and no profile of one outlives the tests that made it. Where there is no Chromium the tests say
//! so and are skipped.
//!
//! Deliberately unknown here: how the console is made. What the tests see is what people see.

mod chromium;
mod page;
mod world;

pub use page::{Page, Screen};
pub use world::{Tenant, operator_token, tenant};
