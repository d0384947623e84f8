//! On whose behalf a call is made: its request id goes along to the node, so that the logs and traces of both tell of
//! the same call.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static REQUEST_ID: Arc<str>;
}

/// Runs a call of a client. What is sent to nodes on the way carries its request id; tasks that are spawned on the way
/// are on nobody's behalf.
pub async fn with_request_id<F: Future>(request_id: &str, call: F) -> F::Output {
    REQUEST_ID.scope(Arc::from(request_id), call).await
}

/// The request id of the call that runs here, if it is a client's.
pub(super) fn request_id() -> Option<Arc<str>> {
    REQUEST_ID.try_with(Arc::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_id_reaches_as_far_as_its_call() {
        assert_eq!(request_id(), None);
        let seen = with_request_id("r1", async { request_id() }).await;
        assert_eq!(seen.as_deref(), Some("r1"));
        assert_eq!(request_id(), None);
    }
}
