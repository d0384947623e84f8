//! What the console does in a browser, beside a running service.

mod asking;
mod barriers;
mod cluster;
mod events;
mod force_release;
mod keyboard;
mod keys;
mod latches;
mod lock_tables;
mod offline;
mod pools;
mod queue;
mod revoked_key;
mod screens;
mod screenshots;
mod semaphores;
mod sign_in;
mod tree;
