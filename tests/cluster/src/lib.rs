//! Tests of the whole service in real processes: three nodes and gateways, killed, paused, cut off and started again.
//!
//! Purpose: load clusters, break them, record what every client saw, and check the record against the specification.
//! The clusters come from `holdfast-testkit`.
//!
//! Deliberately unknown here: how the service works inside. Calls go through its public API, or through the internal
//! protocol if a test is about that.

pub mod checker;
mod cluster_parts;
mod disk_probe;
mod faults;
pub mod history;
mod history_file;
mod load;
mod lock_calls;
mod outage;
mod report;
mod wall_clock;

pub use cluster_parts::{lock_id, lock_ids, shards_of, start_router};
pub use disk_probe::{DiskProbe, Stalls, overlap};
pub use faults::Fault;
pub use history_file::{load as load_history, minimal_counterexample};
pub use load::{Load, LoadPlan};
pub use lock_calls::{call_lock, get_lock};
pub use outage::{DurationStats, Outages};
pub use report::{assert_no_violations, print_summary, read_all_locks};
pub use wall_clock::{WallClocks, offset_to};
