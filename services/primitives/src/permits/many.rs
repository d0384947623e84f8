//! Ends much at once: everything of a session or a process, or of all that a reset or a report does not spare.

use std::ops::Bound;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use super::key::WaitEnd;
use super::key::{Key, Name, Scope};
use super::{EndingSession, HoldOrWait, Load, PermitTable};
use crate::budget::Budget;
use crate::kit::Kit;
use crate::{FencingToken, Kind, Path, PermitsEnd, Reason, ReportedPermits, Revision, SessionEnd, SessionNumber};

/// How far a search through all holds and waits has come: the last key that it visited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PermitCursor {
    process_id: Option<String>,
    session: Option<(SessionNumber, String)>,
    request_id: String,
    kind: Kind,
    path: Path,
    holder: Option<String>,
    /// Whether the process of that key is old enough to go, as decided at its first key.
    is_old: bool,
}

impl PermitCursor {
    fn of(key: &Key, is_old: bool) -> Self {
        let (process_id, session) = match &key.scope {
            Scope::Process(process_id) => (Some(process_id.to_string()), None),
            Scope::Session { number, session_id } => (None, Some((*number, session_id.to_string()))),
        };
        Self {
            process_id,
            session,
            request_id: key.request_id.to_string(),
            kind: key.name.kind,
            path: key.name.path.clone(),
            holder: key.holder.as_deref().map(str::to_owned),
            is_old,
        }
    }

    fn key(&self) -> Key {
        let scope = match (&self.process_id, &self.session) {
            (_, Some((number, session_id))) => {
                Scope::Session { number: *number, session_id: session_id.as_str().into() }
            }
            (process_id, None) => Scope::Process(process_id.as_deref().unwrap_or_default().into()),
        };
        Key {
            scope,
            request_id: self.request_id.as_str().into(),
            name: Arc::new(Name::new(self.kind, &self.path)),
            holder: self.holder.as_deref().map(Into::into),
        }
    }
}

/// One hold or waiting request, for those who choose what ends.
pub struct PermitItem<'a> {
    /// Whose it is.
    pub scope: &'a Scope,
    /// The id of the request.
    pub request_id: &'a str,
    /// The thread of the session.
    pub holder: Option<&'a str>,
    /// The token, unless it waits.
    pub token: Option<FencingToken>,
    /// The revision at which the hold or the wait began.
    pub since: Revision,
}

/// What is to end.
pub struct Choice<'a> {
    /// Everything of a scope, or of all.
    pub scope: Option<Scope>,
    /// Returns whether a hold or a waiting request goes, unless it is of a process that is not old enough.
    pub goes: &'a dyn Fn(&PermitItem<'_>) -> bool,
    /// Returns whether a process is old enough, given its id and the revision of its oldest hold or wait here.
    pub is_old: &'a dyn Fn(&str, Revision) -> bool,
}

/// Whether the process that a search has come to is old enough. That is decided at its first key, because it appears
/// younger with each hold and each wait that ends.
#[derive(Default)]
struct AgeCheck {
    process: Option<Arc<str>>,
    is_old: bool,
}

/// What ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedPermits {
    /// Holds that ended.
    pub holds: u64,
    /// Waits that ended.
    pub waits: u64,
}

impl PermitTable {
    /// Returns the number of holds and waiting requests of a session.
    pub fn count_of_session(&self, number: SessionNumber) -> u64 {
        self.of_sessions.get(&number).map_or(0, Load::things)
    }

    /// Returns the number of holds of a session, and that of its waiting requests.
    pub fn holds_and_waits_of_session(&self, number: SessionNumber) -> (u64, u64) {
        self.of_sessions.get(&number).map_or((0, 0), |load| (load.holds, load.waits))
    }

    /// Returns how many ends of a slice it costs to end what a session has.
    pub fn ends_of_session(&self, number: SessionNumber) -> u64 {
        self.of_sessions.get(&number).map_or(0, |load| load.ends)
    }

    /// Returns the number of holds and waiting requests.
    pub fn things(&self) -> u64 {
        self.index.len() as u64
    }

    /// Returns the revision of the oldest hold or wait of a process.
    pub fn oldest_of_process(&self, process_id: &str) -> Option<Revision> {
        let process_id: Arc<str> = process_id.into();
        let (owner, since) = self.of_processes.range((Arc::clone(&process_id), Revision::MIN)..).next()?;
        (*owner == process_id).then_some(*since)
    }

    /// Returns the hold or the waiting request of a scope with that id; of a process, the first by path.
    pub(super) fn named(&self, scope: &Scope, request_id: &str) -> Option<(&Arc<Key>, HoldOrWait)> {
        let (key, entry) = self.index.range::<Key, _>(Key::first_of(scope, request_id)..).next()?;
        (key.scope == *scope && *key.request_id == *request_id).then_some((key, *entry))
    }

    /// Returns whether a session has a hold or a waiting request with that id.
    pub fn has_request(&self, scope: &Scope, request_id: &str) -> bool {
        self.named(scope, request_id).is_some()
    }

    /// Releases the hold or ends the wait of a session with that id. Returns whether there was one.
    pub fn release_named(&mut self, kit: &mut Kit<'_>, scope: &Scope, request_id: &str) -> bool {
        let Some((key, entry)) = self.named(scope, request_id) else { return false };
        let key = Arc::clone(key);
        self.end(kit, &key.name, entry);
        true
    }

    /// Returns whether a session has that hold, under the request id that its client reports.
    pub fn has_hold(&self, number: SessionNumber, reported: &ReportedPermits) -> bool {
        let name = Name::new(reported.kind, &reported.path);
        self.hold(&name, reported.fencing_token).is_some_and(|hold| {
            let is_its = hold.key.session() == Some(number) && *hold.key.request_id == *reported.request_id;
            is_its && hold.is_held()
        })
    }

    /// Ends what a session that has ended has, at most as much as the slice allows. If it expired, holds with a
    /// transition time enter their transition, since an instant of the shard clock. Returns whether all is done.
    pub fn end_session(&mut self, kit: &mut Kit<'_>, scope: &Scope, why: SessionEnd, since_ms: u64) -> bool {
        if is_enabled(Mutation::SemSessionKept) {
            return true;
        }
        let number = if let Scope::Session { number, .. } = scope { Some(*number) } else { None };
        let ending = number.and_then(|number| self.ending.get(&number));
        let mut reached = ending.and_then(|ending| ending.reached.clone());
        while let Some((key, entry)) = self.next_key(Some(scope), reached.as_deref()) {
            let is_left = match entry {
                HoldOrWait::Wait(_) => true,
                HoldOrWait::Hold(token) => self.hold(&key.name, token).is_some_and(|hold| hold.is_held()),
            };
            if is_left && kit.budget.ends == 0 {
                if let Some(ending) = number.and_then(|number| self.ending.get_mut(&number)) {
                    ending.reached = reached;
                }
                return false;
            }
            let ends = if is_left { self.ends_of(&key, entry) } else { 0 };
            kit.budget.ends = kit.budget.ends.saturating_sub(ends);
            match entry {
                _ if !is_left => {}
                HoldOrWait::Hold(token) if why == SessionEnd::Expired => {
                    self.end_phase(kit, &key.name, token, since_ms)
                }
                entry => self.end(kit, &key.name, entry),
            }
            reached = Some(key);
        }
        true
    }

    /// Marks a session that has ended and still has something here: nothing is granted to it, and its holds count as
    /// over since an instant of the shard clock.
    pub fn begin_session_end(&mut self, number: SessionNumber, why: SessionEnd, since_ms: u64) {
        let has_expired = why == SessionEnd::Expired;
        self.ending.insert(number, EndingSession { since_ms, has_expired, reached: None });
    }

    /// Removes the mark.
    pub fn finish_session_end(&mut self, number: SessionNumber) {
        self.ending.remove(&number);
    }

    /// Ends what is to end, from a cursor on: waits and holds in the order of the index. The slice must have something
    /// left. Returns the cursor if the slice did not suffice.
    pub fn end_all(
        &mut self,
        kit: &mut Kit<'_>,
        choice: &Choice<'_>,
        after: Option<PermitCursor>,
        cause: PermitsEnd,
        ended: &mut EndedPermits,
    ) -> Option<PermitCursor> {
        let mut age = AgeCheck::at(after.as_ref());
        let mut reached = after.map(|after| Arc::new(after.key()));
        loop {
            let (key, entry) = self.next_key(choice.scope.as_ref(), reached.as_deref())?;
            if kit.budget.ends == 0 || kit.budget.visits == 0 {
                return reached.as_deref().map(|key| PermitCursor::of(key, age.is_old));
            }
            kit.budget.visits -= 1;
            if self.is_old(choice, &mut age, &key) && (choice.goes)(&item_of(&key, entry)) {
                kit.budget.ends = kit.budget.ends.saturating_sub(self.ends_of(&key, entry));
                match entry {
                    HoldOrWait::Hold(token) => {
                        ended.holds += 1;
                        self.end_hold(kit, &key.name, token, cause);
                    }
                    HoldOrWait::Wait(rank) => {
                        ended.waits += 1;
                        self.end_wait(kit, &key.name, rank, WaitEnd::Refused(Reason::Ended));
                    }
                }
            }
            reached = Some(key);
        }
    }

    /// Returns what it costs to end all that is to end, in ends of a slice. If that is more than the slice has, or if
    /// not all is found within its visits, returns `usize::MAX`.
    pub fn count(&self, choice: &Choice<'_>, budget: &mut Budget) -> usize {
        let first = choice.scope.as_ref().map(|scope| Key::first_of(scope, ""));
        let start = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let all = self.index.range::<Key, _>((start, Bound::Unbounded));
        let (mut count, mut age) = (0, AgeCheck::default());
        for (key, entry) in all.take_while(|(key, _)| choice.scope.as_ref().is_none_or(|scope| key.scope == *scope)) {
            let Some(visits) = budget.visits.checked_sub(1) else { return usize::MAX };
            budget.visits = visits;
            if self.is_old(choice, &mut age, key) && (choice.goes)(&item_of(key, *entry)) {
                count += self.ends_of(key, *entry);
            }
            if count > budget.ends {
                return usize::MAX;
            }
        }
        count
    }

    /// Returns how many ends of a slice the end of a hold or a wait costs.
    pub(super) fn ends_of(&self, key: &Key, entry: HoldOrWait) -> usize {
        let HoldOrWait::Hold(token) = entry else { return 1 };
        self.hold(&key.name, token).map_or(1, |hold| usize::try_from(hold.ends()).unwrap_or(usize::MAX))
    }

    /// Returns whether a key is of a session, or of a process that is old enough.
    fn is_old(&self, choice: &Choice<'_>, age: &mut AgeCheck, key: &Key) -> bool {
        let Scope::Process(process_id) = &key.scope else { return true };
        if age.process.as_ref() != Some(process_id) {
            let oldest = self.oldest_of_process(process_id).unwrap_or(Revision::MAX);
            let is_old = (choice.is_old)(process_id, oldest);
            *age = AgeCheck { process: Some(Arc::clone(process_id)), is_old };
        }
        age.is_old
    }

    fn next_key(&self, scope: Option<&Scope>, after: Option<&Key>) -> Option<(Arc<Key>, HoldOrWait)> {
        let first = scope.map(|scope| Key::first_of(scope, ""));
        let start = match (after, &first) {
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let (key, entry) = self.index.range::<Key, _>((start, Bound::Unbounded)).next()?;
        scope.is_none_or(|scope| key.scope == *scope).then(|| (Arc::clone(key), *entry))
    }
}

impl AgeCheck {
    /// Returns that of a search which continues after a cursor.
    fn at(cursor: Option<&PermitCursor>) -> Self {
        let process = cursor.and_then(|cursor| cursor.process_id.as_deref());
        Self { process: process.map(Into::into), is_old: cursor.is_some_and(|cursor| cursor.is_old) }
    }
}

pub(super) fn item_of(key: &Key, entry: HoldOrWait) -> PermitItem<'_> {
    PermitItem {
        scope: &key.scope,
        request_id: &key.request_id,
        holder: key.holder.as_deref(),
        token: if let HoldOrWait::Hold(token) = entry { Some(token) } else { None },
        since: entry.since(),
    }
}

impl HoldOrWait {
    /// Returns the revision at which the hold or the wait began.
    pub(super) fn since(self) -> Revision {
        match self {
            Self::Hold(token) => token,
            Self::Wait(rank) => rank.wait.0,
        }
    }
}
