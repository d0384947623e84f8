//! What the tests share: one process for all of them, an account for each, and the three doors.

pub(crate) mod callers;
mod env;
pub(crate) mod frontends;
pub(crate) mod raw;
pub(crate) mod rest;
mod session_socket;
pub(crate) mod sse;

pub(crate) use env::{Tenant, TestEnv, account_metadata_server, create_tenant, operator_client, server};
pub(crate) use frontends::{AcquireRequest, FencingLockClient, Holder, LockClient, Mode, State};
pub(crate) use rest::RestClient;
pub(crate) use session_socket::{SessionSocket, lock_message};

use std::future::Future;
use std::time::{Duration, Instant};

/// How long a condition may take to come true on a machine that is busy with other tests.
pub(crate) const CONDITION_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Makes a test of each function for each door: of those that need fencing tokens not for dlocks.
macro_rules! through {
    (every_frontend: $($every:ident),* $(,)?; with_tokens: $($tokens:ident),* $(,)?;) => {
        $crate::support::through!(@frontend rest $($every)* $($tokens)*);
        $crate::support::through!(@frontend grpc $($every)* $($tokens)*);
        $crate::support::through!(@frontend dlocks $($every)*);
    };
    (@frontend $frontend:ident) => {};
    (@frontend $frontend:ident $($name:ident)+) => {
        mod $frontend {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::support::TestEnv::<$crate::support::frontends::$frontend::Client>::open().await).await;
                }
            )+
        }
    };
}
pub(crate) use through;
