//! What must hold of requests to release, and of what is kept from others for a time, after a step, by rules of its own,
//! without the core: a polite request ends nothing, one with force ends what is still held when its time is over, once
//! and not before, and a hold shows the latest request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::{
    AskRelease, Event, EventKind, Kind, LocksCommand, Metadata, NamespaceRef, Owner, Path, PermitCommand,
    PermitHolderView, PermitsEnd, Phase, ReleaseRequest, Reply, RequestId, Response,
};

use super::invariants::Step;
use super::locks_replay::call_of;
use super::permits::StepContext;
use super::shard_view::ShardView;
use crate::ask_calls::call_of_reason;
use crate::history::AT_LEAST_KEY;

/// What stays of a hold when its token changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct HoldKey {
    kind: Kind,
    path: Path,
    owner: Owner,
    /// Empty for a lock.
    request_id: String,
}

/// A hold in a view.
struct Shown<'a> {
    token: u64,
    phase: Phase,
    members: &'a [String],
    metadata: &'a Metadata,
    request: Option<&'a ReleaseRequest>,
}

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
}

/// What is known of a hold.
#[derive(Debug, Clone, Default)]
struct Known {
    token: u64,
    latest: Option<Latest>,
    forced: Option<Forced>,
    /// The call that it was granted to, and how long it is kept from others since then.
    granted_to: Option<usize>,
    at_least_ms: u64,
    /// The shard clock until which it is.
    kept_until_ms: u64,
}

/// Why a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Given,
    Deleted,
    Reset,
}

/// A hold that ended, and the least time that a call had asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedEnd {
    pub(crate) call: usize,
    pub(crate) token: u64,
    /// When a replica first applied the entry that ended it.
    pub(crate) at: Duration,
    pub(crate) promised_ms: u64,
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
        told_to_watchers(asked.map(|(ask, _)| ask), things, find);
        for life in step.after.changed(step.before) {
            let mut known = self.holds.remove(life).unwrap_or_default();
            if !step.after.namespaces.contains_key(life) {
                continue;
            }
            let (before, after) = (shown(step.before, life), shown(step.after, life));
            if let Some((ask, asked)) = asked.filter(|(ask, _)| ask.namespace == *life) {
                self.record_ask(&mut known, ask, asked, (&before, context.clock_ms), find);
                if self.was_settled {
                    nothing_ends(ask, &before, &after, find);
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

    /// Somebody asks for what others hold.
    fn record_ask(
        &mut self,
        known: &mut BTreeMap<HoldKey, Known>,
        ask: &AskRelease,
        asked: u64,
        (before, clock_ms): (&BTreeMap<HoldKey, Shown<'_>>, u64),
        find: &mut dyn FnMut(String),
    ) {
        if ask.force && !self.forced_requests.insert(ask.request_id) {
            find(format!("[asks] {ask:?} is done twice, and could end what was granted in between"));
        }
        let within_ms = if ask.force { Some(ask.within_ms.unwrap_or(0)) } else { ask.within_ms };
        let (until_ms, call) = (within_ms.map(|within_ms| clock_ms + within_ms), call_of_reason(&ask.reason));
        let (mut least, mut most) = (0, 0);
        for (key, hold) in before.iter().filter(|(key, hold)| concerns(ask, key, hold)) {
            most += 1;
            // What is only kept from others is nobody's to release.
            least += u64::from(hold.phase == Phase::Held);
            let known = known.entry(key.clone()).or_default();
            let (kind, path, token) = (key.kind, key.path.clone(), hold.token);
            self.asked.extend(call.map(|call| (kind, path.clone(), token, call)));
            if let (true, Some(at_ms), Some(within_ms)) = (ask.force, until_ms, within_ms) {
                self.forced.insert((kind, path, token));
                if known.forced.is_none_or(|forced| at_ms < forced.at_ms) {
                    known.forced = Some(Forced { at_ms, within_ms, call });
                }
            }
            if known.latest.as_ref().is_none_or(|latest| latest.request_id != ask.request_id) {
                let (request_id, reason, force) = (ask.request_id, ask.reason.clone(), ask.force);
                known.latest = Some(Latest { request_id, reason, within_ms, until_ms, force });
            }
        }
        if !(least..=most).contains(&asked) {
            find(format!("[asks] {ask:?} asks for {asked} holds, and there are {least} to {most}"));
        }
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
                    let mut new = Known::new(is, context.clock_ms);
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
            Some(Forced { call: Some(call), within_ms, .. }) if !is_opened => {
                self.ends.push(TimedEnd { call, token: hold.token, at, promised_ms: within_ms });
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
        let (token, promised_ms) = (hold.token, hold.at_least_ms);
        self.ends.extend(hold.granted_to.map(|call| TimedEnd { call, token, at, promised_ms }));
    }
}

impl Known {
    fn new(hold: &Shown<'_>, clock_ms: u64) -> Self {
        let at_least_ms = hold.metadata.get(AT_LEAST_KEY).and_then(|ms| ms.parse().ok()).unwrap_or_default();
        Self {
            token: hold.token,
            latest: None,
            forced: None,
            granted_to: call_of(hold.metadata),
            at_least_ms,
            kept_until_ms: clock_ms + at_least_ms,
        }
    }
}

/// Returns all that is held in a namespace and can be asked for.
fn shown<'a>(view: &'a ShardView, life: &NamespaceRef) -> BTreeMap<HoldKey, Shown<'a>> {
    let locks = view.holds(life).map(|hold| {
        let (path, holder) = (hold.path.clone(), hold.view);
        let key = HoldKey { kind: Kind::Lock, path, owner: holder.owner.clone(), request_id: String::new() };
        let request = holder.release_requested.as_deref();
        let (token, phase, metadata) = (holder.fencing_token, holder.phase, &holder.metadata);
        (key, Shown { token, phase, members: &[], metadata, request })
    });
    let semaphores = view.semaphores(life).map(|(path, it)| (Kind::Semaphore, path, &it.holders));
    let pools = view.pools(life).map(|(path, it)| (Kind::Pool, path, &it.holders));
    let permits = semaphores.chain(pools).flat_map(|(kind, path, holders)| {
        holders.iter().map(move |holder: &'a PermitHolderView| {
            let (path, owner, request_id) = (path.clone(), holder.owner.clone(), holder.request_id.clone());
            let request = holder.release_requested.as_deref();
            let (token, phase, metadata) = (holder.fencing_token, holder.phase, &holder.metadata);
            let shown = Shown { token, phase, members: &holder.members, metadata, request };
            (HoldKey { kind, path, owner, request_id }, shown)
        })
    });
    locks.chain(permits).collect()
}

/// Whether a request is about a hold.
fn concerns(ask: &AskRelease, key: &HoldKey, hold: &Shown<'_>) -> bool {
    let is_same = key.path == ask.path;
    let is_on_the_way = || key.path.0.starts_with(&ask.path.0) || ask.path.0.starts_with(&key.path.0);
    let has_path = is_same || (ask.kind == Kind::Lock && !ask.force && is_on_the_way());
    key.kind == ask.kind && has_path && ask.member.as_ref().is_none_or(|member| hold.members.contains(member))
}

/// Why holds ended, by kind, path and token.
fn endings<'a>(
    life: &NamespaceRef,
    events: impl Iterator<Item = &'a (NamespaceRef, Event)>,
) -> BTreeMap<(Kind, Path, u64), Ending> {
    let mut ends = BTreeMap::new();
    for (_, event) in events.filter(|(of, _)| of == life) {
        let (EventKind::PermitsReleased { cause, .. } | EventKind::MembersReturned { cause }) = event.kind else {
            let ending = match event.kind {
                EventKind::Released | EventKind::Expired => Ending::Given,
                EventKind::Deleted => Ending::Deleted,
                EventKind::Reset => Ending::Reset,
                _ => continue,
            };
            let token = event.fencing_token.unwrap_or_default();
            ends.extend(event.claims.iter().map(|claim| ((Kind::Lock, claim.path.clone(), token), ending)));
            continue;
        };
        let ending = match cause {
            PermitsEnd::Released | PermitsEnd::Expired => Ending::Given,
            PermitsEnd::Deleted => Ending::Deleted,
            PermitsEnd::Reset => Ending::Reset,
            PermitsEnd::Shrunk => continue,
        };
        let kind = event.kind.of();
        if let (Some(claim), Some(token)) = (event.claims.first(), event.fencing_token) {
            ends.insert((kind, claim.path.clone(), token), ending);
        }
    }
    ends
}

/// A request to release ends nothing by itself, and gives nothing to anybody.
fn nothing_ends(
    ask: &AskRelease,
    before: &BTreeMap<HoldKey, Shown<'_>>,
    after: &BTreeMap<HoldKey, Shown<'_>>,
    find: &mut dyn FnMut(String),
) {
    for (key, was) in before {
        if after.get(key).is_none_or(|is| (is.token, is.phase) != (was.token, was.phase)) {
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

/// Watchers are told once of each request, and of nothing else.
fn told_to_watchers(ask: Option<&AskRelease>, things: &[(NamespaceRef, Event)], find: &mut dyn FnMut(String)) {
    let mut told = things.iter().filter(|(_, event)| matches!(event.kind, EventKind::ReleaseRequested { .. }));
    if let Some((life, event)) = told.next() {
        let is_it = |ask: &AskRelease| {
            let path = event.claims.first().map(|claim| &claim.path);
            ask.namespace == *life
                && event.kind == EventKind::ReleaseRequested { of: ask.kind }
                && path == Some(&ask.path)
        };
        if !ask.is_some_and(is_it) || told.next().is_some() {
            find(format!("[asks] {event:?} is not told of {ask:?} alone"));
        }
    }
}
