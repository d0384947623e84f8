//! Making what a session has what its client knows of.

use std::collections::{BTreeMap, BTreeSet};

use super::end::Ending;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::Place;
use super::sessions::Session;
use super::tree::NodeId;
use super::work::Work;
use crate::{Answer, BelievedHold, FencingToken, LockInfo, LostHold, Reason, Refusal};

impl Work<'_> {
    /// Holds that the client does not list end, unless a pending request claims them; waits that are not pending end.
    /// What it believes to hold and does not, it is told.
    pub(super) fn lock_info(&mut self, info: &LockInfo) -> Result<Answer, Refusal> {
        if !self.admit(&info.session_id, info.message)? {
            return Ok(Answer::Ignored);
        }
        let pending: BTreeSet<&str> = info.pending.iter().map(String::as_str).collect();
        let believed: BTreeMap<FencingToken, Vec<&BelievedHold>> =
            info.held.iter().fold(BTreeMap::new(), |mut believed, hold| {
                believed.entry(hold.fencing_token).or_insert_with(Vec::new).push(hold);
                believed
            });
        let owners: Vec<OwnerId> = self.ns.sessions[info.session_id.as_str()].owners.iter().copied().collect();
        let waits = self.waits_but(&owners, &pending);
        let kept = self.holds_of(&owners);
        let (kept, unlisted): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(path, node, owner)| {
            let Some(hold) = self.ns.hold(*node, *owner) else { return false };
            let listed = believed.get(&hold.token).into_iter().flatten();
            let is_listed = listed.into_iter().any(|other| other.path == *path && other.mode == hold.mode);
            is_listed || self.is_pending(*node, *owner, &pending)
        });
        for place in &waits {
            self.end_wait(*place, Reason::Ended);
        }
        for (_, node, owner) in &unlisted {
            self.end_hold(*node, *owner, Ending::Released);
        }
        self.run();
        let kept: BTreeSet<NodeId> = kept.into_iter().map(|(_, node, _)| node).collect();
        let lost = info.held.iter().filter(|hold| !self.is_known(hold, &owners, &kept, &pending));
        let lost = lost.map(|hold| self.ns.lost(hold));
        Ok(Answer::Reconciled {
            lost: lost.collect(),
            ended_holds: unlisted.len() as u64,
            ended_waits: waits.len() as u64,
        })
    }

    /// The waits of a session that are none of the pending requests.
    fn waits_but(&self, owners: &[OwnerId], pending: &BTreeSet<&str>) -> Vec<Place> {
        let places = owners.iter().flat_map(|owner| self.ns.owners.get(*owner).places());
        let is_pending = |place: &Place| {
            let request_id = self.ns.waiting(*place).request_id.as_deref();
            request_id.is_some_and(|request_id| pending.contains(request_id))
        };
        let mut places: Vec<Place> = places.filter(|place| !is_pending(place)).collect();
        places.sort_unstable();
        places
    }

    /// Whether a pending request claims the hold.
    fn is_pending(&self, node: NodeId, owner: OwnerId, pending: &BTreeSet<&str>) -> bool {
        let requests = self.ns.hold(node, owner).map_or(&[][..], |hold| hold.requests());
        requests.iter().any(|request| pending.contains(&*self.ns.granted.get(*request).request_id))
    }

    /// Whether a hold is as the client believes; one that a pending request changed is said by the answer to that.
    fn is_known(
        &self,
        believed: &BelievedHold,
        owners: &[OwnerId],
        kept: &BTreeSet<NodeId>,
        pending: &BTreeSet<&str>,
    ) -> bool {
        let Some(node) = self.ns.tree.find(&believed.path).filter(|node| kept.contains(node)) else { return false };
        owners.iter().any(|owner| {
            self.ns.hold(node, *owner).is_some_and(|hold| {
                let is_it = hold.token == believed.fencing_token && hold.mode == believed.mode;
                is_it || self.is_pending(node, *owner, pending)
            })
        })
    }
}

impl Namespace {
    /// What a session lost of what its client believes to hold.
    pub(super) fn lost_of(&self, session: &Session, held: &[BelievedHold]) -> Vec<LostHold> {
        let is_lost = |believed: &&BelievedHold| {
            let node = self.tree.find(&believed.path);
            let mut holds = session.owners.iter().filter_map(|owner| self.hold(node?, *owner));
            !holds.any(|hold| hold.token == believed.fencing_token && hold.mode == believed.mode)
        };
        held.iter().filter(is_lost).map(|hold| self.lost(hold)).collect()
    }

    fn lost(&self, believed: &BelievedHold) -> LostHold {
        LostHold {
            path: believed.path.clone(),
            fencing_token: believed.fencing_token,
            current_owner: self.current_owner(&believed.path),
        }
    }
}
