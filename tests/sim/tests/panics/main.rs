//! Panics in the middle of an entry and in long-lived tasks: what fails is said, started again or left out, and nothing
//! else stops. Those in tasks need an armed build; `make plants` makes one.

mod state;
#[cfg(feature = "plant")]
mod tasks;
mod world;
