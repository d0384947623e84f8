//! Single calls with deadlines, made again while no gateway answers.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status};

use crate::error::{Error, Result};

/// How long a call that does not wait is made again.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest and longest delay between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long one attempt may take besides the time that it waits at the service.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a call that changes nothing when it is made twice, until it is answered or the time is over. `waits` is how
/// long the service may take to answer.
pub(crate) async fn call_again<M: Clone, A, F: Future<Output = Result<Response<A>, Status>>>(
    message: M,
    waits: Duration,
    within: Option<Duration>,
    make: impl Fn(Request<M>) -> F,
) -> Result<A> {
    let deadline = within.map(|within| Instant::now() + within);
    let pauses = ExponentialBuilder::default().with_min_delay(BACKOFF.0).with_max_delay(BACKOFF.1);
    let mut pauses = pauses.without_max_times().with_jitter().build();
    loop {
        let error = match call_once(message.clone(), waits + ATTEMPT_TIMEOUT, &make).await {
            Ok(answer) => return Ok(answer),
            Err(error) if !error.is_transient() => return Err(error),
            Err(error) => error,
        };
        let pause = pauses.next().unwrap_or(BACKOFF.1);
        if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
            return Err(error);
        }
        sleep(pause).await;
    }
}

/// Makes a call once.
pub(crate) async fn call_once<M, A, F: Future<Output = Result<Response<A>, Status>>>(
    message: M,
    within: Duration,
    make: impl Fn(Request<M>) -> F,
) -> Result<A> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    match timeout(within, make(request)).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Error::Unreachable(format!("no answer within {within:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_made_again_until_it_is_answered_or_refused() {
        let attempts = AtomicU32::new(0);
        let third = |_: Request<u8>| match attempts.fetch_add(1, Ordering::Relaxed) {
            2 => ready(Ok(Response::new(7))),
            _ => ready(Err(Status::unavailable("not now"))),
        };
        assert_eq!(call_again(1_u8, Duration::ZERO, Some(CALL_TIMEOUT), third).await, Ok(7));
        let never = |_: Request<u8>| ready(Err::<Response<u8>, _>(Status::unavailable("not now")));
        let began = Instant::now();
        let error = call_again(1_u8, Duration::ZERO, Some(CALL_TIMEOUT), never).await.unwrap_err();
        assert!(error.is_transient() && began.elapsed() <= CALL_TIMEOUT, "{error}");
        let late = |_: Request<u8>| match began.elapsed() > 10 * CALL_TIMEOUT {
            true => ready(Ok(Response::new(8))),
            false => ready(Err(Status::unavailable("not now"))),
        };
        assert_eq!(call_again(1_u8, Duration::ZERO, None, late).await, Ok(8), "without a limit");
        let silent = |_: Request<u8>| pending::<Result<Response<u8>, Status>>();
        assert!(call_once(1_u8, ATTEMPT_TIMEOUT, silent).await.unwrap_err().is_transient());
    }
}
