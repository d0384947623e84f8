//! Single calls: each with a deadline, and again while no gateway can be reached.

use std::time::Duration;

use anyhow::Result;
use backon::{ExponentialBuilder, Retryable};
use holdfast_client::Error;
use tonic::{Request, Response, Status};

/// How long one call may take.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Pauses between calls, and how often they are made again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const REPEATS: usize = 6;

/// Calls, again when nothing was done or nobody answered. Only for what may be said twice.
pub(crate) async fn call<M: Clone, A>(
    message: M,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A> {
    call_within(message, CALL_WITHIN, make).await
}

/// As [`call`], with another limit for each try.
pub(crate) async fn call_within<M: Clone, A>(
    message: M,
    within: Duration,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A> {
    let key = uuid::Uuid::new_v4().to_string();
    let once = async || {
        let mut request = Request::new(message.clone());
        request.set_timeout(within);
        // Creations are answered as the first one was.
        request.metadata_mut().insert("idempotency-key", key.parse().expect("a UUID is ASCII"));
        make(request).await.map(Response::into_inner).map_err(Error::from)
    };
    let pauses = ExponentialBuilder::default().with_min_delay(PAUSES.0).with_max_delay(PAUSES.1);
    Ok(once.retry(pauses.with_max_times(REPEATS).with_jitter()).when(may_pass).await?)
}

/// Whether nothing was done, or nobody can say.
pub(crate) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Unreachable(_)) || error.code() == Some("UNAVAILABLE")
}
