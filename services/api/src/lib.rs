//! The public API without a transport: requests, responses, and every error.
//!
//! Purpose: the types of requests and responses, the validation of requests, the public codes, page tokens, and the
//! conversions to and from the messages of `holdfast.v1`. REST, gRPC and the compatible frontends share them.
//!
//! Invariant: an invalid request is rejected with `INVALID_ARGUMENT`, which names the field. Each code has one HTTP
//! status and one gRPC status.
//!
//! Deliberately unknown here: sockets, HTTP, gRPC servers, routing, authentication, and the execution of operations.

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
pub use error::{ApiError, ApiResult, PATH_MEMBER};
pub use instant::{Timestamp, parse_instant, wall_now};
pub use types::*;
