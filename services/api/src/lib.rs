//! The public API without a transport: what callers ask, what they are answered, and every error.
//!
//! Purpose: the types of requests and answers, what requests may contain, the public codes, page tokens, and the
//! conversions to and from the messages of `holdfast.v1`. REST, gRPC and the compatible doors share them.
//!
//! Invariant: a refusal of a request is `INVALID_ARGUMENT` and names the field. Each code has one HTTP status and one
//! gRPC status.
//!
//! Deliberately unknown here: sockets, HTTP, gRPC servers, routing, who calls, and how an operation is carried out.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod code;
mod error;
mod instant;
pub mod page_token;
pub mod session_message;
mod types;
pub mod v1;
pub mod validate;

pub use code::Code;
pub use error::{ApiError, ApiResult};
pub use instant::{Timestamp, parse_instant, wall_now};
pub use types::*;
