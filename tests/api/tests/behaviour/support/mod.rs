//! What the tests share: one process for all of them, an account for each, and the three doors.

pub(crate) mod callers;
pub(crate) mod doors;
pub(crate) mod raw;
pub(crate) mod rest;
mod socket;
pub(crate) mod sse;
mod world;

pub(crate) use doors::{Ask, Door, Holder, Mode, State, TokenDoor};
pub(crate) use rest::Rest;
pub(crate) use socket::{Socket, lock};
pub(crate) use world::{Tenant, World, operator, server, tenant, trusting_server};

use std::future::Future;
use std::time::{Duration, Instant};

/// How long a condition may take to come true on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Makes a test of each function for each door: of those that need fencing tokens not for dlocks.
macro_rules! through {
    (every_door: $($every:ident),* $(,)?; with_tokens: $($tokens:ident),* $(,)?;) => {
        $crate::support::through!(@door rest $($every)* $($tokens)*);
        $crate::support::through!(@door grpc $($every)* $($tokens)*);
        $crate::support::through!(@door dlocks $($every)*);
    };
    (@door $door:ident) => {};
    (@door $door:ident $($name:ident)+) => {
        mod $door {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($crate::support::World::<$crate::support::doors::$door::Client>::open().await).await;
                }
            )+
        }
    };
}
pub(crate) use through;
