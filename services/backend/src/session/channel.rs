//! Both ends of a connection: bounded queues between a frontend and the session.

use std::time::Duration;

use futures::FutureExt;
use holdfast_api::session_message::{ClientMessage, RefusalCause, ServerMessage};
use holdfast_api::{ApiError, Code};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::refusals::count_refusal;

/// Messages of the client in transit to the session. The session itself queues more, see `live`.
const INBOUND_CAPACITY: usize = 16;
/// Messages of the service that the client has not read yet.
const OUTBOUND_CAPACITY: usize = 1_024;
/// How long the outbound queue may stay full before the client is disconnected.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Normally: the session ended, or the client disconnected.
    Done,
    /// The client broke the protocol.
    Malformed(ApiError),
    /// The service ended it.
    Failed(ApiError),
}

/// An item for the frontend of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// For the client.
    Message(ServerMessage),
    /// The last item. All messages for the client about the end precede it.
    End(CloseReason),
}

/// An item for the session from its frontend.
#[derive(Debug)]
pub(super) enum Inbound {
    Message(ClientMessage),
    /// The client sent an invalid message.
    Malformed(ApiError),
}

/// The session's side has ended and accepts no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Accepts messages of the client. Dropping it means that the client disconnected.
#[derive(Debug)]
pub struct SessionSender(mpsc::Sender<Inbound>);

impl SessionSender {
    /// Waits while the queue is full, so that the frontend stops reading from a client that sends too fast.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, message: ClientMessage) -> Result<(), Closed> {
        self.0.send(Inbound::Message(message)).await.map_err(|_| Closed)
    }

    /// Returns when the session's side has ended.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Reports an invalid message of the client: the connection ends once all earlier messages are done.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send_malformed(&self, error: ApiError) -> Result<(), Closed> {
        self.0.send(Inbound::Malformed(error)).await.map_err(|_| Closed)
    }
}

/// Yields the messages of the service.
#[derive(Debug)]
pub struct SessionReceiver(mpsc::Receiver<Outbound>);

impl SessionReceiver {
    /// Returns the next message, or the end of the connection. Cancel-safe.
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

/// The error for clients of a stopping process.
pub(super) fn stopping_error() -> ApiError {
    ApiError::new(Code::Unavailable, "this gateway stops; connect to another one and resume the session")
}

/// The session's end of the outbound queue.
#[derive(Debug)]
pub(super) struct OutboundQueue(mpsc::Sender<Outbound>);

impl OutboundQueue {
    /// Returns false if the client does not accept the message: it disconnected, or did not read for too long.
    pub(super) async fn send(&self, message: ServerMessage) -> bool {
        if let ServerMessage::Error { error, .. } | ServerMessage::Refused { why: RefusalCause::Fault(error), .. } =
            &message
        {
            count_refusal(error);
        }
        // Almost always there is room, and no time limit to set up.
        match self.0.reserve().now_or_never() {
            Some(Ok(permit)) => {
                permit.send(Outbound::Message(message));
                true
            }
            Some(Err(_)) => false,
            None => self.send_timeout(message, SEND_TIMEOUT).await,
        }
    }

    async fn send_timeout(&self, message: ServerMessage, within: Duration) -> bool {
        matches!(timeout(within, self.0.send(Outbound::Message(message))).await, Ok(Ok(())))
    }

    /// Sends the end of the connection if the queue has capacity.
    pub(super) fn close(self, ending: CloseReason) {
        // If the queue is full, the client is not reading. It receives that error when the channel closes.
        if let CloseReason::Malformed(error) | CloseReason::Failed(error) = &ending {
            count_refusal(error);
            let _ = self.0.try_send(Outbound::Message(ServerMessage::Error { error: error.clone(), request_id: None }));
        }
        let _ = self.0.try_send(Outbound::End(ending));
    }

    /// Returns whether the receiver is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns when the receiver is gone.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Creates the queues of a connection: the frontend's ends and the session's.
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
