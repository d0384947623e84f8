//! The command line as its users call it, against a running service.

mod losing;
mod running;
mod showing;
mod support;
mod taking;
