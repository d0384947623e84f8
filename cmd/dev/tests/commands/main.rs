//! The subcommands of `dev`, by running the program.

mod calls;
mod cluster_up;
mod offline;
mod running;
