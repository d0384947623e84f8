//! Conversions between the types of this crate and the messages of `holdfast.v1`.

pub mod asks;
pub mod audit;
pub mod barriers;
pub mod cluster;
pub mod conditions;
pub mod convert;
pub mod events;
pub mod latches;
pub mod lock_requests;
pub mod pools;
pub mod semaphores;
pub mod session_messages;
pub mod things;
pub mod usage;
pub mod waits;
