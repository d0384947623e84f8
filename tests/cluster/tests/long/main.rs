//! Longer tests of the service in real processes, each of which `make` also runs alone, in its full size: see the
//! targets `bench-backup`, `chaos`, `failover`, `fault-tests`, `hostile`, `mixed`, `snapshots` and `soak`.
//!
//! Cases with a cluster take turns: see `Cluster`.

mod backup;
mod chaos;
mod corruption;
mod failover;
mod full_disk;
mod hostile_tenant;
mod large_snapshot;
mod lost_data;
mod mixed_versions;
mod resource_usage;
mod slow_network;
mod wall_clock;
