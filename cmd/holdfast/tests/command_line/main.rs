//! The command line as its users call it, against a running service.

mod asking;
mod barriers;
mod conditions;
mod detached;
mod latches;
mod loss;
mod output;
mod pools;
mod running;
mod semaphores;
mod support;
