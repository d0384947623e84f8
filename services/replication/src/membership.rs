//! Reconciles the voters of a group with the configuration, through the log.
//!
//! A replica that lost its disk has lost its votes and acknowledgements, so it must never take part again under its old
//! id. The next configuration gives it a new one. The leader adds the new replica as a learner, waits until it has
//! caught up, and then replaces the old replica with it. Moving a replica to another node takes two configurations: one
//! with both replicas, and one without the old one.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{sleep, timeout};

use crate::group::Group;
use crate::types::StoredMembership;

/// How soon a leader checks again while its group differs from the configuration and nothing changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one step of a change: a learner must receive the whole state.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a leader that leaves the group may take to find a transfer target.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

/// Liveness of replicas.
pub(crate) trait ReplicaLiveness {
    /// Returns true if the node is connected, has the replica and knows these rules.
    fn is_connected(&self, replica: u64, node: &str, rules: u16) -> impl Future<Output = bool> + Send;
}

/// While this replica leads, brings its group to the configured members.
pub(crate) async fn reconcile_membership(group: Group, presence: impl ReplicaLiveness) {
    let mut members = group.subscribe_locations();
    let mut metrics = group.raft().server_metrics();
    let mut has_warned = false;
    loop {
        let configured: BTreeSet<u64> = members.borrow_and_update().configured.keys().copied().collect();
        let change = MembershipChange::towards(&configured, &metrics.borrow_and_update().membership_config);
        let is_needed = change.is_needed();
        if is_needed && group.leadership().is_some() {
            if !is_later(&change.additions, &change.removals) {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(group = group.id(), ?change, "outdated cluster config ignored");
                }
            } else if are_connected(&change.additions, &group, &presence).await {
                tokio::select! {
                    () = apply_change(&group, &configured, &change) => {}
                    // Restarted towards the later configuration; completed steps are part of it or are undone.
                    changed = members.changed() => if changed.is_err() { return } else { continue },
                }
            }
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { return },
            changed = members.changed() => if changed.is_err() { return },
            () = sleep(POLL_INTERVAL), if is_needed => {}
        }
    }
}

async fn are_connected(replicas: &BTreeSet<u64>, group: &Group, presence: &impl ReplicaLiveness) -> bool {
    let places = group.locations();
    for replica in replicas {
        let Some(node) = places.get(replica) else { return false };
        if !presence.is_connected(*replica, node, group.rules()).await {
            return false;
        }
    }
    true
}

/// The difference between a group and its configuration.
#[derive(Debug)]
struct MembershipChange {
    additions: BTreeSet<u64>,
    removals: BTreeSet<u64>,
    /// Learners that must not join any more.
    stale_learners: BTreeSet<u64>,
    is_joint: bool,
}

impl MembershipChange {
    fn towards(configured: &BTreeSet<u64>, now: &StoredMembership) -> Self {
        let voters: BTreeSet<u64> = now.voter_ids().collect();
        if voters.is_empty() {
            let none = BTreeSet::new;
            return Self { additions: none(), removals: none(), stale_learners: none(), is_joint: false };
        }
        let learners = now.membership().learner_ids();
        Self {
            additions: configured.difference(&voters).copied().collect(),
            removals: voters.difference(configured).copied().collect(),
            stale_learners: learners.filter(|learner| !configured.contains(learner)).collect(),
            is_joint: now.get_joint_config().len() > 1,
        }
    }

    fn is_needed(&self) -> bool {
        self.is_joint || !(self.additions.is_empty() && self.removals.is_empty() && self.stale_learners.is_empty())
    }
}

/// New replicas get ids above all ids used before. A node that still runs with an earlier configuration must not revert
/// the group.
fn is_later(joining: &BTreeSet<u64>, leaving: &BTreeSet<u64>) -> bool {
    match (joining.first(), leaving.last()) {
        (Some(joining), Some(leaving)) => joining > leaving,
        _ => true,
    }
}

/// Applies the change step by step; the next leader check retries a failed step.
async fn apply_change(group: &Group, configured: &BTreeSet<u64>, change: &MembershipChange) {
    let id = group.id();
    let MembershipChange { additions, removals, stale_learners, .. } = change;
    tracing::info!(group = id, ?additions, ?removals, ?stale_learners, "membership change started");
    for replica in additions {
        match timeout(STEP_TIMEOUT, group.raft().add_learner(*replica, (), true)).await {
            Ok(Ok(_)) => tracing::info!(group = id, replica, "learner caught up"),
            Ok(Err(error)) => return tracing::warn!(group = id, replica, %error, "adding learner failed"),
            Err(_) => return tracing::warn!(group = id, replica, "learner catch-up timed out"),
        }
    }
    if removals.contains(&group.replica()) {
        // A remaining replica removes it as leader: a leader that removes itself leaves the group without one for a
        // while.
        let is_over = group.transfer_leadership_among(|replica| configured.contains(&replica), TRANSFER_TIMEOUT).await;
        return tracing::info!(group = id, is_over, "leadership transfer attempted: replica leaving group");
    }
    if !stale_learners.is_empty() {
        let removal = openraft::ChangeMembers::RemoveNodes(stale_learners.clone());
        match timeout(STEP_TIMEOUT, group.raft().change_membership(removal, false)).await {
            Ok(Ok(_)) => tracing::info!(group = id, ?stale_learners, "stale learners removed"),
            Ok(Err(error)) => return tracing::warn!(group = id, %error, "learner removal failed"),
            Err(_) => return tracing::warn!(group = id, "learner removal timed out"),
        }
    }
    match timeout(STEP_TIMEOUT, group.raft().change_membership(configured.clone(), false)).await {
        Ok(Ok(_)) => tracing::info!(group = id, ?additions, ?removals, "membership change completed"),
        Ok(Err(error)) => tracing::warn!(group = id, %error, "membership change failed"),
        Err(_) => tracing::warn!(group = id, "membership change timed out"),
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
