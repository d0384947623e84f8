//! The request id of a client's call: nodes receive it with the calls that it causes, so that logs and traces of both
//! name the same call.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static REQUEST_ID: Arc<str>;
}

/// Runs a client's call. Calls to nodes made within it carry its request id; tasks spawned within it carry none.
///
/// Not an `async` function, which would reserve space for the call twice.
pub fn with_request_id<F: Future>(request_id: Arc<str>, call: F) -> impl Future<Output = F::Output> {
    REQUEST_ID.scope(request_id, call)
}

/// Returns the request id of the current client call, if any.
pub(super) fn request_id() -> Option<Arc<str>> {
    REQUEST_ID.try_with(Arc::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_id_reaches_as_far_as_its_call() {
        assert_eq!(request_id(), None);
        let seen = with_request_id(Arc::from("r1"), async { request_id() }).await;
        assert_eq!(seen.as_deref(), Some("r1"));
        assert_eq!(request_id(), None);
    }
}
