//! Nodes through their public API: shards that break on one, and the groups that it starts.

mod broken_shards;
mod ended_processes;
mod groups;
mod mutations;
