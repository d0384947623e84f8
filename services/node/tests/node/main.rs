//! Nodes through their public API: shards that break on one, the groups that it starts, and locks in its memory.

mod broken_shards;
mod ended_processes;
mod groups;
mod mutations;
mod soft_tables;
