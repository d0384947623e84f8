//! What the console does in a browser, beside a running service.

mod cluster;
mod forced;
mod keyboard;
mod keys;
mod offline;
mod pictures;
mod queue;
mod revoked;
mod screens;
mod signing_in;
mod tree;
