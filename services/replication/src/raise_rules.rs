//! Raises the rules of a group once every program that applies its entries knows the next ones.
//!
//! A replica stops at an entry whose rules it does not know. The leader therefore proposes later rules only when every
//! voter and learner has advertised them, and the cluster config allows them; until then a release can be rolled back.
//! A new group starts with the latest rules that all its nodes know. A group with a single replica raises its rules by
//! itself, since there is no other replica to wait for.
//!
//! A replica that starts does not know its group's rules before it has applied its snapshot and log. So a leader decides
//! only once it has applied an entry of its own term: then it has applied all earlier ones, and a group without rules is
//! new.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::entry::GroupCommand;
use crate::group::Group;
use crate::rules::KnownRules;

/// How soon a leader checks again while a member does not know the rules to be raised, or is disconnected.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader waits for the entry to be applied before it checks again.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(2);

/// The rules that a node has advertised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdvertisedRules {
    pub(crate) known: KnownRules,
    /// True if the node is connected now. A connection on which responses are owed ends within seconds when the peer
    /// stops responding, and at once when its process ends. The advertised rules therefore hold for the current
    /// process.
    pub(crate) is_connected: bool,
}

/// The other nodes.
pub(crate) trait Peers {
    /// Returns what this node has advertised.
    fn advertised_rules(&self, node: &str) -> Option<AdvertisedRules>;
}

/// While this replica leads, raises its group's rules whenever that is allowed and all members know them.
pub(crate) async fn run(group: Group, peers: impl Peers, mut allowed: watch::Receiver<Option<u16>>) {
    let mut metrics = group.raft().server_metrics();
    let mut states = group.subscribe_group_state();
    let mut term_start = group.subscribe_term_start();
    let mut reported = None;
    loop {
        let (leads_in, members) = {
            let now = metrics.borrow_and_update();
            let members = now.membership_config.membership();
            let members: BTreeSet<u64> = members.voter_ids().chain(members.learner_ids()).collect();
            (now.state.is_leader().then_some(now.vote.leader_id.term), members)
        };
        // First the term, then the state: the state is at least that of the term's first entry.
        let applied_term = term_start.borrow_and_update().term;
        let leads_in = leads_in.filter(|term| *term == applied_term);
        let active = states.borrow_and_update().rules;
        let allowed_now = *allowed.borrow_and_update();
        let is_alone = members.len() == 1 && group.members().len() == 1;
        let wanted = target_rules(active, allowed_now, is_alone, group.known_rules());
        let is_wanted = wanted > active;
        if let (Some(wanted), Some(term), true) = (wanted, leads_in, is_wanted) {
            let known = member_rules(&group, &peers, &members, active.is_none());
            match highest_common(wanted, &known).filter(|next| Some(*next) > active) {
                Some(next) => propose(&group, term, active, next, is_alone).await,
                None if reported != Some(wanted) => {
                    reported = Some(wanted);
                    let id = group.id();
                    tracing::warn!(
                        group = id,
                        ?active,
                        wanted,
                        ?known,
                        "the rules are not raised yet: not all know the next ones"
                    );
                }
                None => {}
            }
        }
        tokio::select! {
            changed = metrics.changed() => if changed.is_err() { return },
            changed = states.changed() => if changed.is_err() { return },
            changed = term_start.changed() => if changed.is_err() { return },
            changed = allowed.changed() => if changed.is_err() { return },
            () = sleep(POLL_INTERVAL), if is_wanted && leads_in.is_some() => {}
        }
    }
}

/// Returns the rules that a group should use, as far as this node is concerned. `active` is definite: `None` only in a
/// new group.
fn target_rules(active: Option<u16>, allowed: Option<u16>, is_alone: bool, own: KnownRules) -> Option<u16> {
    let latest = allowed.map_or(own.highest, |allowed| allowed.min(own.highest));
    let goes_by_itself = active.is_none() || is_alone;
    if allowed.is_some() || goes_by_itself { Some(latest) } else { active }
}

/// Returns the highest rules up to `wanted` that all members know.
fn highest_common(wanted: u16, known: &[Option<KnownRules>]) -> Option<u16> {
    let known: Option<Vec<KnownRules>> = known.iter().copied().collect();
    let known = known?;
    let next = known.iter().map(|known| known.highest).fold(wanted, u16::min);
    known.iter().all(|known| known.contains(next)).then_some(next)
}

/// Returns the rules known to each member; `None` for a member that has not advertised them on an open connection. A
/// new group only requires that members have advertised them, since it is bootstrapped once all nodes were met. A
/// member that this process never met counts as knowing only the lowest rules.
fn member_rules(group: &Group, peers: &impl Peers, members: &BTreeSet<u64>, begins: bool) -> Vec<Option<KnownRules>> {
    let (own, places) = (group.known_rules(), group.locations());
    let first = KnownRules { lowest: own.lowest, highest: own.lowest };
    let known = |member: &u64| {
        if *member == group.replica() {
            return Some(own);
        }
        let said = places.get(member).and_then(|node| peers.advertised_rules(node));
        match said {
            Some(said) if said.is_connected || begins => Some(said.known),
            None if begins => Some(first),
            _ => None,
        }
    };
    members.iter().map(known).collect()
}

async fn propose(group: &Group, term: u64, active: Option<u16>, next: u16, is_alone: bool) {
    let id = group.id();
    tracing::debug!(group = id, ?active, next, is_alone, "raising rules");
    match timeout(ENTRY_TIMEOUT, group.propose_structural(term, GroupCommand::RaiseRules(next))).await {
        Ok(Ok(())) => tracing::debug!(group = id, rules = next, "rules raised"),
        Ok(Err(error)) => tracing::warn!(group = id, %error, "raising rules failed"),
        Err(_) => tracing::warn!(group = id, "raising rules timed out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: KnownRules = KnownRules { lowest: 1, highest: 3 };

    #[test]
    fn a_group_that_runs_is_raised_only_as_far_as_its_config_allows() {
        assert_eq!(target_rules(Some(1), None, false, OWN), Some(1));
        assert_eq!(target_rules(Some(1), Some(2), false, OWN), Some(2));
        assert_eq!(target_rules(Some(1), Some(9), false, OWN), Some(3), "no further than this program knows");
    }

    #[test]
    fn a_group_that_begins_or_has_one_replica_goes_to_the_latest_unless_the_config_says_otherwise() {
        assert_eq!(target_rules(None, None, false, OWN), Some(3));
        assert_eq!(target_rules(None, Some(2), false, OWN), Some(2));
        assert_eq!(target_rules(Some(1), None, true, OWN), Some(3));
        assert_eq!(target_rules(Some(1), Some(2), true, OWN), Some(2));
    }

    #[test]
    fn all_have_to_know_the_next_rules() {
        let known = |lowest, highest| Some(KnownRules { lowest, highest });
        assert_eq!(highest_common(3, &[known(1, 3), known(1, 2)]), Some(2));
        assert_eq!(highest_common(3, &[known(1, 3), None]), None, "one has not said what it knows");
        assert_eq!(highest_common(3, &[known(1, 1), known(2, 3)]), None, "no rules are known to both");
        assert_eq!(highest_common(2, &[known(1, 9)]), Some(2));
    }
}
