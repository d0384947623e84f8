//! Groups under test: openraft's storage suite, and three hosts in one process over real sockets. One program, since
//! linking openraft costs more than running most of this.

mod apply_queues;
mod backpressure;
mod common;

mod bootstrap;
mod checkpoints;
mod exceptions;
mod failed_shards;
mod failover;
mod fast_failover;
mod handshake;
mod leases;
mod mutations;
mod proposing;
mod replica_replacement;
mod restart;
mod rules;
mod snapshot;
mod snapshot_parts;
mod snapshot_resume;
mod stopping;
mod storage_suite;
