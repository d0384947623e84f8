//! The vocabulary that commands, queries, replies and the gateway share.

mod account;
mod command;
mod ids;
mod limits;
mod lock;
mod namespace;
mod refusal;

pub use account::*;
pub use command::*;
pub use ids::*;
pub use limits::*;
pub use lock::*;
pub use namespace::*;
pub use refusal::*;
