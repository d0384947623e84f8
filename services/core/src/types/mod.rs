//! The vocabulary that commands, queries, replies and the gateway share.

mod account;
mod answer;
mod audit;
mod bounds;
mod command;
mod effect;
mod event;
pub(crate) mod first_limits;
mod flat;
mod ids;
mod limits;
mod lock;
mod lock_command;
mod namespace;
mod query;
mod refusal;
mod rules;
mod session;
mod usage;

pub use account::*;
pub use answer::*;
pub use audit::*;
pub use bounds::*;
pub use command::*;
pub use effect::*;
pub use event::*;
pub use ids::*;
pub use limits::*;
pub use lock::*;
pub use lock_command::*;
pub use namespace::*;
pub use query::*;
pub use refusal::*;
pub use rules::*;
pub use session::*;
pub use usage::*;
