//! The bodies of answers while they are sent.
//!
//! A connection takes as much of a body as its peer reads. What it has not taken is counted, for the connection and for
//! the account of the caller. It gets a body in pieces, because HTTP/2 buffers what it was given, however little the
//! peer reads.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{Method, Request, Response, Version};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::FutureExt;
use holdfast_api::ApiError;
use holdfast_backend::count_refusal;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, SizeHint};

use super::is_grpc;
use crate::connection_limiter::{ActivityGuard, AnswerReservation};
use crate::grpc;
use crate::head::REQUEST_ID_HEADER;
use crate::rest::problem::Problem;

/// The largest piece of a body, in bytes: a frame of HTTP/2.
const PIECE_BYTES: usize = 16 * 1_024;

/// How an answer is refused that there is no room for. Only a read can be, because it had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusable {
    No,
    RestRead,
    GrpcRead,
}

impl Refusable {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        if is_grpc(request.version(), request.headers()) {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default();
            let is_read = ["Get", "List"].iter().any(|prefix| method.starts_with(prefix));
            return if is_read { Self::GrpcRead } else { Self::No };
        }
        if *request.method() == Method::GET { Self::RestRead } else { Self::No }
    }

    /// Returns the answer that says so, and counts the refusal. Without one, the end of the connection tells it.
    fn refuse(self, error: ApiError) -> Option<Response<Body>> {
        match self {
            Self::No => {
                count_refusal(&error);
                None
            }
            Self::RestRead => Some(Problem::from(error).into_response()),
            Self::GrpcRead => Some(grpc::status(error).into_http()),
        }
    }
}

/// Keeps the connection busy until the body of an answer is sent, and counts its bytes until then. An answer that there
/// is no room for is refused, or else ends the connection.
pub(super) fn track(
    answer: Response<Body>,
    version: Version,
    activity: &ActivityGuard,
    refusable: Refusable,
) -> Response<Body> {
    // A small answer is as good as sent where a connection has one at a time.
    let is_small = || answer.body().size_hint().exact().is_some_and(|bytes| bytes <= PIECE_BYTES as u64);
    if answer.body().is_end_stream() || version != Version::HTTP_2 && is_small() {
        return answer;
    }
    let (mut parts, mut body) = answer.into_parts();
    // A body that is not ready is one that streams.
    let first = body.frame().now_or_never().flatten();
    let mut tracked = TrackedBody { body, pending: None, reservation: None, activity: activity.clone() };
    if let Some(Err(error)) = first.map(|frame| tracked.set_pending(frame)) {
        if let Some(mut refused) = refusable.refuse(error) {
            if let Some(id) = parts.headers.remove(&REQUEST_ID_HEADER) {
                refused.headers_mut().insert(&REQUEST_ID_HEADER, id);
            }
            return refused;
        }
        activity.mark_refused();
    }
    Response::from_parts(parts, Body::new(tracked))
}

/// A body that is sent in pieces, and keeps its connection busy.
struct TrackedBody {
    body: Body,
    /// What the body gave and the connection did not take.
    pending: Option<Result<Frame<Bytes>, axum::Error>>,
    /// Counts that.
    reservation: Option<AnswerReservation>,
    activity: ActivityGuard,
}

impl TrackedBody {
    /// Keeps what the body gave.
    ///
    /// # Errors
    /// If there is no room for it. It is kept nevertheless.
    fn set_pending(&mut self, frame: Result<Frame<Bytes>, axum::Error>) -> Result<(), ApiError> {
        let bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        self.pending = Some(frame);
        if bytes > 0 {
            self.reservation = Some(self.activity.reserve(bytes)?);
        }
        Ok(())
    }

    /// Returns the next piece of what is pending.
    fn take_piece(&mut self) -> Option<Result<Frame<Bytes>, axum::Error>> {
        let frame = match self.pending.take()? {
            Ok(frame) => frame,
            Err(error) => return Some(Err(error)),
        };
        let piece = match frame.into_data() {
            Ok(mut data) if data.len() > PIECE_BYTES => {
                let piece = data.split_to(PIECE_BYTES);
                self.pending = Some(Ok(Frame::data(data)));
                Frame::data(piece)
            }
            Ok(data) => {
                self.reservation = None;
                Frame::data(data)
            }
            Err(trailers) => trailers,
        };
        Some(Ok(piece))
    }
}

impl hyper::body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.pending.is_none() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else { return Poll::Ready(None) };
            if let Err(error) = self.set_pending(frame) {
                // Its head is sent, so nothing can be refused any more.
                count_refusal(&error);
                if self.activity.is_shared() {
                    self.pending = Some(Err(axum::Error::new(error)));
                } else {
                    self.activity.end_connection();
                }
            }
        }
        if let Some(reservation) = &self.reservation {
            reservation.record_progress();
        }
        Poll::Ready(self.take_piece())
    }

    fn is_end_stream(&self) -> bool {
        self.pending.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let pending = self.pending.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
        let (pending, rest) = (pending.map_or(0, Bytes::len) as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + pending);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + pending);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::http::header::CONTENT_TYPE;
    use holdfast_backend::AccountConnections;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::connection_limiter::{ConnectionLimiter, ConnectionPermit, MAX_ANSWER_BYTES};

    const HTTP_2: Version = Version::HTTP_2;

    async fn connection() -> ConnectionPermit {
        ConnectionLimiter::new(1, AccountConnections::default()).acquire(&TaskTracker::new()).await
    }

    fn answer(bytes: usize) -> Response<Body> {
        Response::new(Body::from(vec![7; bytes]))
    }

    #[tokio::test]
    async fn a_body_is_sent_in_pieces_and_counted_until_the_last() {
        let connection = connection().await;
        let half = MAX_ANSWER_BYTES as usize / 2;
        let mut sent = track(answer(half), HTTP_2, &connection.start_activity(), Refusable::RestRead).into_body();
        assert_eq!(sent.size_hint().exact(), Some(half as u64));
        let other = track(answer(half), HTTP_2, &connection.start_activity(), Refusable::RestRead);
        let refused = track(answer(1), HTTP_2, &connection.start_activity(), Refusable::RestRead);
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let mut bytes = 0;
        while let Some(frame) = sent.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE_BYTES && piece.iter().all(|byte| *byte == 7));
            bytes += piece.len();
        }
        assert_eq!(bytes, half);
        assert_eq!(
            track(answer(1), HTTP_2, &connection.start_activity(), Refusable::RestRead).status(),
            StatusCode::OK
        );
        drop(other);
    }

    #[tokio::test]
    async fn an_answer_too_many_to_a_read_is_refused_and_any_other_ends_the_connection() {
        let connection = connection().await;
        let activity = connection.start_activity();
        let _unread = track(answer(MAX_ANSWER_BYTES as usize), HTTP_2, &activity, Refusable::No);
        let mut read = answer(1);
        read.headers_mut().insert(&REQUEST_ID_HEADER, "r-1".parse().unwrap());
        let refused = track(read, HTTP_2, &activity, Refusable::RestRead);
        assert_eq!(refused.headers()[&REQUEST_ID_HEADER], "r-1");
        let problem = refused.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&problem).unwrap();
        assert_eq!((&problem["code"], &problem["limit"]), (&"RATE_LIMITED".into(), &"max_buffered_bytes".into()));
        let refused = track(answer(1), HTTP_2, &activity, Refusable::GrpcRead);
        assert_eq!(tonic::Status::from_header_map(refused.headers()).unwrap().code(), tonic::Code::ResourceExhausted);
        assert!(!activity.is_refused());
        let written = track(answer(1), HTTP_2, &activity, Refusable::No);
        assert!(written.status() == StatusCode::OK && activity.is_refused());
    }

    #[tokio::test]
    async fn small_answers_over_http_1_are_not_counted_and_large_ones_are() {
        let connection = connection().await;
        let activity = connection.start_activity();
        let _unread = track(answer(MAX_ANSWER_BYTES as usize), Version::HTTP_11, &activity, Refusable::RestRead);
        let statuses = [PIECE_BYTES, PIECE_BYTES + 1]
            .map(|bytes| track(answer(bytes), Version::HTTP_11, &activity, Refusable::RestRead).status());
        assert_eq!(statuses, [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]);
    }

    #[test]
    fn only_reads_are_refused() {
        let refusable = |method: &str, path: &str, content_type: &'static str| {
            let request = Request::builder().method(method).uri(path).version(HTTP_2);
            Refusable::of(&request.header(CONTENT_TYPE, content_type).body(()).unwrap())
        };
        assert_eq!(refusable("GET", "/v1/namespaces", "application/json"), Refusable::RestRead);
        assert_eq!(refusable("POST", "/v1/namespaces", "application/json"), Refusable::No);
        let grpc = |path| refusable("POST", path, "application/grpc");
        assert_eq!(grpc("/holdfast.v1.LocksService/ListLocks"), Refusable::GrpcRead);
        assert_eq!(grpc("/holdfast.v1.LocksService/AcquireLock"), Refusable::No);
    }
}
