//! The bodies of requests while they are read.
//!
//! What was read counts for its connection and its account until the call ends. Without room, a body is not read on:
//! the peer's window fills, and the call ends at its deadline if no other one does before.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_routing::NestedReservation;
use hyper::body::{Body, Frame, SizeHint};

use crate::connection_limiter::ActivityGuard;

/// A body that is counted as it is read.
pub(super) struct CountedBody<B> {
    body: B,
    activity: ActivityGuard,
    waiting: Option<WaitingFrame>,
}

/// A part of a body that there is no room for yet.
struct WaitingFrame {
    frame: Frame<Bytes>,
    reserving: BoxFuture<'static, Option<NestedReservation>>,
}

impl<B> CountedBody<B> {
    pub(super) fn new(body: B, activity: ActivityGuard) -> Self {
        Self { body, activity, waiting: None }
    }

    /// Returns a part of the body, or keeps it until there is room.
    fn count(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let bytes = bytes_of(&frame);
        match self.activity.count_request(bytes) {
            Ok(()) => Some(frame),
            Err(budget) => {
                let reserving = async move { budget.reserve(bytes).await }.boxed();
                self.waiting = Some(WaitingFrame { frame, reserving });
                None
            }
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.waiting.is_none() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Some(frame) = this.count(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                ended => return Poll::Ready(ended),
            }
        }
        let reserved = match &mut this.waiting {
            Some(waiting) => {
                let reserved = ready!(waiting.reserving.poll_unpin(context));
                reserved.map(|reserved| (reserved, bytes_of(&waiting.frame)))
            }
            None => None,
        };
        if let Some((reserved, bytes)) = reserved {
            this.activity.add_request(reserved, bytes);
        }
        Poll::Ready(this.waiting.take().map(|waiting| Ok(waiting.frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.waiting.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

fn bytes_of(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use holdfast_backend::AccountConnections;
    use http_body_util::{BodyExt, Full};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::connection_limiter::ConnectionLimiter;

    fn body(activity: &ActivityGuard, bytes: usize) -> CountedBody<Full<Bytes>> {
        CountedBody::new(Full::new(Bytes::from(vec![7; bytes])), activity.clone())
    }

    #[tokio::test]
    async fn a_body_without_room_is_read_when_another_call_ends() {
        let connection = ConnectionLimiter::new(1, AccountConnections::default()).acquire(&TaskTracker::new()).await;
        let (first, second) = (connection.start_activity(), connection.start_activity());
        let read = async |activity: &ActivityGuard, bytes: usize| {
            body(activity, bytes).collect().await.unwrap().to_bytes().len()
        };
        assert_eq!(read(&first, 100 << 10).await, 100 << 10);
        let mut later = Box::pin(read(&second, 64 << 10));
        assert!(later.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(later.await, 64 << 10);
        assert_eq!(second.request_bytes(), 64 << 10);
        // An empty body needs no room.
        assert_eq!(read(&connection.start_activity(), 0).await, 0);
    }
}
