//! The voters of a group: brought to what the configuration names, through the log.
//!
//! A replica that lost its disk has forgotten its votes and what it acknowledged, so that it must never take part under
//! its old id again. The next configuration gives it a new one; the leader takes the new replica in as a learner, waits
//! until it has caught up, and then puts it in the place of the old one.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{sleep, timeout};

use crate::group::Group;

/// How soon a leader looks again when its group is not as configured, and nothing has changed since.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long one step of a change may take: a learner has to get the whole state.
const STEP_WITHIN: Duration = Duration::from_secs(120);

/// Counts the acknowledgements of voters, and of nobody else, until the replica stops.
pub(crate) async fn follow_voters(group: Group) {
    let mut metrics = group.raft().server_metrics();
    loop {
        {
            let now = metrics.borrow_and_update();
            let configs = now.membership_config.get_joint_config();
            if !configs.is_empty() {
                group.acks().set_voters(configs.clone());
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

/// While this replica leads, brings its group to the members that it is configured with. `is_there` says whether a
/// replica has introduced itself.
pub(crate) async fn keep_as_configured(group: Group, is_there: impl Fn(u64) -> bool) {
    let configured: BTreeSet<u64> = group.members().keys().copied().collect();
    let mut metrics = group.raft().server_metrics();
    let mut has_warned = false;
    loop {
        let voters: BTreeSet<u64> = metrics.borrow_and_update().membership_config.voter_ids().collect();
        let differs = !voters.is_empty() && voters != configured;
        if differs && group.leads().is_some() {
            let joining: BTreeSet<u64> = configured.difference(&voters).copied().collect();
            let leaving: BTreeSet<u64> = voters.difference(&configured).copied().collect();
            if !is_later(&joining, &leaving) {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(shard = group.shard(), ?joining, ?leaving, "the cluster config is an old one");
                }
            } else if joining.iter().all(|replica| is_there(*replica)) {
                change(&group, &configured, &joining, &leaving).await;
            }
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { return },
            () = sleep(LOOK_EVERY), if differs => {}
        }
    }
}

/// New replicas get ids that were never used, above all others. A node that still runs with an earlier configuration
/// must not turn the group back.
fn is_later(joining: &BTreeSet<u64>, leaving: &BTreeSet<u64>) -> bool {
    match (joining.first(), leaving.last()) {
        (Some(joining), Some(leaving)) => joining > leaving,
        _ => true,
    }
}

/// One step after the other; what fails is taken up at the next look.
async fn change(group: &Group, configured: &BTreeSet<u64>, joining: &BTreeSet<u64>, leaving: &BTreeSet<u64>) {
    let shard = group.shard();
    tracing::info!(shard, ?joining, ?leaving, "changing the members of the group");
    for replica in joining {
        match timeout(STEP_WITHIN, group.raft().add_learner(*replica, (), true)).await {
            Ok(Ok(_)) => tracing::info!(shard, replica, "the new replica has caught up"),
            Ok(Err(error)) => return tracing::warn!(shard, replica, %error, "the new replica is not taken in yet"),
            Err(_) => return tracing::warn!(shard, replica, "the new replica has not caught up yet"),
        }
    }
    match timeout(STEP_WITHIN, group.raft().change_membership(configured.clone(), false)).await {
        Ok(Ok(_)) => tracing::info!(shard, ?joining, ?leaving, "the members of the group are as configured"),
        Ok(Err(error)) => tracing::warn!(shard, %error, "the members of the group are not as configured yet"),
        Err(_) => tracing::warn!(shard, "the members of the group are not as configured yet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_forward_to_later_replicas_only() {
        let ids = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        assert!(is_later(&ids(&[100]), &ids(&[2])));
        assert!(!is_later(&ids(&[2]), &ids(&[100])));
        assert!(is_later(&ids(&[100]), &ids(&[])));
        assert!(is_later(&ids(&[]), &ids(&[3])));
    }
}
