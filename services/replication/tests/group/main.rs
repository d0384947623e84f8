//! Groups under test: openraft's storage suite, and three hosts in one process over real sockets. One program, since
//! linking openraft costs more than running most of this.

mod busy;
mod common;

mod deaths;
mod failover;
mod forming;
mod handshake;
mod leases;
mod planted;
mod proposing;
mod replaced;
mod restart;
mod rules;
mod snapshot;
mod stopping;
mod storage_suite;
