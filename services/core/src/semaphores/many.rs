//! Ends much at once: everything of a session or a process, or of all that a reset or a report does not spare.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use super::end::WaitEnd;
use super::key::{Key, Scope};
use super::{Semaphores, Spot};
use crate::kit::Kit;
use crate::{FencingToken, Path, PermitsEnd, Reason, Revision, SessionEnd, SessionNumber};

/// How far a search through all holds and waits has come: the last key that it visited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PermitCursor {
    process_id: Option<String>,
    session: Option<(SessionNumber, String)>,
    request_id: String,
    path: Path,
    holder: Option<String>,
}

impl PermitCursor {
    fn of(key: &Key) -> Self {
        let (process_id, session) = match &key.scope {
            Scope::Process(process_id) => (Some(process_id.to_string()), None),
            Scope::Session { number, session_id } => (None, Some((*number, session_id.to_string()))),
        };
        Self {
            process_id,
            session,
            request_id: key.request_id.to_string(),
            path: Path::clone(&key.path),
            holder: key.holder.as_deref().map(str::to_owned),
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
            path: Arc::new(self.path.clone()),
            holder: self.holder.as_deref().map(Into::into),
        }
    }
}

/// One hold or waiting request, for those who choose what ends.
pub(crate) struct PermitItem<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) request_id: &'a str,
    /// The thread of the session.
    pub(crate) holder: Option<&'a str>,
    /// The token, unless it waits.
    pub(crate) token: Option<FencingToken>,
    /// The revision at which the hold or the wait began.
    pub(crate) since: Revision,
}

/// What ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndedPermits {
    pub(crate) holds: u64,
    pub(crate) waits: u64,
}

impl Semaphores {
    /// Returns the number of holds and waiting requests of a session.
    pub(crate) fn count_of_session(&self, number: SessionNumber) -> u64 {
        self.of_sessions.get(&number).copied().unwrap_or_default()
    }

    /// Returns the number of holds and waiting requests.
    pub(crate) fn things(&self) -> u64 {
        self.index.len() as u64
    }

    /// Returns the revision of the oldest hold or wait of a process.
    pub(crate) fn oldest_of_process(&self, process_id: &str) -> Option<Revision> {
        self.of_scope(&Scope::Process(process_id.into())).map(|(_, spot)| spot.since()).min()
    }

    /// Returns the revision of the oldest hold or wait of each process.
    pub(crate) fn oldest_of_processes(&self) -> BTreeMap<Arc<str>, Revision> {
        let mut oldest = BTreeMap::new();
        for (key, spot) in &self.index {
            if let Scope::Process(process_id) = &key.scope {
                let since = oldest.entry(Arc::clone(process_id)).or_insert(Revision::MAX);
                *since = spot.since().min(*since);
            }
        }
        oldest
    }

    fn of_scope<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = (&'a Arc<Key>, Spot)> {
        let all = self.index.range::<Key, _>(Key::first_of(scope, "")..);
        all.take_while(move |(key, _)| key.scope == *scope).map(|(key, spot)| (key, *spot))
    }

    /// Returns the hold or the waiting request of a scope with that id; of a process, the first by path.
    pub(super) fn named(&self, scope: &Scope, request_id: &str) -> Option<(&Arc<Key>, Spot)> {
        let (key, spot) = self.index.range::<Key, _>(Key::first_of(scope, request_id)..).next()?;
        (key.scope == *scope && *key.request_id == *request_id).then_some((key, *spot))
    }

    /// Returns whether a session has a hold or a waiting request with that id.
    pub(crate) fn has_request(&self, scope: &Scope, request_id: &str) -> bool {
        self.named(scope, request_id).is_some()
    }

    /// Releases the hold or ends the wait of a session with that id. Returns whether there was one.
    pub(crate) fn release_named(&mut self, kit: &mut Kit<'_>, scope: &Scope, request_id: &str) -> bool {
        let Some((key, spot)) = self.named(scope, request_id) else { return false };
        let key = Arc::clone(key);
        self.end(kit, &key.path, spot);
        true
    }

    /// Returns whether a session has that hold.
    pub(crate) fn has_hold(&self, number: SessionNumber, path: &Path, token: FencingToken) -> bool {
        self.hold(path, token).is_some_and(|hold| hold.is_held() && hold.key.session() == Some(number))
    }

    /// Ends what a session that has ended has, at most as much as the slice allows: first its waits, then its holds. If
    /// it expired, holds with a transition time enter their transition, since an instant of the shard clock. Returns
    /// whether all is done.
    pub(crate) fn end_session(&mut self, kit: &mut Kit<'_>, scope: &Scope, why: SessionEnd, since_ms: u64) -> bool {
        if is_enabled(Mutation::SemSessionKept) {
            return true;
        }
        let is_left = |(key, spot): &(&Arc<Key>, Spot)| match spot {
            Spot::Wait(_) => true,
            Spot::Hold(token) => self.hold(&key.path, *token).is_some_and(|hold| hold.is_held()),
        };
        let mut left: Vec<(Arc<Key>, Spot)> =
            self.of_scope(scope).filter(is_left).map(|(key, spot)| (Arc::clone(key), spot)).collect();
        left.sort_by_key(|(_, spot)| (matches!(spot, Spot::Hold(_)), spot.since()));
        for (key, spot) in left {
            if kit.budget.ends == 0 {
                return false;
            }
            kit.budget.ends -= 1;
            match spot {
                Spot::Hold(token) if why == SessionEnd::Expired => self.end_phase(kit, &key.path, token, since_ms),
                spot => self.end(kit, &key.path, spot),
            }
        }
        true
    }

    /// Marks a session that has ended and still has something here: nothing is granted to it.
    pub(crate) fn begin_session_end(&mut self, number: SessionNumber) {
        self.ending.insert(number);
    }

    /// Removes the mark.
    pub(crate) fn finish_session_end(&mut self, number: SessionNumber) {
        self.ending.remove(&number);
    }

    /// Ends everything of a scope, or of all, that `goes`, from a cursor on: waits and holds in the order of the index.
    /// Returns the cursor if the slice did not suffice.
    pub(crate) fn end_all(
        &mut self,
        kit: &mut Kit<'_>,
        (scope, after): (Option<&Scope>, Option<PermitCursor>),
        cause: PermitsEnd,
        ended: &mut EndedPermits,
        goes: impl Fn(&PermitItem<'_>) -> bool,
    ) -> Option<PermitCursor> {
        let mut reached = after.map(|after| Arc::new(after.key()));
        loop {
            let next = self.next_key(scope, reached.as_deref());
            let (key, spot) = next?;
            if kit.budget.ends == 0 || kit.budget.visits == 0 {
                return reached.as_deref().map(PermitCursor::of).or_else(|| Some(PermitCursor::start()));
            }
            kit.budget.visits -= 1;
            if goes(&item_of(&key, spot)) {
                kit.budget.ends -= 1;
                match spot {
                    Spot::Hold(token) => {
                        ended.holds += 1;
                        self.end_hold(kit, &key.path, token, cause);
                    }
                    Spot::Wait(rank) => {
                        ended.waits += 1;
                        self.end_wait(kit, &key.path, rank, WaitEnd::Refused(Reason::Ended));
                    }
                }
            }
            reached = Some(key);
        }
    }

    /// Returns how many holds and waits of a scope, or of all, go.
    pub(crate) fn count(&self, scope: Option<&Scope>, goes: impl Fn(&PermitItem<'_>) -> bool) -> usize {
        let first = scope.map(|scope| Key::first_of(scope, ""));
        let start = first.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let all = self.index.range::<Key, _>((start, Bound::Unbounded));
        let all = all.take_while(|(key, _)| scope.is_none_or(|scope| key.scope == *scope));
        all.filter(|(key, spot)| goes(&item_of(key, **spot))).count()
    }

    fn next_key(&self, scope: Option<&Scope>, after: Option<&Key>) -> Option<(Arc<Key>, Spot)> {
        let first = scope.map(|scope| Key::first_of(scope, ""));
        let start = match (after, &first) {
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        let (key, spot) = self.index.range::<Key, _>((start, Bound::Unbounded)).next()?;
        scope.is_none_or(|scope| key.scope == *scope).then(|| (Arc::clone(key), *spot))
    }
}

impl PermitCursor {
    /// Returns the cursor before the first key.
    fn start() -> Self {
        Self { process_id: None, session: None, request_id: String::new(), path: Path::default(), holder: None }
    }
}

pub(super) fn item_of(key: &Key, spot: Spot) -> PermitItem<'_> {
    PermitItem {
        scope: &key.scope,
        request_id: &key.request_id,
        holder: key.holder.as_deref(),
        token: if let Spot::Hold(token) = spot { Some(token) } else { None },
        since: spot.since(),
    }
}

impl Spot {
    /// Returns the revision at which the hold or the wait began.
    fn since(self) -> Revision {
        match self {
            Self::Hold(token) => token,
            Self::Wait(rank) => rank.wait.0,
        }
    }
}
