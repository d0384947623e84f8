//! What a connection carries.

use std::time::Duration;

use holdfast_proto::internal::{AnswerFrame, CallFrame};
use prost::Message;

/// The first bytes of a connection of frames. No HTTP request begins with them. The last one is the version of the
/// framing and of the handshake.
pub const PREAMBLE: [u8; 8] = *b"\0hffrm\0\x01";

/// The version of everything that connections carry; both ends must have the same. Version 1 was HTTP/2; in version 2
/// every shard had a log of its own.
pub(crate) const WIRE_VERSION: u32 = 3;

/// The release of this program, for error messages.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The messages of a kind of connection. A message with default values only says that its sender is alive, and is not
/// delivered.
pub trait Protocol: Send + Sync + 'static {
    /// The name in the handshake.
    const NAME: &'static str;
    /// Largest frame accepted in either direction, in bytes.
    const MAX_FRAME_BYTES: usize;
    /// How long a peer may take in nothing of a frame before its connection ends.
    const STALL_TIMEOUT: Duration = Duration::from_secs(10);
    /// Whether a newer connection of a caller closes its earlier ones.
    const IS_EXCLUSIVE: bool = true;
    /// Sent by the process that connected.
    type Request: Message + Default + 'static;
    /// Sent by the process that was connected to.
    type Reply: Message + Default + 'static;
    /// Sent once by both.
    type Handshake: Message + Default + 'static;
}

/// The calls of gateways, and of nodes that deliver their outbox.
#[derive(Clone, Copy, Debug)]
pub struct Calls;

impl Protocol for Calls {
    const NAME: &'static str = "calls";
    const MAX_FRAME_BYTES: usize = 16 << 20;
    type Request = CallFrame;
    type Reply = AnswerFrame;
    type Handshake = ();
}
