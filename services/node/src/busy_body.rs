//! The bodies of answers over HTTP: until one is sent, its connection counts as busy.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Error;
use axum::body::Body;
use bytes::Bytes;
use holdfast_tls::BusyGuard;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body, and the guard of its call.
pub(crate) struct BusyBody {
    body: Body,
    _busy: BusyGuard,
}

impl BusyBody {
    /// Keeps the guard until the body is dropped.
    pub(crate) fn new(body: Body, busy: BusyGuard) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_tls::ConnectionActivity;

    use super::*;

    #[test]
    fn a_connection_is_busy_until_the_body_is_dropped() {
        let activity = ConnectionActivity::default();
        let body = BusyBody::new(Body::from("part"), activity.begin());
        assert!(activity.is_busy());
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
        drop(body);
        assert!(!activity.is_busy());
    }
}
