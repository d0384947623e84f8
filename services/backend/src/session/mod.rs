//! The connection of a session, whatever carries it: messages of the client go in, messages of the service come out.
//!
//! A door starts one with `Service::connect`, gives it what the client says through [`SessionSender`] and passes on
//! what [`SessionReceiver`] brings, until that says how the connection ended. All rules of the protocol are kept here:
//!
//! - Commands of one session go to its shard strictly one after the other; keep-alives go beside them.
//! - Each command carries a number of this connection's own, which rises within the session's epoch: the shard ignores
//!   copies, whatever way they took.
//! - What the leader tells of the session (grants, losses, its end) is followed. When the leader is gone the next one
//!   is followed, and asked what became of all that the client waits for and believes to hold.
//! - Everything that queues is bounded. A client that sends too fast is not read; one that does not read is cut off.
//! - A connection that ends without `close` leaves the session to its time to live.

mod channel;
mod commands;
mod connection;
mod handle;
mod handshake;
mod keep_alive;
mod protocol;
mod replies;
mod request_table;
mod subscription;
mod updates;

pub use channel::{CloseReason, Closed, Outbound, SEND_TIMEOUT, SessionReceiver, SessionSender, slow_client_error};
pub use handshake::ConnectionOptions;
