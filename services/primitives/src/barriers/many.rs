//! Ends many arrivals: those of a session or a process, or all that a reset or a report does not spare.

use std::ops::Bound;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use super::end::{Departure, end_of_session};
use super::party::{ArrivalKey, Party};
use super::{Barriers, EndingSession};
use crate::budget::Budget;
use crate::kit::Kit;
use crate::permits::{Choice, EndedPermits, Scope};
use crate::{ArrivalEnd, OnLoss, Path, Revision, SessionEnd, SessionNumber, arrival_units};

/// How far a search through all arrivals has come: the last one that it visited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalCursor {
    process_id: Option<String>,
    session: Option<(SessionNumber, String)>,
    holder: Option<String>,
    path: Path,
    /// Whether the process of that arrival is old enough to go, as decided at its first one.
    is_old: bool,
}

impl ArrivalCursor {
    fn of(key: &ArrivalKey, is_old: bool) -> Self {
        let (process_id, session) = match &key.party.scope {
            Scope::Process(process_id) => (Some(process_id.to_string()), None),
            Scope::Session { number, session_id } => (None, Some((*number, session_id.to_string()))),
        };
        let holder = key.party.holder.as_deref().map(str::to_owned);
        Self { process_id, session, holder, path: Path::clone(&key.path), is_old }
    }

    fn key(&self) -> ArrivalKey {
        let scope = match (&self.process_id, &self.session) {
            (_, Some((number, session_id))) => {
                Scope::Session { number: *number, session_id: session_id.as_str().into() }
            }
            (process_id, None) => Scope::Process(process_id.as_deref().unwrap_or_default().into()),
        };
        let party = Party { scope, holder: self.holder.as_deref().map(Into::into) };
        ArrivalKey { party, path: Arc::new(self.path.clone()) }
    }
}

/// Whether the process that a search has come to is old enough. That is decided at its first arrival, because it
/// appears younger with each one that ends.
#[derive(Default)]
struct AgeCheck {
    process: Option<Arc<str>>,
    is_old: bool,
}

impl Barriers {
    /// Ends the arrival of a session with that id. Returns whether there was one.
    pub fn release_named(&mut self, kit: &mut Kit<'_>, session: SessionNumber, request_id: &str) -> bool {
        let Some(key) = self.requests.get(&(session, Arc::<str>::from(request_id))).cloned() else { return false };
        let Some(number) = self.index.get(&key).copied() else { return false };
        self.end_arrival(kit, &key.path, number, ArrivalEnd::Released, Departure::Releases)
    }

    /// Returns how many ends of a slice it costs to end what a session has, or more than the slice has left.
    pub fn ends_of_session(&self, scope: &Scope, budget: &Budget) -> usize {
        let mut ends = 0;
        let mut reached: Option<ArrivalKey> = None;
        while let Some((key, number)) = self.next_arrival(Some(scope), reached.as_ref()) {
            ends += self.ends_of(&key, number);
            if ends > budget.ends {
                break;
            }
            reached = Some(key);
        }
        ends
    }

    /// Marks a session that has ended and still has arrivals, which count no more.
    pub fn begin_session_end(&mut self, number: SessionNumber, why: SessionEnd) {
        if self.count_of_session(number) > 0 {
            self.ending.insert(number, EndingSession { why, reached: None });
        }
    }

    /// Removes the mark.
    pub fn finish_session_end(&mut self, number: SessionNumber) {
        self.ending.remove(&number);
    }

    /// Ends the arrivals of a session that has ended, at most as many as the slice allows. Returns whether all are
    /// done.
    pub fn end_session(&mut self, kit: &mut Kit<'_>, scope: &Scope, why: SessionEnd) -> bool {
        if is_enabled(Mutation::BarrierGhost) {
            return true;
        }
        let session = if let Scope::Session { number, .. } = scope { Some(*number) } else { None };
        let ending = session.and_then(|session| self.ending.get(&session));
        let mut reached = ending.and_then(|ending| ending.reached.clone());
        while let Some((key, number)) = self.next_arrival(Some(scope), reached.as_ref()) {
            if kit.budget.ends == 0 {
                if let Some(ending) = session.and_then(|session| self.ending.get_mut(&session)) {
                    ending.reached = reached;
                }
                return false;
            }
            kit.budget.ends = kit.budget.ends.saturating_sub(self.ends_of(&key, number));
            self.end_arrival(kit, &key.path, number, end_of_session(why), Departure::Lost);
            reached = Some(key);
        }
        true
    }

    /// Ends what is to end, from a cursor on, in the order of owners. Before the arrivals of a process, `end_first`
    /// ends what it has elsewhere, and returns whether that is all. The slice must have something left. Returns the
    /// cursor if the slice did not suffice.
    pub fn end_all(
        &mut self,
        kit: &mut Kit<'_>,
        choice: &Choice<'_>,
        (after, cause): (Option<ArrivalCursor>, ArrivalEnd),
        ended: &mut EndedPermits,
        end_first: &mut dyn FnMut(&mut Kit<'_>, &Scope, &mut EndedPermits) -> bool,
    ) -> Option<ArrivalCursor> {
        let departure = if cause == ArrivalEnd::Released { Departure::Releases } else { Departure::Lost };
        let process = after.as_ref().and_then(|after| after.process_id.as_deref()).map(Into::into);
        let mut age = AgeCheck { process, is_old: after.as_ref().is_some_and(|after| after.is_old) };
        let mut reached = after.map(|after| after.key());
        loop {
            let (key, number) = self.next_arrival(choice.scope.as_ref(), reached.as_ref())?;
            if kit.budget.ends == 0 || kit.budget.visits == 0 {
                return reached.as_ref().map(|key| ArrivalCursor::of(key, age.is_old));
            }
            kit.budget.visits -= 1;
            if self.is_old(choice, &mut age, &key) && self.goes(choice, &key, number) {
                let is_process = matches!(key.party.scope, Scope::Process(_));
                // The next slice goes on with this process, which is old enough whatever is left of it.
                if is_process && (!end_first(kit, &key.party.scope, ended) || kit.budget.ends == 0) {
                    return Some(ArrivalCursor::of(&ArrivalKey::first_of(&key.party.scope), true));
                }
                kit.budget.ends = kit.budget.ends.saturating_sub(self.ends_of(&key, number));
                ended.holds += u64::from(self.end_arrival(kit, &key.path, number, cause, departure));
            }
            reached = Some(key);
        }
    }

    /// Returns what it costs to end all that is to end, in ends of a slice. If that is more than the slice has, or if
    /// not all is found within its visits, returns `usize::MAX`.
    pub fn count(&self, choice: &Choice<'_>, budget: &mut Budget) -> usize {
        let first = choice.scope.as_ref().map(ArrivalKey::first_of);
        let start = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let all = self.index.range::<ArrivalKey, _>((start, Bound::Unbounded));
        let is_its = |key: &ArrivalKey| choice.scope.as_ref().is_none_or(|scope| key.party.scope == *scope);
        let (mut count, mut age) = (0, AgeCheck::default());
        for (key, number) in all.take_while(|(key, _)| is_its(key)) {
            let Some(visits) = budget.visits.checked_sub(1) else { return usize::MAX };
            budget.visits = visits;
            if self.is_old(choice, &mut age, key) && self.goes(choice, key, *number) {
                count += self.ends_of(key, *number);
            }
            if count > budget.ends {
                return usize::MAX;
            }
        }
        count
    }

    /// Returns how many ends of a slice the end of an arrival costs: it may break or trip a generation.
    pub(super) fn ends_of(&self, key: &ArrivalKey, number: Revision) -> usize {
        let Some(barrier) = self.by_path.get(&key.path) else { return 1 };
        let ends_generation = match barrier.gathered.contains_key(&number) {
            true => barrier.facts.on_loss == OnLoss::Break,
            false => barrier.has_all(),
        };
        if ends_generation { arrival_units(barrier.gathered.len()) } else { 1 }
    }

    fn goes(&self, choice: &Choice<'_>, key: &ArrivalKey, number: Revision) -> bool {
        let arrival = self.by_path.get(&key.path).and_then(|barrier| barrier.arrival(number));
        let request_id = arrival.and_then(|arrival| arrival.request_id.as_deref());
        (choice.goes)(&key.item(number, request_id))
    }

    /// Returns whether an arrival is of a session, or of a process that is old enough.
    fn is_old(&self, choice: &Choice<'_>, age: &mut AgeCheck, key: &ArrivalKey) -> bool {
        let Scope::Process(process_id) = &key.party.scope else { return true };
        if age.process.as_ref() != Some(process_id) {
            let oldest = self.oldest_of_process(process_id).unwrap_or(Revision::MAX);
            let is_old = (choice.is_old)(process_id, oldest);
            *age = AgeCheck { process: Some(Arc::clone(process_id)), is_old };
        }
        age.is_old
    }

    fn next_arrival(&self, scope: Option<&Scope>, after: Option<&ArrivalKey>) -> Option<(ArrivalKey, Revision)> {
        let first = scope.map(ArrivalKey::first_of);
        let start = match (after, &first) {
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let (key, number) = self.index.range::<ArrivalKey, _>((start, Bound::Unbounded)).next()?;
        scope.is_none_or(|scope| key.party.scope == *scope).then(|| (key.clone(), *number))
    }
}
