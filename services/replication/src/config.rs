//! openraft configuration.

use std::time::Duration;

use holdfast_mutations::{Mutation, is_enabled};
use openraft::{Config, ConfigError, SnapshotPolicy};

use crate::options::GroupOptions;
use crate::timing::Timing;

/// Returns the openraft configuration of a replica. `elect` enables elections from the start.
pub(crate) fn raft_config(options: &GroupOptions, timing: Timing, elect: bool) -> Result<Config, ConfigError> {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: options.group.clone(),
        heartbeat_interval: ms(timing.heartbeat),
        election_timeout_min: ms(timing.election_min),
        election_timeout_max: ms(timing.election_max),
        heartbeat_min_interval: Some(0),
        enable_elect: elect,
        enable_pre_vote: Some(true),
        // The state is in memory, and the leader replicates before its local sync. A leader restored without an
        // election could therefore write a different entry at an index that it had already sent.
        enable_leader_restore: Some(is_enabled(Mutation::RestoredLeadership)),
        // The log compactor triggers snapshots and purges.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        purge_batch_size: 256,
        // Three quarters of it may pass without progress; there is no limit for the whole.
        install_snapshot_timeout: 40_000,
        api_channel_size: Some(4_096),
        notification_channel_size: Some(4_096),
        backoff: "200ms".into(),
        ..Config::default()
    }
    .validate()
}
