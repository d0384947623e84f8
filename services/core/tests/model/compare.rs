//! Everything that can be seen of the engine and of the model is equal.

use holdfast_core::{
    Acquire, AcquireOutcome, Claim, CommandError, CycleStep, Enqueued, Event, Kind, Kinds, Owner, Path, Query, Reason,
    ReportedHold, Response, WaitId,
};

use crate::random::{self, SeededRng, namespace};
use crate::state::{Hold, Model, OwnerKey, conflict, related};
use crate::{Run, graph};

impl Run {
    fn query(&self, query: &Query) -> Response {
        self.core.query(self.now_ms, query).outcome.expect("the namespace is open")
    }

    /// Everything that can be seen is equal, and nobody waits for somebody who waits for them.
    pub(crate) fn compare(&self) {
        let (model, namespace) = (&self.model, namespace());
        self.core.verify();
        assert_eq!(self.core.revision(), model.revision);
        assert_eq!(self.core.next_deadline_ms(), model.next_deadline());
        assert_eq!(self.core.has_backlog(), model.has_backlog());
        for (index, one) in model.holds.iter().enumerate() {
            let excludes =
                |other: &Hold| one.who != other.who && conflict((&one.path, one.mode), (&other.path, other.mode));
            assert!(!model.holds[..index].iter().any(excludes), "two owners hold what excludes one another");
        }
        let charged = Query::AccountState { account: namespace.account };
        let Response::AccountState(charged) = self.query(&charged) else { panic!("not what is charged") };
        assert_eq!(charged, [(namespace.name.clone(), model.state_bytes())]);
        let graph = model.hold_edges();
        assert!(graph.iter().all(|(one, _)| !graph::reaches(&graph, one, one)), "a deadlock went unnoticed");
        for path in random::paths() {
            let query = Query::Lock { namespace: namespace.clone(), path: path.clone() };
            assert_eq!(self.query(&query), Response::Lock(model.view(&path, usize::MAX)));
            for hold in model.holds.iter().filter(|hold| hold.path == path) {
                let (namespace, path) = (namespace.clone(), path.clone());
                let query = Query::Check { namespace, path: path.clone(), fencing_token: hold.token };
                let Response::Checked { current, .. } = self.query(&query) else { panic!("not a check") };
                assert_eq!(current, model.is_current(&path, hold.token));
            }
        }
        let Response::Waits { waits, .. } =
            self.query(&Query::Waits { namespace: namespace.clone(), after: None, limit: 1_000 })
        else {
            panic!("not waits")
        };
        let mut expected: Vec<WaitId> = model.waits.iter().map(|wait| WaitId(wait.id)).collect();
        expected.sort();
        assert_eq!(waits.iter().map(|wait| wait.wait).collect::<Vec<_>>(), expected);
        for wait in &waits {
            let same = model.waits.iter().find(|other| WaitId(other.id) == wait.wait).expect("just compared");
            assert_eq!((&wait.owner, &wait.claims, wait.upgrade), (&same.who.owner, &same.claims, same.upgrade));
            assert_eq!((wait.attempt, wait.ends_at_ms), (same.attempts.highest(), same.ends_at_ms));
            assert_eq!(wait.request_id, same.request_id);
        }
        let open = model.sessions.iter().filter(|session| session.is_open);
        let mut expected: Vec<_> = open.map(|session| model.session_view(session)).collect();
        expected.sort_by(|one, other| one.session_id.cmp(&other.session_id));
        let sessions = self.query(&Query::Sessions { namespace, after: None, limit: 1_000 });
        assert_eq!(sessions, Response::Sessions { sessions: expected, more: false });
    }

    /// What can be asked for in many ways, asked in one of them.
    pub(crate) fn compare_queries(&self, dice: &mut SeededRng) {
        let (model, namespace) = (&self.model, namespace());
        for (index, wait) in model.waits.iter().enumerate() {
            let query = Query::WaitStatus { namespace: namespace.clone(), wait: WaitId(wait.id) };
            let not_granted = model.queue_status(index);
            let enqueued = Enqueued { wait: WaitId(wait.id), attempt: wait.attempts.highest(), not_granted };
            let outcome = AcquireOutcome::Enqueued(Box::new(enqueued));
            let mut paths: Vec<&Path> = wait.claims.iter().map(|claim| &claim.path).collect();
            paths.sort();
            let locks = paths.into_iter().map(|path| model.bounded_view(path)).collect();
            assert_eq!(self.query(&query), Response::Acquired { outcome, locks });
        }
        let nobody = Query::WaitStatus { namespace: namespace.clone(), wait: WaitId(model.revision + 1) };
        assert_eq!(self.core.query(self.now_ms, &nobody).outcome, Err(CommandError::NotWaiting));
        let open = model.sessions.iter().filter(|session| session.is_open).count();
        let (holds, waiting, sessions) = (model.holds.len() as u64, model.waits.len() as u64, open as u64);
        assert_eq!(
            self.query(&Query::Usage { namespace: namespace.clone() }),
            Response::Usage { holds, waiting, sessions }
        );
        assert_eq!((self.core.sessions().count(), self.core.waits().count()), (open, model.waits.len()));
        self.compare_pages(dice);
        self.compare_sessions(dice);
    }

    /// Pages of held locks and of waiting requests.
    fn compare_pages(&self, dice: &mut SeededRng) {
        let (model, namespace) = (&self.model, namespace());
        let (prefix, limit) = (dice.pick(&random::paths()), 1 + dice.below(4) as usize);
        let after = dice.one_in(2).then(|| dice.pick(&random::paths()));
        let from = after.clone().filter(|after| prefix.is_prefix_of(after));
        let mut held: Vec<&Path> = model.holds.iter().map(|hold| &hold.path).collect();
        held.retain(|path| prefix.is_prefix_of(path) && from.as_ref().is_none_or(|after| *path > after));
        held.sort();
        held.dedup();
        let (more, shown) = (held.len() > limit, held.iter().take(limit));
        let shown: Vec<_> = shown.map(|path| model.bounded_view(path)).collect();
        let query = Query::Locks { namespace: namespace.clone(), prefix, after, limit: limit as u32 };
        let Response::Locks { locks, next } = self.query(&query) else { panic!("not locks") };
        assert_eq!((locks, next.is_some()), (shown, more));
        let after = dice.below(model.revision + 1);
        let mut ids: Vec<u64> = model.waits.iter().map(|wait| wait.id).filter(|id| *id > after).collect();
        ids.sort_unstable();
        let query = Query::Waits { namespace, after: Some(WaitId(after)), limit: limit as u32 };
        let Response::Waits { waits, more } = self.query(&query) else { panic!("not waits") };
        assert_eq!(more, ids.len() > limit);
        ids.truncate(limit);
        assert_eq!(waits.iter().map(|wait| wait.wait.0).collect::<Vec<_>>(), ids);
    }

    /// Compares keep-alives, and the holds that a session believes to have.
    fn compare_sessions(&self, dice: &mut SeededRng) {
        let model = &self.model;
        for id in ["se_0", "se_1", "se_2"] {
            let (namespace, session_id) = (namespace(), id.to_owned());
            let session = model.session(id);
            let epoch = dice.one_in(2).then(|| session.map_or(1, |session| session.epoch - dice.below(2)));
            let expected = match (session, epoch) {
                (None, _) => Err(CommandError::SessionNotFound(session_id.clone())),
                (Some(session), Some(epoch)) if epoch < session.epoch => {
                    Err(CommandError::Superseded { epoch: session.epoch })
                }
                (Some(session), _) => Ok(Response::Session(model.session_view(session))),
            };
            let query = Query::KeepAlive { namespace: namespace.clone(), session_id: session_id.clone(), epoch };
            assert_eq!(self.core.query(self.now_ms, &query).outcome, expected);
            let mut held = vec![];
            for hold in &model.holds {
                let fencing_token = hold.token - u64::from(dice.one_in(4));
                held.push(ReportedHold { path: hold.path.clone(), mode: hold.mode, fencing_token });
            }
            let expected = match session {
                None => Err(CommandError::SessionNotFound(session_id.clone())),
                Some(session) => {
                    let lost = model.lost_holds(session.number, &held);
                    let asked = model.asked_of(session.number, &held);
                    Ok(Response::reconciled(lost, (0, 0), asked))
                }
            };
            let query = Query::ReconcileHolds { namespace, session_id, held };
            assert_eq!(self.core.query(self.now_ms, &query).outcome, expected);
        }
    }

    /// All events, and those of a prefix from some revision on, page by page.
    pub(crate) fn compare_events(&self, dice: &mut SeededRng) {
        let (all, prefix) = (&self.model.events, dice.pick(&random::paths()));
        let (gone, events) = all.split_at(self.model.compacted_events);
        let oldest = gone.last().map_or(0, |event| event.revision + 1);
        assert_eq!(self.events(oldest, &Path::default(), 1_000), *events);
        if oldest > 0 {
            let from_revision = Some(dice.below(oldest));
            let (namespace, prefix) = (namespace(), prefix.clone());
            let query = Query::Events { namespace, from_revision, prefix, kinds: Kinds::LOCKS, limit: 1 };
            let answer = self.core.query(self.now_ms, &query).outcome;
            assert_eq!(answer, Err(CommandError::RevisionCompacted { oldest }));
        }
        let from = oldest + dice.below(self.model.revision + 2 - oldest);
        let concerns = |event: &&Event| {
            let is_of_lock = event.kind.of() == Kind::Lock;
            let is_on = |path: &Path| prefix.is_prefix_of(path) || (is_of_lock && related(path, &prefix));
            let concerns = event.claims.iter().any(|claim| is_on(&claim.path));
            event.revision >= from && (prefix.0.is_empty() || concerns)
        };
        let expected: Vec<Event> = events.iter().filter(concerns).cloned().collect();
        assert_eq!(self.events(from, &prefix, 1 + dice.below(9) as u32), expected);
        let new = events.iter().filter(|event| event.fencing_token == Some(event.revision));
        assert!(new.map(|event| event.revision).is_sorted_by(|one, next| one < next), "tokens rise");
    }

    fn events(&self, mut from: u64, prefix: &Path, limit: u32) -> Vec<Event> {
        let mut events = vec![];
        loop {
            let (namespace, prefix) = (namespace(), prefix.clone());
            let query = Query::Events { namespace, from_revision: Some(from), prefix, kinds: Kinds::ALL, limit };
            let Response::Events { events: page, next_revision, more } = self.query(&query) else {
                panic!("not events")
            };
            events.extend(page);
            from = next_revision;
            if !more {
                return events;
            }
        }
    }
}

/// A session that has ended has its owners until all of it has ended; another may have its name meanwhile.
fn owners_named(model: &Model, owner: &Owner) -> Vec<OwnerKey> {
    let its = model.holds.iter().map(|hold| &hold.who).chain(model.waits.iter().map(|wait| &wait.who));
    let ending = its.filter(|who| who.owner == *owner && model.ending_session_of(who).is_some()).cloned();
    std::iter::once(model.owner_key(owner)).chain(ending).collect()
}

/// Every step of a cycle is so, and it comes back to whoever asked. Which cycle it is, if there are several, is open.
pub(crate) fn check_cycle(before: &Model, request: &Acquire, outcome: &mut AcquireOutcome) {
    let AcquireOutcome::Refused(not_granted) = outcome else { return };
    let cycle: Vec<CycleStep> = std::mem::take(&mut not_granted.cycle);
    assert_eq!(cycle.is_empty(), not_granted.reason != Reason::Deadlock);
    if cycle.is_empty() {
        return;
    }
    let asking = before.owner_key(&request.owner);
    let (mut at, mut owners) = (asking.clone(), Vec::new());
    for (index, step) in cycle.iter().enumerate() {
        let wanted: Vec<Claim> = if index == 0 {
            request.claims.clone()
        } else {
            before.waits.iter().filter(|wait| wait.who == at).flat_map(|wait| wait.claims.clone()).collect()
        };
        let in_the_way = |path: &Path, mode| {
            *path == step.path && wanted.iter().any(|claim| conflict((path, mode), (&claim.path, claim.mode)))
        };
        let is_so = |to: &OwnerKey| {
            let mut waits = before.waits.iter().filter(|wait| wait.who == *to).flat_map(|wait| &wait.claims);
            let mut holds = before.holds.iter().filter(|hold| hold.who == *to && !hold.is_kept);
            if step.waiting {
                waits.any(|claim| in_the_way(&claim.path, claim.mode))
            } else {
                holds.any(|hold| in_the_way(&hold.path, hold.mode))
            }
        };
        let to = owners_named(before, &step.owner).into_iter().find(is_so);
        at = to.unwrap_or_else(|| panic!("{at:?} does not wait for {step:?}"));
        owners.push(at.clone());
    }
    // One that is cut does not come back.
    assert!(at == asking || cycle.len() == before.bounds.max_cycle_in_reply);
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), cycle.len(), "nobody comes twice");
}
