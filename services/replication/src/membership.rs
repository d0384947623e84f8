//! The voters of a group: brought to what the configuration names, through the log.
//!
//! A replica that lost its disk has forgotten its votes and what it acknowledged, so that it must never take part under
//! its old id again. The next configuration gives it a new one; the leader takes the new replica in as a learner, waits
//! until it has caught up, and then puts it in the place of the old one. A replica that moves to another node does so in
//! two configurations: one with both, one without the old one.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{sleep, timeout};

use crate::group::Group;
use crate::types::StoredMembership;

/// How soon a leader looks again when its group is not as configured, and nothing has changed since.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long one step of a change may take: a learner has to get the whole state.
const STEP_WITHIN: Duration = Duration::from_secs(120);
/// How long a leader that leaves the group may take to find a successor.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(3);

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

/// Who is there.
pub(crate) trait Presence {
    /// Whether the node is connected, has the replica and knows those rules.
    fn is_there(&self, replica: u64, node: &str, rules: u16) -> impl Future<Output = bool> + Send;
}

/// While this replica leads, brings its group to the members that it is configured with.
pub(crate) async fn keep_as_configured(group: Group, presence: impl Presence) {
    let mut members = group.configured();
    let mut metrics = group.raft().server_metrics();
    let mut has_warned = false;
    loop {
        let configured: BTreeSet<u64> = members.borrow_and_update().configured.keys().copied().collect();
        let change = Change::towards(&configured, &metrics.borrow_and_update().membership_config);
        let is_needed = change.is_needed();
        if is_needed && group.leads().is_some() {
            if !is_later(&change.joining, &change.leaving) {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(shard = group.shard(), ?change, "the cluster config is an old one");
                }
            } else if are_there(&change.joining, &group, &presence).await {
                tokio::select! {
                    () = make(&group, &configured, &change) => {}
                    // Begun anew towards the later configuration; what was done already is a part of it, or undone.
                    changed = members.changed() => if changed.is_err() { return } else { continue },
                }
            }
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { return },
            changed = members.changed() => if changed.is_err() { return },
            () = sleep(LOOK_EVERY), if is_needed => {}
        }
    }
}

async fn are_there(replicas: &BTreeSet<u64>, group: &Group, presence: &impl Presence) -> bool {
    let places = group.places();
    for replica in replicas {
        let Some(node) = places.get(replica) else { return false };
        if !presence.is_there(*replica, node, group.rules()).await {
            return false;
        }
    }
    true
}

/// What is between a group and its configuration.
#[derive(Debug)]
struct Change {
    joining: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
    /// Learners that are not to join any more.
    strays: BTreeSet<u64>,
    is_joint: bool,
}

impl Change {
    fn towards(configured: &BTreeSet<u64>, now: &StoredMembership) -> Self {
        let voters: BTreeSet<u64> = now.voter_ids().collect();
        if voters.is_empty() {
            let none = BTreeSet::new;
            return Self { joining: none(), leaving: none(), strays: none(), is_joint: false };
        }
        let learners = now.membership().learner_ids();
        Self {
            joining: configured.difference(&voters).copied().collect(),
            leaving: voters.difference(configured).copied().collect(),
            strays: learners.filter(|learner| !configured.contains(learner)).collect(),
            is_joint: now.get_joint_config().len() > 1,
        }
    }

    fn is_needed(&self) -> bool {
        self.is_joint || !(self.joining.is_empty() && self.leaving.is_empty() && self.strays.is_empty())
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

/// One step after the other; what fails is taken up at the next look, by whoever leads then.
async fn make(group: &Group, configured: &BTreeSet<u64>, change: &Change) {
    let shard = group.shard();
    let Change { joining, leaving, strays, .. } = change;
    tracing::info!(shard, ?joining, ?leaving, ?strays, "changing the members of the group");
    for replica in joining {
        match timeout(STEP_WITHIN, group.raft().add_learner(*replica, (), true)).await {
            Ok(Ok(_)) => tracing::info!(shard, replica, "the new replica has caught up"),
            Ok(Err(error)) => return tracing::warn!(shard, replica, %error, "the new replica is not taken in yet"),
            Err(_) => return tracing::warn!(shard, replica, "the new replica has not caught up yet"),
        }
    }
    if leaving.contains(&group.replica()) {
        // Its leader takes it out who stays: a leader that takes itself out leaves the shard without one for a while.
        let is_over = group.hand_over_among(|replica| configured.contains(&replica), HAND_OVER_WITHIN).await;
        return tracing::info!(shard, is_over, "this replica leaves the group, and handed its leadership over");
    }
    if !strays.is_empty() {
        let removal = openraft::ChangeMembers::RemoveNodes(strays.clone());
        match timeout(STEP_WITHIN, group.raft().change_membership(removal, false)).await {
            Ok(Ok(_)) => tracing::info!(shard, ?strays, "learners that are not to join are gone"),
            Ok(Err(error)) => return tracing::warn!(shard, %error, "a learner can't be removed yet"),
            Err(_) => return tracing::warn!(shard, "a learner can't be removed yet"),
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
