//! Connections between the processes of a cluster: frames of protobuf messages over TCP or TLS.
//!
//! Purpose: keep a connection to a process open, prove who connects, carry many requests at a time, and notice a peer
//! that is gone. Each [`Protocol`] has connections of its own, so that a full one delays no other.
//!
//! Invariants:
//! - Only a process with a service token of the cluster, and a certificate where TLS is on, gets past the handshake.
//! - A newer connection of a caller closes its earlier ones, and what was not read of them is dropped.
//! - Every queue and frame is bounded; a peer that does not read is not read from.
//! - Replies to calls have a lane for each account: up to 64 KiB of those of one are delayed by the others by no more
//!   than their equal share of the connection. Above that they may also wait for memory that all accounts share.
//!
//! Deliberately unknown here: what calls and Raft messages mean, which process leads, HTTP.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod acceptor;
mod budget;
mod call_count;
mod call_handler;
mod callers;
mod channel;
mod connection;
mod dialer;
mod frames;
mod identity;
mod in_flight;
mod lane_budget;
mod protocol;
mod reply_queue;
mod responder;

pub use acceptor::{Acceptor, Incoming, Server};
pub use budget::{ByteBudget, NestedBudget, NestedReservation, Reservation};
pub use call_count::CallLimit;
pub use call_handler::{CallControl, CallHandler, ReplyHandle, may_be_deferred};
pub use callers::{CallerId, Callers};
pub use channel::{ChannelOptions, Link, connect, run};
pub use connection::{ClientConnection, Connection, Event, ServerConnection};
pub use dialer::{ByteStream, ConnectError, Dialer, Stream, TcpDialer, TlsDialer};
pub use frames::EncodesAs;
pub use identity::{Identity, identify};
pub use in_flight::{InFlight, Waiter};
pub use protocol::{Calls, PREAMBLE, Protocol};
pub use reply_queue::{QueuedReplies, ReplyQueue};
pub use responder::{CALL_LIMITS, Responder};

#[cfg(test)]
mod tests;
