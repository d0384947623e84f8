//! The state machines seen from outside: through `advance`, `apply`, `query`, `snapshot` and `restore` alone.

mod accounts;
mod audit;
mod chain;
mod golden;
mod later_limits;
mod locks_acquire;
mod locks_attempts;
mod locks_deadlock;
mod locks_end;
mod locks_input;
mod locks_limits;
mod locks_order;
mod locks_pages;
mod locks_reset;
mod locks_sessions;
mod locks_sets;
mod locks_slices;
mod locks_tangle;
mod locks_trees;
mod locks_waits;
mod namespaces;
mod outbox_waits;
mod replay;
mod support;
mod usage;
mod waiting;
