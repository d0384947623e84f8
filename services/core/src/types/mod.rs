//! The vocabulary that commands, queries, replies and the gateway share.

mod account;
mod audit;
mod bounds;
mod command;
mod effect;
mod error;
mod event;
pub(crate) mod first_limits;
mod flat;
mod ids;
mod limits;
mod lock;
mod lock_command;
mod namespace;
mod query;
mod response;
mod rules;
mod session;
mod usage;

pub use account::*;
pub use audit::*;
pub use bounds::*;
pub use command::*;
pub use effect::*;
pub use error::*;
pub use event::*;
pub use ids::*;
pub use limits::*;
pub use lock::*;
pub use lock_command::*;
pub use namespace::*;
pub use query::*;
pub use response::*;
pub use rules::*;
pub use session::*;
pub use usage::*;
