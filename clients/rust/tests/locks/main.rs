//! Locks of the client against a running service.

#[path = "../support/mod.rs"]
mod support;

mod asking;
mod barriers;
mod cancelling;
mod conditions;
mod connections;
mod durability;
mod kinds;
mod latches;
mod loss;
mod mutual_exclusion;
mod paused_process;
mod pools;
mod recorder;
mod reentry;
mod semaphores;
mod service_view;
