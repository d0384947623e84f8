//! Measurements that need a cluster of their own, because they fill it, kill its processes or watch all that happens.

mod failover;
mod growth;
mod holds;
mod idle;
mod latch_waiters;
mod noisy_neighbour;
mod overload;
mod rebuild;
mod watchers;

pub use failover::{Failover, failover};
pub use growth::{Growth, Step, growth};
pub use holds::{Holds, holds};
pub use idle::{Idle, idle, idle_etcd};
pub use latch_waiters::{LatchWaiters, latch_waiters};
pub use noisy_neighbour::{LoadLevel, NoisyNeighbour, noisy_neighbour};
pub use overload::{Overload, overload};
pub use rebuild::{Rebuild, rebuild};
pub use watchers::{Watchers, watchers};

/// Lets the load run for so long.
async fn wait_for(length: std::time::Duration) {
    tokio::time::sleep(length).await;
}
