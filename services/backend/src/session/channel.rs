//! Both ends of a connection: bounded queues between a frontend and the session.

use std::time::Duration;

use futures::FutureExt;
use holdfast_api::session_message::{ClientMessage, RefusalCause, ServerMessage};
use holdfast_api::{ApiError, Code};
use holdfast_routing::{NestedBudget, NestedReservation};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::message_bytes::{MAX_BYTES, client_message_bytes, server_message_bytes};
use crate::AccountBuffers;
use crate::refusals::count_refusal;

/// Messages of the client in transit to the session. The session itself queues more, see [`super::command_queue`].
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

/// An item for the session from its frontend. It is small: a queue takes memory for 32 of them from the start.
#[derive(Debug)]
pub(super) enum Inbound {
    /// With what counts its bytes until it is done.
    Message(Box<ClientMessage>, NestedReservation),
    /// The client sent an invalid message.
    Malformed(Box<ApiError>),
}

/// The session's side has ended and accepts no more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Accepts messages of the client. Dropping it means that the client disconnected.
#[derive(Debug)]
pub struct SessionSender {
    messages: mpsc::Sender<Inbound>,
    budget: NestedBudget,
}

impl SessionSender {
    /// Waits while the queue is full, by the number or the bytes of its messages, so that the frontend stops reading
    /// from a client that sends too fast.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, message: ClientMessage) -> Result<(), Closed> {
        let bytes = self.budget.reserve(client_message_bytes(&message)).await.ok_or(Closed)?;
        self.messages.send(Inbound::Message(Box::new(message), bytes)).await.map_err(|_| Closed)
    }

    /// Returns when the session's side has ended.
    pub async fn closed(&self) {
        self.messages.closed().await;
    }

    /// Reports an invalid message of the client: the connection ends once all earlier messages are done.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send_malformed(&self, error: ApiError) -> Result<(), Closed> {
        self.messages.send(Inbound::Malformed(Box::new(error))).await.map_err(|_| Closed)
    }
}

/// Yields the messages of the service.
#[derive(Debug)]
pub struct SessionReceiver(mpsc::Receiver<QueuedOutbound>);

/// An item for the frontend, with what counts its bytes until it is taken. As small as [`Inbound`].
#[derive(Debug)]
struct QueuedOutbound {
    item: Box<Outbound>,
    _bytes: Option<NestedReservation>,
}

impl SessionReceiver {
    /// Returns the next message, or the end of the connection. Cancel-safe.
    pub async fn next(&mut self) -> Outbound {
        let cut_off = || Outbound::End(CloseReason::Failed(slow_client_error()));
        self.0.recv().await.map_or_else(cut_off, |queued| *queued.item)
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
pub(super) struct OutboundQueue {
    items: mpsc::Sender<QueuedOutbound>,
    budget: NestedBudget,
}

impl OutboundQueue {
    /// Returns false if the client does not accept the message: it disconnected, or did not read for too long.
    pub(super) async fn send(&self, message: ServerMessage) -> bool {
        if let ServerMessage::Error { error, .. } | ServerMessage::Refused { why: RefusalCause::Fault(error), .. } =
            &message
        {
            count_refusal(error);
        }
        // Almost always there is room, and no time limit to set up.
        let Some(bytes) = self.budget.try_reserve(server_message_bytes(&message)) else {
            return self.send_timeout(message, SEND_TIMEOUT).await;
        };
        match self.items.reserve().now_or_never() {
            Some(Ok(permit)) => {
                permit.send(QueuedOutbound { item: Box::new(Outbound::Message(message)), _bytes: Some(bytes) });
                true
            }
            Some(Err(_)) => false,
            None => {
                drop(bytes);
                self.send_timeout(message, SEND_TIMEOUT).await
            }
        }
    }

    async fn send_timeout(&self, message: ServerMessage, within: Duration) -> bool {
        let sending = async {
            let bytes = tokio::select! {
                bytes = self.budget.reserve(server_message_bytes(&message)) => bytes,
                () = self.items.closed() => return false,
            };
            let item = Box::new(Outbound::Message(message));
            self.items.send(QueuedOutbound { item, _bytes: bytes }).await.is_ok()
        };
        timeout(within, sending).await.unwrap_or(false)
    }

    /// Sends the end of the connection if the queue has capacity.
    pub(super) fn close(self, ending: CloseReason) {
        // If the queue is full, the client is not reading. It receives that error when the channel closes.
        if let CloseReason::Malformed(error) | CloseReason::Failed(error) = &ending {
            count_refusal(error);
            self.try_send(Outbound::Message(ServerMessage::Error { error: error.clone(), request_id: None }));
        }
        self.try_send(Outbound::End(ending));
    }

    fn try_send(&self, item: Outbound) {
        let _ = self.items.try_send(QueuedOutbound { item: Box::new(item), _bytes: None });
    }

    /// Returns whether the receiver is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    /// Returns when the receiver is gone.
    pub(super) async fn closed(&self) {
        self.items.closed().await;
    }
}

/// Creates the queues of a connection: the frontend's ends and the session's. All messages of an account count in its
/// budgets too.
pub(super) fn queues(
    of_account: AccountBuffers,
) -> ((SessionSender, SessionReceiver), (mpsc::Receiver<Inbound>, OutboundQueue)) {
    let (messages, incoming) = mpsc::channel(INBOUND_CAPACITY);
    let (items, from_session) = mpsc::channel(OUTBOUND_CAPACITY);
    let sender = SessionSender { messages, budget: NestedBudget::new(MAX_BYTES, of_account.requests) };
    let outgoing = OutboundQueue { items, budget: NestedBudget::new(MAX_BYTES, of_account.answers) };
    ((sender, SessionReceiver(from_session)), (incoming, outgoing))
}

#[cfg(test)]
mod tests {
    use holdfast_api::session_message::{ClientPayload, Release};
    use holdfast_routing::ByteBudget;

    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_read_is_cut_off_with_the_reason_after_what_it_has_not_read() {
        let ((_to, mut from), (_incoming, outgoing)) = queues(AccountBuffers::default());
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
        let ((to, from), (mut incoming, outgoing)) = queues(AccountBuffers::default());
        drop(from);
        outgoing.closed().await;
        assert!(!outgoing.send(ServerMessage::KeptAlive { remaining_ms: 1 }).await);
        drop(to);
        assert!(incoming.recv().await.is_none());
    }

    fn large(bytes: usize) -> ServerMessage {
        ServerMessage::Acquired {
            request_id: "x".repeat(bytes),
            fencing_token: 1,
            members: Vec::new(),
            woken: None,
            receipt: None,
        }
    }

    async fn send_now(outgoing: &OutboundQueue, bytes: usize) -> bool {
        outgoing.send_timeout(large(bytes), Duration::from_millis(1)).await
    }

    #[tokio::test]
    async fn few_large_messages_fill_a_queue_too() {
        let ((to, mut from), (mut incoming, outgoing)) = queues(AccountBuffers::default());
        for _ in 0..3 {
            assert!(send_now(&outgoing, 300_000).await);
        }
        assert!(!send_now(&outgoing, 300_000).await);
        from.next().await;
        assert!(send_now(&outgoing, 300_000).await);

        let release = |bytes: usize| {
            let payload = ClientPayload::Release(Release { request_id: "x".repeat(bytes), unheard: false });
            to.send(ClientMessage { seq: 1, payload })
        };
        for _ in 0..3 {
            release(300_000).await.unwrap();
        }
        assert!(release(300_000).now_or_never().is_none(), "the client is not read from");
        drop(incoming.recv().await);
        release(300_000).await.unwrap();
    }

    #[tokio::test]
    async fn connections_of_an_account_share_its_bytes_and_one_that_reads_goes_on() {
        let of_account = AccountBuffers { answers: Some(ByteBudget::new(451_000)), requests: None };
        let (_deaf, (_incoming, to_deaf)) = queues(of_account.clone());
        assert!(send_now(&to_deaf, 450_000).await);
        assert!(!send_now(&to_deaf, 450_000).await);
        let ((_to, mut from), (_incoming, to_reader)) = queues(of_account);
        for _ in 0..10 {
            assert!(send_now(&to_reader, 3_000).await, "there is nothing else for it");
            assert!(!send_now(&to_reader, 3_000).await);
            from.next().await;
        }
        assert!(!send_now(&to_reader, 100_000).await, "a large one waits until others are read");
    }
}
