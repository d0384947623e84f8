//! What the command-line programs `holdfast-admin` and `dev` share: REST calls with the operator token, flags,
//! and output.
//!
//! Invariant: results go to standard output and everything else to standard error; a call is repeated only if repeating
//! it is safe.
//!
//! Deliberately unknown here: nodes, shards' data, and what the programs do with the results.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod account_id;
pub mod api;
mod args;
pub mod output;
pub mod status;

pub use account_id::{AccountId, MalformedAccountId};
pub use args::{ClusterFiles, ServiceArgs, assert_flags_documented};
