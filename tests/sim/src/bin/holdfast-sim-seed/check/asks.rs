//! What must hold of requests to release, and of what is kept from others for a time, after a step, by rules of its
//! own, without the core: a polite request ends nothing, one with force ends what is still held when its time is over,
//! once and not before, a hold shows the latest request, and its session is told of each once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::{
    AskRelease, Effect, Event, EventKind, Kind, LocksCommand, NamespaceRef, Owner, Path, PermitCommand, Phase, Reply,
    RequestId, Response,
};

use super::ask_holds::{Ending, HoldKey, Shown, concerns, endings, shown};
use super::invariants::Step;
use super::locks_replay::call_of;
use super::permits::StepContext;
use crate::ask_calls::call_of_reason;
use crate::history::AT_LEAST_KEY;

/// The latest request to release a hold.
#[derive(Debug, Clone)]
struct Latest {
    request_id: RequestId,
    reason: String,
    within_ms: Option<u64>,
    until_ms: Option<u64>,
    force: bool,
}

/// When a hold ends by force, and the call that says so.
#[derive(Debug, Clone, Copy)]
struct Forced {
    at_ms: u64,
    within_ms: u64,
    call: Option<usize>,
    /// When a replica first applied the entry that asks for it.
    asked_at: Duration,
}

/// What is known of a hold.
#[derive(Debug, Clone, Default)]
struct Known {
    token: u64,
    latest: Option<Latest>,
    forced: Option<Forced>,
    /// The call that it was granted to, and how long it is kept from others since then.
    granted_to: Option<usize>,
    /// When a replica first applied the entry that granted it.
    granted_at: Duration,
    /// The requests of those in [`Asks::of_sessions`] that are about it.
    asked_sessions: Vec<usize>,
    at_least_ms: u64,
    /// The shard clock until which it is.
    kept_until_ms: u64,
}

/// A hold that ended, and the least time that a call had asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedEnd {
    pub(crate) call: usize,
    pub(crate) token: u64,
    /// When a replica first applied the entry that ended it.
    pub(crate) at: Duration,
    pub(crate) promised_ms: u64,
    /// The same of the entry with the request that ended it; none of what was only kept from others.
    pub(crate) asked_at: Option<Duration>,
}

/// A request to release a lock that a session has.
#[derive(Debug, Clone)]
pub(crate) struct AskedSession {
    pub(crate) session: String,
    pub(crate) path: Path,
    pub(crate) token: u64,
    pub(crate) call: usize,
    /// When a replica first applied the entry that granted the lock, and the one that asks for it.
    pub(crate) granted_at: Duration,
    pub(crate) asked_at: Duration,
    /// The same of the next one that asks for it, and of the one that ends the hold.
    pub(crate) superseded: Option<Duration>,
    pub(crate) ended: Option<Duration>,
}

/// A hold that somebody asks for who has not asked for it before.
struct NewlyAsked {
    key: HoldKey,
    token: u64,
    is_held: bool,
}

/// All requests to release, and what became of the holds.
#[derive(Default)]
pub(crate) struct Asks {
    holds: BTreeMap<NamespaceRef, BTreeMap<HoldKey, Known>>,
    /// What was opened by force without a request: the highest token that there was.
    opened: BTreeMap<(NamespaceRef, Kind, Path), u64>,
    forced_requests: BTreeSet<RequestId>,
    /// The calls that asked for a hold, by its path and token.
    asked: BTreeSet<(Kind, Path, u64, usize)>,
    /// Holds for which somebody asked with force, and those that ended as by a deletion.
    forced: BTreeSet<(Kind, Path, u64)>,
    deleted: BTreeSet<(Kind, Path, u64)>,
    /// Holds that requests ended, and those that were kept from others.
    pub(crate) ends: Vec<TimedEnd>,
    pub(crate) of_sessions: Vec<AskedSession>,
    was_settled: bool,
}

impl Asks {
    /// Whether a call asked for a hold of a lock.
    pub(crate) fn has_asked(&self, path: &Path, token: u64, call: usize) -> bool {
        self.asked.contains(&(Kind::Lock, path.clone(), token, call))
    }

    /// Whether anybody asked for it with force.
    pub(crate) fn is_forced(&self, path: &Path, token: u64) -> bool {
        self.forced.contains(&(Kind::Lock, path.clone(), token))
    }

    /// Whether it ended as by a deletion.
    pub(crate) fn is_deleted(&self, path: &Path, token: u64) -> bool {
        self.deleted.contains(&(Kind::Lock, path.clone(), token))
    }

    /// Checks a step and the reply to its command, given the events of semaphores, pools and requests.
    pub(crate) fn check(
        &mut self,
        step: &Step<'_>,
        (context, reply): (&StepContext<'_>, Option<&Reply>),
        things: &[(NamespaceRef, Event)],
        applied_at: Duration,
        find: &mut dyn FnMut(String),
    ) {
        self.note_openings(step, context);
        let asked = match (context.command, reply.map(|reply| &reply.outcome)) {
            (Some(LocksCommand::AskRelease(ask)), Some(Ok(Response::ReleaseAsked { asked, .. }))) => {
                Some((ask, *asked))
            }
            _ => None,
        };
        let mut newly_asked = Vec::new();
        for life in step.after.changed(step.before) {
            let mut known = self.holds.remove(life).unwrap_or_default();
            if !step.after.namespaces.contains_key(life) {
                continue;
            }
            let (before, after) = (shown(step.before, life), shown(step.after, life));
            if let Some((ask, asked)) = asked.filter(|(ask, _)| ask.namespace == *life) {
                let at = (context.clock_ms, applied_at);
                newly_asked.extend(self.record_ask(&mut known, (ask, asked), &before, at, find));
                if self.was_settled {
                    nothing_ends(ask, (&before, &after), (&known, context.clock_ms), find);
                }
            }
            let ends = endings(life, step.events.iter().chain(things));
            self.end(&mut known, (life, &before, &after), &ends, (context, applied_at), find);
            for (key, hold) in &after {
                is_shown(key, hold, &known, find);
                let forced = known.get(key).and_then(|known| known.forced);
                if let Some(forced) = forced.filter(|forced| context.is_settled && forced.at_ms <= context.clock_ms) {
                    find(format!("[holds end] {key:?} is still there at {}, after {forced:?}", context.clock_ms));
                }
            }
            self.holds.insert(life.clone(), known);
        }
        let ask = asked.map(|(ask, _)| ask);
        told_to_watchers(ask, &newly_asked, things, find);
        told_to_sessions(ask, &newly_asked, step.effects, find);
        self.was_settled = context.is_settled;
    }

    /// Notes what is opened by force without a request.
    fn note_openings(&mut self, step: &Step<'_>, context: &StepContext<'_>) {
        let (life, kind, path) = match context.command {
            Some(LocksCommand::Delete { namespace, path }) => (namespace, Kind::Lock, path),
            Some(LocksCommand::Permit(PermitCommand::Delete { namespace, kind, path })) => (namespace, *kind, path),
            _ => return,
        };
        self.opened.insert((life.clone(), kind, path.clone()), step.highest_token);
    }

    /// Somebody asks for what others hold. Returns what was not asked for by the same request before.
    fn record_ask(
        &mut self,
        known: &mut BTreeMap<HoldKey, Known>,
        (ask, asked): (&AskRelease, u64),
        before: &BTreeMap<HoldKey, Shown<'_>>,
        (clock_ms, at): (u64, Duration),
        find: &mut dyn FnMut(String),
    ) -> Vec<NewlyAsked> {
        if ask.force && !self.forced_requests.insert(ask.request_id) {
            find(format!("[asks] {ask:?} is done twice, and could end what was granted in between"));
        }
        let (latest, call) = (Latest::of(ask, clock_ms), call_of_reason(&ask.reason));
        let (mut least, mut most, mut newly_asked) = (0, 0, Vec::new());
        for (key, hold) in before.iter().filter(|(key, hold)| concerns(ask, key, hold)) {
            most += 1;
            // What is only kept from others is nobody's to release.
            let is_held = hold.phase == Phase::Held;
            least += u64::from(is_held);
            let known = known.entry(key.clone()).or_default();
            let (kind, path, token) = (key.kind, key.path.clone(), hold.token);
            self.asked.extend(call.map(|call| (kind, path.clone(), token, call)));
            if let (true, Some(at_ms), Some(within_ms)) = (ask.force, latest.until_ms, latest.within_ms) {
                self.forced.insert((kind, path, token));
                if known.forced.is_none_or(|forced| at_ms < forced.at_ms) {
                    known.forced = Some(Forced { at_ms, within_ms, call, asked_at: at });
                }
            }
            if known.latest.as_ref().is_none_or(|latest| latest.request_id != ask.request_id) {
                known.latest = Some(latest.clone());
                self.record_asked_session((key, known), call.filter(|_| is_held), at);
                newly_asked.push(NewlyAsked { key: key.clone(), token, is_held });
            }
        }
        if !(least..=most).contains(&asked) {
            find(format!("[asks] {ask:?} asks for {asked} holds, and there are {least} to {most}"));
        }
        newly_asked
    }

    /// The session that has a lock is asked for it, by a call that says so.
    fn record_asked_session(&mut self, (key, known): (&HoldKey, &mut Known), call: Option<usize>, at: Duration) {
        if let Some(number) = known.asked_sessions.last() {
            self.of_sessions[*number].superseded.get_or_insert(at);
        }
        let (Owner::Session { session_id, .. }, Kind::Lock, Some(call)) = (&key.owner, key.kind, call) else { return };
        known.asked_sessions.push(self.of_sessions.len());
        self.of_sessions.push(AskedSession {
            session: session_id.clone(),
            path: key.path.clone(),
            token: known.token,
            call,
            granted_at: known.granted_at,
            asked_at: at,
            superseded: None,
            ended: None,
        });
    }

    /// Holds have ended, or changed their tokens, and others are new.
    fn end(
        &mut self,
        known: &mut BTreeMap<HoldKey, Known>,
        (life, before, after): (&NamespaceRef, &BTreeMap<HoldKey, Shown<'_>>, &BTreeMap<HoldKey, Shown<'_>>),
        ends: &BTreeMap<(Kind, Path, u64), Ending>,
        (context, applied_at): (&StepContext<'_>, Duration),
        find: &mut dyn FnMut(String),
    ) {
        let mut kept_on: BTreeMap<&HoldKey, u64> = BTreeMap::new();
        for (key, was) in before {
            let ending = ends.get(&(key.kind, key.path.clone(), was.token)).copied();
            if after.get(key).is_some_and(|is| is.token == was.token || ending.is_none()) {
                continue;
            }
            let Some(hold) = known.remove(key) else { continue };
            hold.asked_sessions.iter().for_each(|number| self.of_sessions[*number].ended = Some(applied_at));
            match ending {
                Some(Ending::Deleted) => self.was_deleted(life, key, &hold, (context.clock_ms, applied_at), find),
                Some(Ending::Given) if after.contains_key(key) => {
                    kept_on.insert(key, hold.kept_until_ms);
                }
                Some(Ending::Given) => self.was_given_up(key, &hold, (context, applied_at), find),
                Some(Ending::Reset) | None => {}
            }
        }
        for (key, is) in after {
            match known.get_mut(key) {
                Some(known) => known.token = is.token,
                None => {
                    let mut new = Known::new(is, (context.clock_ms, applied_at));
                    new.kept_until_ms = new.kept_until_ms.max(kept_on.get(key).copied().unwrap_or_default());
                    known.insert(key.clone(), new);
                }
            }
        }
    }

    /// A hold ended as by a deletion: somebody asked for that with force, or opened it.
    fn was_deleted(
        &mut self,
        life: &NamespaceRef,
        key: &HoldKey,
        hold: &Known,
        (clock_ms, at): (u64, Duration),
        find: &mut dyn FnMut(String),
    ) {
        let opened = self.opened.get(&(life.clone(), key.kind, key.path.clone()));
        let is_opened = opened.is_some_and(|highest| hold.token <= *highest);
        match hold.forced.filter(|forced| forced.at_ms <= clock_ms) {
            Some(Forced { call: Some(call), within_ms, asked_at, .. }) if !is_opened => {
                let (token, promised_ms, asked_at) = (hold.token, within_ms, Some(asked_at));
                self.ends.push(TimedEnd { call, token, at, promised_ms, asked_at });
            }
            None if !is_opened => {
                find(format!("[asks] {key:?} ended by force at {clock_ms}, which nobody may do yet: {hold:?}"));
            }
            _ => {}
        }
        if !self.deleted.insert((key.kind, key.path.clone(), hold.token)) {
            find(format!("[asks] {key:?} ended by force twice: {hold:?}"));
        }
    }

    /// An owner has released a hold, or it expired.
    fn was_given_up(
        &mut self,
        key: &HoldKey,
        hold: &Known,
        (context, at): (&StepContext<'_>, Duration),
        find: &mut dyn FnMut(String),
    ) {
        // An await gives a lock up at once, and requests of connected sessions, which await too, ask for no such time.
        let is_await = matches!(context.command, Some(LocksCommand::Condition(_) | LocksCommand::Session(_)));
        if hold.at_least_ms == 0 || is_await {
            return;
        }
        if context.clock_ms < hold.kept_until_ms {
            find(format!("[at least so long] others may have {key:?} at {}: {hold:?}", context.clock_ms));
        }
        let (token, promised_ms, asked_at) = (hold.token, hold.at_least_ms, None);
        self.ends.extend(hold.granted_to.map(|call| TimedEnd { call, token, at, promised_ms, asked_at }));
    }
}

impl Latest {
    fn of(ask: &AskRelease, clock_ms: u64) -> Self {
        let within_ms = if ask.force { Some(ask.within_ms.unwrap_or(0)) } else { ask.within_ms };
        let until_ms = within_ms.map(|within_ms| clock_ms + within_ms);
        let (request_id, reason, force) = (ask.request_id, ask.reason.clone(), ask.force);
        Self { request_id, reason, within_ms, until_ms, force }
    }
}

impl Known {
    fn new(hold: &Shown<'_>, (clock_ms, granted_at): (u64, Duration)) -> Self {
        let at_least_ms = hold.metadata.get(AT_LEAST_KEY).and_then(|ms| ms.parse().ok()).unwrap_or_default();
        Self {
            token: hold.token,
            latest: None,
            forced: None,
            granted_to: call_of(hold.metadata),
            granted_at,
            asked_sessions: Vec::new(),
            at_least_ms,
            kept_until_ms: clock_ms + at_least_ms,
        }
    }
}

/// A request to release ends nothing by itself, and gives nothing to anybody. What it leaves no time to is over at
/// once: it is there in its transition until the next entry ends it.
fn nothing_ends(
    ask: &AskRelease,
    (before, after): (&BTreeMap<HoldKey, Shown<'_>>, &BTreeMap<HoldKey, Shown<'_>>),
    (known, clock_ms): (&BTreeMap<HoldKey, Known>, u64),
    find: &mut dyn FnMut(String),
) {
    for (key, was) in before {
        let forced = known.get(key).and_then(|known| known.forced);
        let is_over = forced.is_some_and(|forced| forced.at_ms <= clock_ms);
        let phase = if is_over { Phase::Transition } else { was.phase };
        if after.get(key).is_none_or(|is| (is.token, is.phase) != (was.token, phase)) {
            find(format!("[asks] {ask:?} has ended {key:?} with token {}", was.token));
        }
    }
    if let Some(key) = after.keys().find(|key| !before.contains_key(key)) {
        find(format!("[asks] {ask:?} has given {key:?}"));
    }
}

/// A hold shows the latest request with what is due of all.
fn is_shown(key: &HoldKey, hold: &Shown<'_>, known: &BTreeMap<HoldKey, Known>, find: &mut dyn FnMut(String)) {
    // What is kept from others shows none.
    if hold.phase != Phase::Held {
        return;
    }
    let (forced, latest) = known.get(key).map_or((None, None), |known| (known.forced, known.latest.as_ref()));
    let is_right = match (latest, hold.request) {
        (None, None) => true,
        (Some(latest), Some(shown)) => {
            let until_ms = forced.map(|forced| forced.at_ms).or(latest.until_ms);
            // One with force is kept without its texts where there is no room for them.
            let has_text = shown.reason == latest.reason || (latest.force && shown.reason.is_empty());
            has_text && (shown.within_ms, shown.until_ms, shown.force) == (latest.within_ms, until_ms, forced.is_some())
        }
        _ => false,
    };
    if !is_right {
        find(format!("[asks] {key:?} shows {:?}, and was asked for by {latest:?}, {forced:?}", hold.request));
    }
}

/// Watchers are told once of each request that asks anybody, and of nothing else.
fn told_to_watchers(
    ask: Option<&AskRelease>,
    newly_asked: &[NewlyAsked],
    things: &[(NamespaceRef, Event)],
    find: &mut dyn FnMut(String),
) {
    let mut told = things.iter().filter(|(_, event)| matches!(event.kind, EventKind::ReleaseRequested { .. }));
    let Some((life, event)) = told.next() else {
        if newly_asked.iter().any(|hold| hold.is_held) {
            find(format!("[asks] no watcher is told of {ask:?}"));
        }
        return;
    };
    let is_it = |ask: &AskRelease| {
        let path = event.claims.first().map(|claim| &claim.path);
        ask.namespace == *life && event.kind == EventKind::ReleaseRequested { of: ask.kind } && path == Some(&ask.path)
    };
    if !ask.is_some_and(is_it) || told.next().is_some() {
        find(format!("[asks] {event:?} is not told of {ask:?} alone"));
    }
}

/// The sessions that have what somebody newly asks for are told of it once, and of nothing else.
fn told_to_sessions(
    ask: Option<&AskRelease>,
    newly_asked: &[NewlyAsked],
    effects: &[Effect],
    find: &mut dyn FnMut(String),
) {
    let mut told: BTreeMap<(&str, Kind, &Path, u64), usize> = BTreeMap::new();
    for effect in effects {
        let Effect::ReleaseRequested { session_id, asked, .. } = effect else { continue };
        let request = &asked.request;
        let is_it = |ask: &AskRelease| {
            let has_text = request.reason == ask.reason || (ask.force && request.reason.is_empty());
            has_text && request.force == ask.force
        };
        if !ask.is_some_and(is_it) {
            find(format!("[asks] {session_id} is told of {request:?}, and there is {ask:?}"));
        }
        for hold in &asked.holds {
            *told.entry((session_id.as_str(), asked.kind, &hold.path, hold.fencing_token)).or_default() += 1;
        }
    }
    for NewlyAsked { key, token, is_held } in newly_asked {
        let Owner::Session { session_id, .. } = &key.owner else { continue };
        let times = told.remove(&(session_id.as_str(), key.kind, &key.path, *token)).unwrap_or(0);
        if times > 1 || (*is_held && times == 0) {
            find(format!("[asks] {key:?} with token {token} is told {times} times of {ask:?}"));
        }
    }
    if let Some(hold) = told.keys().next() {
        find(format!("[asks] {hold:?} is told of {ask:?}, which does not concern it"));
    }
}
