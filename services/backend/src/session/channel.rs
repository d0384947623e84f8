//! Both ends of a connection: bounded queues between a door and the session.

use std::time::Duration;

use holdfast_api::session_message::{ClientMessage, ServerMessage};
use holdfast_api::{ApiError, Code};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Messages of the client on the way to the session. More wait in the session itself, see `live`.
const INBOUND_CAPACITY: usize = 16;
/// Messages of the service that the client did not read yet.
const OUTBOUND_CAPACITY: usize = 1_024;
/// How long there may be no room for another message before the client is cut off.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// In good order: the session ended, or the client went away.
    Done,
    /// The client broke the protocol.
    Malformed(ApiError),
    /// The service ended it.
    Failed(ApiError),
}

/// What a connection tells its door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// For the client.
    Message(ServerMessage),
    /// Nothing comes after it. Whatever is to be said to the client about it was said before.
    End(CloseReason),
}

/// What a door tells the session.
#[derive(Debug)]
pub(super) enum Inbound {
    Message(ClientMessage),
    /// The client sent something that is no message.
    Malformed(ApiError),
}

/// The session is over: nothing more is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Takes what the client says. Dropping it says that the client went away.
#[derive(Debug)]
pub struct SessionSender(mpsc::Sender<Inbound>);

impl SessionSender {
    /// Waits while there is no room, so that a client that sends too fast is not read.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, message: ClientMessage) -> Result<(), Closed> {
        self.0.send(Inbound::Message(message)).await.map_err(|_| Closed)
    }

    /// Ends when the session's side has ended.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// The client sent something that is no message: once all before it is done the connection ends.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send_malformed(&self, error: ApiError) -> Result<(), Closed> {
        self.0.send(Inbound::Malformed(error)).await.map_err(|_| Closed)
    }
}

/// Brings what the service says.
#[derive(Debug)]
pub struct SessionReceiver(mpsc::Receiver<Outbound>);

impl SessionReceiver {
    /// The next message, or how it ended. Can be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Outbound {
        let cut_off = || Outbound::End(CloseReason::Failed(slow_client_error()));
        self.0.recv().await.unwrap_or_else(cut_off)
    }
}

/// The error for a client that does not read.
pub fn slow_client_error() -> ApiError {
    let seconds = SEND_TIMEOUT.as_secs();
    ApiError::new(
        Code::Unavailable,
        format!("the client did not read for {seconds} s while messages were waiting; connect again and resume"),
    )
}

/// The session's end of the way out.
#[derive(Debug)]
pub(super) struct OutboundQueue(mpsc::Sender<Outbound>);

impl OutboundQueue {
    /// False when the client does not take it: it is gone, or did not read for too long.
    pub(super) async fn send(&self, message: ServerMessage) -> bool {
        self.send_timeout(message, SEND_TIMEOUT).await
    }

    async fn send_timeout(&self, message: ServerMessage, within: Duration) -> bool {
        matches!(timeout(within, self.0.send(Outbound::Message(message))).await, Ok(Ok(())))
    }

    /// The last word, if there is room for it.
    pub(super) fn close(self, ending: CloseReason) {
        // Without room the client is not reading, and is told so when the channel is found closed.
        if let CloseReason::Malformed(error) | CloseReason::Failed(error) = &ending {
            let _ = self.0.try_send(Outbound::Message(ServerMessage::Error { error: error.clone(), request_id: None }));
        }
        let _ = self.0.try_send(Outbound::End(ending));
    }

    /// Whether nobody takes messages any more.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends when nobody takes messages any more.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A connection's queues: the door's ends and the session's.
pub(super) fn queues() -> ((SessionSender, SessionReceiver), (mpsc::Receiver<Inbound>, OutboundQueue)) {
    let (to_session, incoming) = mpsc::channel(INBOUND_CAPACITY);
    let (outgoing, from_session) = mpsc::channel(OUTBOUND_CAPACITY);
    ((SessionSender(to_session), SessionReceiver(from_session)), (incoming, OutboundQueue(outgoing)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off_with_the_reason_after_what_it_has_not_read() {
        let ((_to, mut from), (_incoming, outgoing)) = queues();
        let message = ServerMessage::KeptAlive { remaining_ms: 1 };
        for _ in 0..OUTBOUND_CAPACITY {
            assert!(outgoing.send(message.clone()).await);
        }
        assert!(!outgoing.send_timeout(message.clone(), Duration::from_millis(1)).await);
        outgoing.close(CloseReason::Done);
        for _ in 0..OUTBOUND_CAPACITY {
            assert_eq!(from.next().await, Outbound::Message(message.clone()));
        }
        assert_eq!(from.next().await, Outbound::End(CloseReason::Failed(slow_client_error())));
    }

    #[tokio::test]
    async fn a_client_that_is_gone_takes_nothing() {
        let ((to, from), (mut incoming, outgoing)) = queues();
        drop(from);
        outgoing.closed().await;
        assert!(!outgoing.send(ServerMessage::KeptAlive { remaining_ms: 1 }).await);
        drop(to);
        assert!(incoming.recv().await.is_none());
    }
}
