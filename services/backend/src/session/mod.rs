//! The connection of a session, over any transport: it receives messages of the client and sends messages of the
//! service.
//!
//! A frontend starts one with `Service::connect`, passes the client's messages to [`SessionSender`], and forwards the
//! messages of [`SessionReceiver`] until that reports how the connection ended. All rules of the protocol are here:
//!
//! - The commands of one session go to its shard strictly one after the other; keep-alives are independent of them.
//! - Each command carries a number of this connection, which rises within the session's epoch: the shard ignores
//!   copies, whatever route they took.
//! - The connection subscribes to the leader's updates of the session (grants, losses, its end). When the leader
//!   changes, it subscribes to the next one, and queries the state of everything that the client waits for and believes
//!   to hold.
//! - Every queue is bounded, by the number of its messages and their bytes. The connection stops reading from a client
//!   that sends too fast, and disconnects a client that does not read.
//! - A connection that ends without `close` leaves the session to its time to live.

mod arrival_table;
mod arrivals;
mod asked;
mod await_table;
mod awaits;
mod channel;
mod claim_index;
mod client_command;
mod command_queue;
mod commands;
mod connection;
mod deferred_updates;
mod epoch_report;
mod handle;
mod handshake;
mod keep_alive;
mod ledger;
mod life;
mod message_bytes;
mod path_holds;
mod permit_table;
mod permits;
mod protocol;
mod rare_events;
mod receipted;
mod receipts;
mod replies;
mod reports;
mod request_table;
mod retained_ledger;
#[cfg(test)]
pub(crate) mod test_lock;
mod unanswered;
mod unqueued;
mod updates;

pub use channel::{CloseReason, Closed, Outbound, SEND_TIMEOUT, SessionReceiver, SessionSender, slow_client_error};
pub use handshake::ConnectionOptions;
pub(crate) use retained_ledger::RetainedLedgers;
