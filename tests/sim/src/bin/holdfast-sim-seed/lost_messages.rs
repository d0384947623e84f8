//! Loses one message between a gateway and nodes: the one after so many others, in either direction.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use holdfast_rpc::ByteStream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// What the loss of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It never arrives, and its connection ends with it.
    Cut,
    /// It arrives, but the client that has calls in progress goes away.
    Leave,
    /// It never arrives, and the gateway of connected sessions ends with it.
    Fall,
}

/// Counts the messages of a gateway.
#[derive(Default)]
pub(crate) struct LostMessages {
    state: Mutex<State>,
    goes_away: Notify,
}

#[derive(Default)]
struct State {
    /// How many messages pass before the one that is lost.
    next: Option<(usize, Loss)>,
    lost: usize,
    /// Whether the gateway of connected sessions is to end.
    falls: bool,
}

impl LostMessages {
    /// Loses the message after so many others.
    pub(crate) fn lose_after(&self, others: usize, loss: Loss) {
        self.state.lock().next = Some((others, loss));
    }

    /// Loses no more messages. Returns whether one was lost since the call of [`Self::lose_after`].
    pub(crate) fn stop(&self) -> bool {
        self.state.lock().next.take().is_none()
    }

    /// Returns how many were lost.
    pub(crate) fn lost(&self) -> usize {
        self.state.lock().lost
    }

    /// Returns, once, whether the gateway of connected sessions is to end.
    pub(crate) fn take_fall(&self) -> bool {
        std::mem::take(&mut self.state.lock().falls)
    }

    /// Returns when the client is to go away.
    pub(crate) async fn goes_away(&self) {
        self.goes_away.notified().await;
    }

    /// Whether the next message ends its connection.
    fn is_next_cut(&self) -> bool {
        matches!(self.state.lock().next, Some((0, Loss::Cut | Loss::Fall)))
    }

    fn count(&self) {
        let mut state = self.state.lock();
        match state.next {
            None => {}
            Some((0, loss)) => {
                (state.next, state.lost) = (None, state.lost + 1);
                state.falls = loss == Loss::Fall;
                if loss != Loss::Cut {
                    self.goes_away.notify_waiters();
                }
            }
            Some((others, loss)) => state.next = Some((others - 1, loss)),
        }
    }
}

/// A connection whose messages are counted: what is read or written at once is one.
pub(crate) struct CountedStream {
    inner: ByteStream,
    messages: Arc<LostMessages>,
    is_cut: bool,
}

impl CountedStream {
    pub(crate) fn new(inner: ByteStream, messages: Arc<LostMessages>) -> Self {
        Self { inner, messages, is_cut: false }
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            if self.messages.is_next_cut() {
                self.is_cut = true;
                buffer.set_filled(before);
            }
            self.messages.count();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.is_cut && self.messages.is_next_cut() {
            self.is_cut = true;
            self.messages.count();
        }
        if self.is_cut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let written = ready!(Pin::new(&mut self.inner).poll_write(context, bytes))?;
        self.messages.count();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
