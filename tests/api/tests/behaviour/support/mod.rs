//! What the tests share: one process for all of them, an account for each, and the three frontends.

pub(crate) mod callers;
mod env;
pub(crate) mod frontends;
pub(crate) mod raw;

pub(crate) use env::{Tenant, TestEnv, account_metadata_server, create_tenant, operator_client, server};
pub(crate) use frontends::{AcquireRequest, FencingLockClient, Holder, LockClient, Mode, State};
pub(crate) use holdfast_testkit::{RestClient, SessionSocket, lock_message};

use std::future::Future;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// How long a condition may take to come true on a machine that is busy with other tests: longer than it ever should.
pub(crate) const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One segment of a path.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// Creates an account in the shared process with a namespace `ns`, and connects to it.
pub(crate) async fn connect_new_tenant() -> (RestClient, SessionSocket) {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let socket = SessionSocket::connect(&tenant.rest).await;
    (tenant.rest, socket)
}

/// Waits until a condition holds.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Makes a test of each function for each frontend: of those that need fencing tokens not for dlocks.
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
