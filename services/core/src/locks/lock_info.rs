//! Making what a session has what its client knows of.

use std::collections::BTreeSet;

use super::end::Ending;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::Place;
use super::sessions::Session;
use super::work::Work;
use crate::{Answer, BelievedHold, FencingToken, LockInfo, LostHold, Mode, Path, Reason, Refusal, SessionNumber};

impl Work<'_> {
    /// Holds that the client does not list end, unless a pending request claims them; waits that are not pending end.
    /// What it believes to hold and does not, it is told.
    pub(super) fn lock_info(&mut self, info: &LockInfo) -> Result<Answer, Refusal> {
        if !self.admit(&info.session_id, info.message)? {
            return Ok(Answer::Ignored);
        }
        let pending: BTreeSet<&str> = info.pending.iter().map(String::as_str).collect();
        let listed: BTreeSet<(FencingToken, Mode, &Path)> =
            info.held.iter().map(|hold| (hold.fencing_token, hold.mode, &hold.path)).collect();
        let session = &self.ns.sessions[info.session_id.as_str()];
        let (number, owners) = (session.facts.number, session.owners.iter().copied().collect::<Vec<OwnerId>>());
        let waits = self.waits_but(&owners, &pending);
        let (mut unlisted, mut claimed) = (Vec::new(), BTreeSet::new());
        for (path, node, owner) in self.holds_of(&owners) {
            let Some(hold) = self.ns.hold(node, owner) else { continue };
            if self.is_pending(hold, &pending) {
                claimed.insert(node);
            } else if !listed.contains(&(hold.token, hold.mode, &path)) {
                unlisted.push((node, owner));
            }
        }
        for place in &waits {
            self.end_wait(*place, Reason::Ended);
        }
        for (node, owner) in &unlisted {
            self.end_hold(*node, *owner, Ending::Released);
        }
        // A hold that a pending request changed is said by the answer to that.
        let is_claimed =
            |hold: &BelievedHold| self.ns.tree.find(&hold.path).is_some_and(|node| claimed.contains(&node));
        let lost = info.held.iter().filter(|hold| !self.ns.has(number, hold) && !is_claimed(hold));
        let lost: Vec<&BelievedHold> = lost.collect();
        self.run();
        Ok(Answer::Reconciled {
            lost: lost.into_iter().map(|hold| self.ns.lost(hold)).collect(),
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
    fn is_pending(&self, hold: &Hold, pending: &BTreeSet<&str>) -> bool {
        let mut requests = hold.requests().iter();
        requests.any(|request| pending.contains(&*self.ns.granted.get(*request).request_id))
    }
}

impl Namespace {
    /// What a session lost of what its client believes to hold.
    pub(super) fn lost_of(&self, session: &Session, held: &[BelievedHold]) -> Vec<LostHold> {
        let lost = held.iter().filter(|hold| !self.has(session.facts.number, hold));
        lost.map(|hold| self.lost(hold)).collect()
    }

    /// Whether a session has a hold as its client believes.
    fn has(&self, number: SessionNumber, believed: &BelievedHold) -> bool {
        let node = self.tree.find(&believed.path);
        let hold = node.and_then(|node| self.tree.get(node).holds.of_token(believed.fencing_token));
        hold.is_some_and(|hold| {
            let session = self.owners.name(hold.owner).session();
            hold.mode == believed.mode && session.is_some_and(|session| session.number == number)
        })
    }

    fn lost(&self, believed: &BelievedHold) -> LostHold {
        LostHold {
            path: believed.path.clone(),
            fencing_token: believed.fencing_token,
            current_owner: self.current_owner(&believed.path),
        }
    }
}
