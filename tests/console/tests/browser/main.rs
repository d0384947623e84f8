//! What the console does in a browser, beside a running service.

mod cluster;
mod force_release;
mod keyboard;
mod keys;
mod offline;
mod queue;
mod revoked_key;
mod screens;
mod screenshots;
mod sign_in;
mod tree;
