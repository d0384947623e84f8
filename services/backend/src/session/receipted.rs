//! Restores the request table of a resumed session from its client's receipts.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_api::Resource;
use holdfast_api::session_message::{GrantedLock, Lock};
use holdfast_types::{FencingToken, Metadata, Mode, Path};

use super::request_table::{RequestState, RequestTable};

/// A granted request whose receipt is good.
#[derive(Debug)]
pub(super) struct ReceiptedRequest {
    lock: Arc<Lock>,
    /// In order of path.
    claims: BTreeMap<Vec<String>, (Mode, FencingToken)>,
}

impl ReceiptedRequest {
    /// Takes a request from a list. A path that it names twice counts once: no receipt says so of it.
    pub(super) fn of(granted: &GrantedLock) -> Self {
        let claims = granted.resources.iter().map(|held| (held.path.0.clone(), (held.mode, held.fencing_token)));
        let claims: BTreeMap<_, _> = claims.collect();
        let lock = Lock {
            request_id: granted.request_id.clone(),
            resources: claims.iter().map(|(path, (mode, _))| Resource { path: path.clone(), mode: *mode }).collect(),
            holder: granted.holder.clone(),
            transition_ms: 0,
            at_least_ms: 0,
            metadata: Metadata::new(),
            allow_upgrade: false,
            only_try: false,
        };
        Self { lock: Arc::new(lock), claims }
    }

    /// Returns what its receipt is about.
    pub(super) fn claims(&self) -> Vec<(&[String], Mode, FencingToken)> {
        self.claims.iter().map(|(path, (mode, token))| (path.as_slice(), *mode, *token)).collect()
    }
}

/// Returns what a request asks for, in order of path: each path once, in the stronger mode, without a token.
pub(super) fn requested_claims(resources: &[Resource]) -> Vec<(&[String], Mode, FencingToken)> {
    let mut modes: BTreeMap<&[String], Mode> = BTreeMap::new();
    for resource in resources {
        let mode = modes.entry(&resource.path).or_insert(resource.mode);
        *mode = resource.mode.max(*mode);
    }
    modes.into_iter().map(|(path, mode)| (path, mode, 0)).collect()
}

impl RequestTable {
    /// Returns what a request asks for, as in its receipts.
    pub(super) fn requested_claims(&self, request_id: &str) -> Option<Vec<(&[String], Mode, FencingToken)>> {
        self.requests.get(request_id).map(|request| requested_claims(&request.lock.resources))
    }

    /// Returns what a request asked for with the tokens that it holds. `None` if it does not hold all of it.
    pub(super) fn granted_claims(&self, request_id: &str) -> Option<Vec<(&[String], Mode, FencingToken)>> {
        let request = self.requests.get(request_id).filter(|request| request.state == RequestState::Granted)?;
        let mut claims = requested_claims(&request.lock.resources);
        for (path, _, token) in &mut claims {
            if request.lost.iter().any(|lost| lost.0 == *path) {
                return None;
            }
            let mut holds = self.holds.get(*path)?.iter().rev();
            *token = holds.find(|(_, hold)| hold.holder.as_ref() == Some(&request.lock.holder))?.0;
        }
        Some(claims)
    }

    /// Enters a request that was shown, for as much of it as the client lists as held. The rest of it is lost.
    pub(super) fn enter_receipted(&mut self, shown: &ReceiptedRequest) {
        let mut lost = Vec::new();
        for (path, (mode, token)) in &shown.claims {
            let hold = self.holds.get_mut(path).and_then(|holds| holds.get_mut(*token));
            let Some(hold) = hold.filter(|hold| hold.holder.as_ref().is_none_or(|it| *it == shown.lock.holder)) else {
                lost.push(Path(path.clone()));
                continue;
            };
            hold.mode = if hold.is_listed { *mode } else { hold.mode.max(*mode) };
            (hold.holder, hold.is_listed) = (Some(shown.lock.holder.clone()), false);
        }
        if lost.len() < shown.claims.len() {
            self.put(&shown.lock, RequestState::Granted);
            if let Some(request) = self.requests.get_mut(&shown.lock.request_id) {
                request.lost = lost;
            }
        }
    }

    /// Returns the holds of which no request is known.
    pub(super) fn unproven(&self) -> Vec<(Vec<String>, FencingToken)> {
        let holds = self.holds.iter().flat_map(|(path, holds)| holds.iter().map(move |it| (path, it)));
        let unknown = holds.filter(|(_, (_, hold))| hold.is_listed || hold.holder.is_none());
        unknown.map(|(path, (token, _))| (path.clone(), token)).collect()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Receipt, ReportedHold};

    use super::*;

    fn hold(path: &str, mode: Mode, fencing_token: FencingToken) -> ReportedHold {
        ReportedHold { path: Path::flat(path), mode, fencing_token }
    }

    fn shown(request_id: &str, holder: Option<&str>, resources: &[ReportedHold]) -> ReceiptedRequest {
        ReceiptedRequest::of(&GrantedLock {
            request_id: request_id.to_owned(),
            holder: holder.map(str::to_owned),
            resources: resources.to_vec(),
            receipt: Receipt::new(0, [0; 16]),
        })
    }

    #[test]
    fn of_what_is_shown_only_what_is_listed_counts() {
        let mut table = RequestTable::new("se_1");
        table.add_reported(hold("a", Mode::Write, 7));
        table.add_reported(hold("c", Mode::Read, 9));
        table.enter_receipted(&shown("r1", None, &[hold("a", Mode::Read, 7), hold("b", Mode::Write, 8)]));
        assert!(!table.knows_requests());
        assert_eq!(table.unproven(), [(vec!["c".to_owned()], 9)], "no receipt is about it");
        assert_eq!(table.mode(&Path::flat("a"), 7), Some(Mode::Read), "the receipt counts, not the list");
        table.enter_receipted(&shown("r2", None, &[hold("c", Mode::Read, 10)]));
        assert_eq!(table.state("r2"), None, "it is about another grant");
        table.enter_receipted(&shown("r3", Some("t"), &[hold("c", Mode::Read, 9)]));
        assert!(table.knows_requests() && table.unproven().is_empty());
        table.enter_receipted(&shown("r4", Some("u"), &[hold("c", Mode::Read, 9)]));
        assert_eq!(table.state("r4"), None, "it is of another thread");
        assert_eq!(table.granted_claims("r1"), None, "a part of it is lost");
        let path = ["c".to_owned()];
        assert_eq!(table.granted_claims("r3"), Some(vec![(path.as_slice(), Mode::Read, 9)]));
    }

    #[test]
    fn a_path_that_is_asked_for_twice_counts_once_in_the_stronger_mode() {
        let resource = |path: &str, mode| Resource { path: vec![path.to_owned()], mode };
        let asked = [resource("b", Mode::Read), resource("a", Mode::Read), resource("b", Mode::Write)];
        let claims: Vec<_> =
            requested_claims(&asked).into_iter().map(|(path, mode, _)| (path[0].as_str(), mode)).collect();
        assert_eq!(claims, [("a", Mode::Read), ("b", Mode::Write)]);
    }
}
