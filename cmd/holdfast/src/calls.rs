//! Single calls with deadlines; retried while no gateway can be reached.

use std::time::Duration;

use anyhow::Result;
use backon::{ExponentialBuilder, Retryable};
use holdfast_client::Error;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

/// Timeout of one call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest and longest delay between attempts, and the number of retries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const MAX_RETRIES: usize = 6;

/// Makes a call, and retries it if it was not executed or got no response. Only for idempotent calls.
pub(crate) async fn call<M: Clone, A>(
    message: M,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A> {
    let key = uuid::Uuid::new_v4().to_string();
    let once = async || {
        let mut request = Request::new(message.clone());
        // A retried creation gets the response of the first one.
        request.metadata_mut().insert("idempotency-key", key.parse().expect("a UUID is ASCII"));
        call_with_timeout(request, CALL_TIMEOUT, &make).await
    };
    let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
    Ok(once.retry(pauses.with_max_times(MAX_RETRIES).with_jitter()).when(is_transient).await?)
}

/// As [`call`], for a call that the service may take that long to answer.
pub(crate) async fn call_waiting<M: Clone, A>(
    message: M,
    wait: Duration,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A> {
    let once = async || call_with_timeout(Request::new(message.clone()), wait + CALL_TIMEOUT, &make).await;
    let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
    Ok(once.retry(pauses.with_max_times(MAX_RETRIES).with_jitter()).when(is_transient).await?)
}

/// Makes a call once, with a timeout.
pub(crate) async fn call_once<M, A>(
    message: M,
    within: Duration,
    make: impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A, Error> {
    call_with_timeout(Request::new(message), within, &make).await
}

/// Applies a timeout to a call, even if the connection hangs.
async fn call_with_timeout<M, A>(
    mut request: Request<M>,
    within: Duration,
    make: &impl AsyncFn(Request<M>) -> Result<Response<A>, Status>,
) -> Result<A, Error> {
    request.set_timeout(within);
    match timeout(within, make(request)).await {
        Ok(answer) => Ok(answer.map(Response::into_inner)?),
        Err(_) => Err(Error::Unreachable(format!("no answer within {within:?}"))),
    }
}

/// Returns true if the call was not executed, or its outcome is unknown.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(error, Error::Unreachable(_)) || error.code() == Some("UNAVAILABLE")
}
