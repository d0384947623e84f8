//! What tests of several crates share.
//!
//! Purpose: peers that do what a test tells them, over real sockets.
//!
//! Deliberately unknown here: what is tested with them. Nothing of the crates that use it in their own tests is used here.

pub mod fake_node;
