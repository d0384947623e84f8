//! The state machines seen from outside: through `advance`, `apply`, `query`, `snapshot` and `restore` alone.

mod accounts;
mod chain;
mod golden;
mod locks_acquire;
mod locks_end;
mod locks_limits;
mod locks_model;
mod model;
mod namespaces;
mod outbox_waits;
mod replay;
mod support;
