//! What must hold of semaphores and pools after a step, by rules of its own, without the core. `pools.rs` has what only
//! pools have.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use holdfast_core::{
    AcquirePermits, CancelPermits, Kind, LocksCommand, NamespaceRef, Owner, Path, PermitCommand, PermitHolderView,
    PermitWaitView, Phase, SemaphoreView, WaitId,
};

use super::invariants::Step;
use super::locks_replay::call_of;
use super::pools;
use super::shard_view::ShardView;

/// What is known of a step besides what it changed.
pub(crate) struct StepContext<'a> {
    pub(crate) clock_ms: u64,
    /// Whether no work is left for later entries.
    pub(crate) is_settled: bool,
    /// Absent if only the clock has advanced.
    pub(crate) command: Option<&'a LocksCommand>,
    /// Whether a session is open.
    pub(crate) has_session: &'a dyn Fn(&str) -> bool,
}

/// One semaphore or pool after a step.
pub(super) struct Changed<'a> {
    pub(super) held_before: &'a [PermitHolderView],
    pub(super) holders: &'a [PermitHolderView],
    /// Those that waited for it before.
    pub(super) waited: Vec<&'a PermitWaitView>,
    /// Those that wait for it.
    pub(super) queue: Vec<&'a PermitWaitView>,
}

/// The place in the queue: the higher priority first, then who came first.
pub(super) type Rank = (Reverse<u8>, WaitId);

/// What a hold that is new was granted to.
pub(super) enum Request<'a> {
    /// It waited.
    Queued(&'a PermitWaitView),
    /// It did not wait.
    Direct(&'a AcquirePermits),
}

/// Everything that must hold after a step.
pub(crate) fn check(step: &Step<'_>, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    for life in step.after.changed(step.before) {
        for (path, after) in step.after.semaphores(life) {
            let before = step.before.semaphore(life, path).map(|before| &before.view);
            let changed = Changed::new(step, life, (Kind::Semaphore, path));
            never_exceeded(before, &after.view, &changed, find);
            in_order(&changed, context, find);
            if context.is_settled {
                nobody_waits_in_vain(&after.view, &changed, find);
            }
            check_both_kinds(step, &changed, context, find);
        }
        for (path, after) in step.after.pools(life) {
            let changed = Changed::new(step, life, (Kind::Pool, path));
            pools::check((step.before.pool(life, path), after), &changed, context, find);
            check_both_kinds(step, &changed, context, find);
        }
        if context.command.is_none() {
            nothing_early(step, life, context.clock_ms, find);
        }
    }
}

fn check_both_kinds(step: &Step<'_>, changed: &Changed<'_>, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    once_each(changed, find);
    tokens_rise(step, changed, find);
    if context.is_settled {
        nothing_stays(changed, context, find);
    }
}

impl<'a> Changed<'a> {
    fn new(step: &Step<'a>, life: &NamespaceRef, (kind, path): (Kind, &Path)) -> Self {
        let queue_of = |view: &'a ShardView| {
            let waits = view.permit_waits(life).iter();
            waits.filter(|wait| wait.kind == kind && wait.path == *path).collect::<Vec<&PermitWaitView>>()
        };
        Self {
            held_before: step.before.holders_of(life, kind, path),
            holders: step.after.holders_of(life, kind, path),
            waited: queue_of(step.before),
            queue: queue_of(step.after),
        }
    }

    /// Returns the holds that are new, or have grown.
    pub(super) fn granted(&self) -> impl Iterator<Item = &'a PermitHolderView> {
        let before = self.held_before;
        let is_known = move |token| before.iter().any(|holder| holder.fencing_token == token);
        self.holders.iter().filter(move |holder| !is_known(holder.fencing_token))
    }

    /// Returns what a hold was granted to.
    pub(super) fn request_of(&self, holder: &PermitHolderView, context: &StepContext<'a>) -> Option<Request<'a>> {
        let own = self.waited.iter().copied().find(|wait| is_of(holder, &wait.owner, &wait.request_id));
        match (own, context.command) {
            (Some(own), _) => Some(Request::Queued(own)),
            (None, Some(LocksCommand::Permit(PermitCommand::Acquire(acquire)))) => Some(Request::Direct(acquire)),
            _ => None,
        }
    }

    /// Returns those that have waited since before the step.
    pub(super) fn still_wait(&self) -> impl Iterator<Item = &'a PermitWaitView> {
        let known = |wait: &&PermitWaitView| self.waited.iter().any(|known| known.wait == wait.wait);
        self.queue.iter().copied().filter(known)
    }
}

impl Request<'_> {
    pub(super) fn rank(&self) -> Rank {
        match self {
            Self::Queued(wait) => rank_of(wait),
            Self::Direct(acquire) => (Reverse(acquire.priority), WaitId(u64::MAX)),
        }
    }
}

pub(super) fn rank_of(wait: &PermitWaitView) -> Rank {
    (Reverse(wait.priority), wait.wait)
}

fn is_of(holder: &PermitHolderView, owner: &Owner, request_id: &str) -> bool {
    holder.owner == *owner && holder.request_id == request_id
}

/// No more permits are in use than there are, except by holds from before their number was lowered.
fn never_exceeded(
    before: Option<&SemaphoreView>,
    view: &SemaphoreView,
    changed: &Changed<'_>,
    find: &mut dyn FnMut(String),
) {
    let in_use_before = before.map_or(0, |before| before.in_use);
    let held: u64 = changed.holders.iter().map(|holder| holder.weight).sum();
    if view.in_use != held {
        find(format!("[permits] {held} are held of {view:?}, which says otherwise"));
    }
    if view.in_use > view.permits && view.in_use > in_use_before {
        find(format!("[permits] {view:?} has more in use than there are, and {in_use_before} were before"));
    }
}

/// A request has permits or members once, or waits once.
fn once_each(changed: &Changed<'_>, find: &mut dyn FnMut(String)) {
    let held = changed.holders.iter().map(|holder| (&holder.owner, &holder.request_id));
    let mut seen = BTreeSet::new();
    for key in held.chain(changed.queue.iter().map(|wait| (&wait.owner, &wait.request_id))) {
        if !seen.insert(key) {
            find(format!("[permits] {key:?} is there twice: {:?}, {:?}", changed.holders, changed.queue));
        }
    }
}

/// A hold that is new, or has grown, has a token above all that the shard ever gave.
fn tokens_rise(step: &Step<'_>, changed: &Changed<'_>, find: &mut dyn FnMut(String)) {
    for holder in changed.granted() {
        if holder.fencing_token <= step.highest_token {
            find(format!("[tokens rise] {holder:?} is granted after {}", step.highest_token));
        }
    }
}

/// Nobody is granted before a request that came earlier, or has a higher priority, and still waits; and no hold grows
/// while anybody waits.
fn in_order(changed: &Changed<'_>, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    for holder in changed.granted() {
        let has_grown = changed.held_before.iter().any(|known| is_of(known, &holder.owner, &holder.request_id));
        let Some(request) = changed.request_of(holder, context) else {
            find(format!("[first come first served] {holder:?} has asked for nothing"));
            continue;
        };
        for earlier in changed.still_wait().filter(|wait| has_grown || rank_of(wait) < request.rank()) {
            find(format!("[first come first served] {holder:?} was granted before {earlier:?}"));
        }
    }
}

/// Who can be granted is, and who never can does not wait.
fn nobody_waits_in_vain(view: &SemaphoreView, changed: &Changed<'_>, find: &mut dyn FnMut(String)) {
    let first = changed.queue.iter().min_by_key(|wait| rank_of(wait));
    let fits = |wait: &&&PermitWaitView| view.permits > 0 && view.in_use.saturating_add(wait.weight) <= view.permits;
    if let Some(first) = first.filter(fits) {
        find(format!("[first come first served] {first:?} still waits, though {view:?} has that many"));
    }
    for wait in changed.queue.iter().filter(|wait| view.permits > 0 && wait.weight > view.permits) {
        find(format!("[waits end] {wait:?} waits for more than {view:?} has"));
    }
}

/// What is over has ended.
fn nothing_stays(changed: &Changed<'_>, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    for wait in &changed.queue {
        if wait.ends_at_ms.is_some_and(|ends_at_ms| ends_at_ms <= context.clock_ms) {
            find(format!("[waits end] {wait:?} still waits at {}", context.clock_ms));
        }
        if is_without_session(&wait.owner, context) {
            find(format!("[waits end] the session of {wait:?} has ended"));
        }
    }
    for holder in changed.holders {
        if holder.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= context.clock_ms) {
            find(format!("[holds end] {holder:?} is still there at {}", context.clock_ms));
        }
        if holder.phase == Phase::Held && is_without_session(&holder.owner, context) {
            find(format!("[holds end] the session of {holder:?} has ended"));
        }
    }
}

pub(super) fn is_without_session(owner: &Owner, context: &StepContext<'_>) -> bool {
    matches!(owner, Owner::Session { session_id, .. } if !(context.has_session)(session_id))
}

/// Holds of processes whose phase ended though no command ended it. In these runs nothing but time ends them so: their
/// own, or that of a request with force, which is the earlier deadline then.
fn ended_by_time<'a>(
    before: &'a ShardView,
    after: &'a ShardView,
    life: &'a NamespaceRef,
) -> impl Iterator<Item = &'a PermitHolderView> {
    let is_open = after.namespaces.contains_key(life);
    let holders = before.permit_holders(life).filter(move |_| is_open);
    holders.filter(move |holder| {
        let stays = |kept: &PermitHolderView| kept.fencing_token == holder.fencing_token && kept.phase == holder.phase;
        matches!(holder.owner, Owner::Process(_)) && !after.permit_holders(life).any(stays)
    })
}

/// What ended was due on the shard clock.
fn nothing_early(step: &Step<'_>, life: &NamespaceRef, clock_ms: u64, find: &mut dyn FnMut(String)) {
    for holder in ended_by_time(step.before, step.after, life) {
        if holder.deadline_ms.is_some_and(|deadline_ms| deadline_ms > clock_ms) {
            find(format!("[nothing expires early] {holder:?} ended at {clock_ms}"));
        }
    }
}

/// Returns the holds of processes whose time was over: the calls that granted or extended them last, and their tokens.
/// Those that ended by force are none.
pub(crate) fn expired(before: &ShardView, after: &ShardView, clock_ms: u64) -> Vec<(usize, u64)> {
    let is_forced = |holder: &PermitHolderView| {
        let request = holder.release_requested.as_ref().filter(|request| request.force);
        request.is_some_and(|request| request.until_ms.is_some_and(|until_ms| until_ms <= clock_ms))
    };
    let is_meant = |holder: &&PermitHolderView| holder.phase == Phase::Held && !is_forced(holder);
    let ended = after.changed(before).flat_map(|life| ended_by_time(before, after, life)).filter(is_meant);
    ended.filter_map(|holder| Some((call_of(&holder.metadata)?, holder.fencing_token))).collect()
}

/// Returns the holds of a request that are gone after a call for them was given up.
pub(crate) fn given_back<'a>(
    cancel: &CancelPermits,
    before: &'a ShardView,
    after: &ShardView,
) -> Vec<&'a PermitHolderView> {
    let (life, path) = (&cancel.namespace, &cancel.path);
    let kept = after.holders_of(life, cancel.kind, path);
    let is_kept = |token| kept.iter().any(|holder| holder.fencing_token == token);
    let held = before.holders_of(life, cancel.kind, path).iter();
    let its = held.filter(|holder| is_of(holder, &cancel.owner, &cancel.request_id) && holder.phase == Phase::Held);
    its.filter(|holder| !is_kept(holder.fencing_token)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use holdfast_core::{AccountId, Incarnation, Metadata, Wait, Wanted};

    use super::super::shard_view::{NamespaceView, SemaphoreState};
    use super::*;

    const CLOCK_MS: u64 = 1_000;
    const PERMITS: u64 = 3;

    fn namespace() -> NamespaceRef {
        NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
    }

    fn holder(name: &str, weight: u64, fencing_token: u64) -> PermitHolderView {
        PermitHolderView {
            owner: Owner::Process(name.to_owned()),
            process_id: name.to_owned(),
            request_id: "r".to_owned(),
            weight,
            members: Vec::new(),
            fencing_token,
            locked_at_ms: 0,
            deadline_ms: Some(CLOCK_MS + 1),
            phase: Phase::Held,
            metadata: Metadata::new(),
            release_requested: None,
        }
    }

    fn wait(number: u64, name: &str, weight: u64, priority: u8) -> PermitWaitView {
        PermitWaitView {
            wait: WaitId(number),
            kind: Kind::Semaphore,
            path: Path::flat("s"),
            owner: Owner::Process(name.to_owned()),
            process_id: name.to_owned(),
            request_id: "r".to_owned(),
            weight,
            member: None,
            priority,
            queue_position: 0,
            attempt: 1,
            since_ms: 0,
            ends_at_ms: Some(CLOCK_MS + 1),
        }
    }

    fn view(permits: u64, holders: Vec<PermitHolderView>, permit_waits: Vec<PermitWaitView>) -> ShardView {
        let in_use = holders.iter().map(|holder| holder.weight).sum();
        let view = SemaphoreView { permits, in_use, ..SemaphoreView::absent(&Path::flat("s"), 1) };
        let semaphores = BTreeMap::from([(Path::flat("s"), SemaphoreState { view, holders })]);
        let scene = NamespaceView { semaphores, permit_waits, ..NamespaceView::default() };
        ShardView { namespaces: BTreeMap::from([(namespace(), Rc::new(scene))]) }
    }

    fn acquire(priority: u8) -> LocksCommand {
        LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits {
            namespace: namespace(),
            path: Path::flat("s"),
            owner: Owner::Process("p".to_owned()),
            request_id: "r".to_owned(),
            wanted: Wanted::Permits { weight: 1, permits: None },
            priority,
            ttl_ms: Some(1),
            transition_ms: 0,
            wait: Wait::No,
            metadata: Metadata::new(),
            fencing_token: None,
            attempt: 0,
            abandoned: vec![],
            message: None,
        }))
    }

    /// The checks that find something in a step of a command, or of the clock.
    fn findings(before: &ShardView, after: &ShardView, command: Option<&LocksCommand>) -> Vec<String> {
        let step = Step { before, after, effects: &[], granted: &[], events: &[], highest_token: 4 };
        let context =
            StepContext { clock_ms: CLOCK_MS, is_settled: true, command, has_session: &|session| session == "open" };
        let mut found = Vec::new();
        check(&step, &context, &mut |what| {
            let name = what.split(']').next().unwrap_or_default();
            found.push(name.trim_start_matches('[').to_owned());
        });
        found
    }

    fn none() -> Vec<String> {
        Vec::new()
    }

    #[test]
    fn permits_that_are_not_there_or_counted_twice_are_found() {
        let (before, command) = (view(PERMITS, vec![holder("p", 2, 1)], vec![]), acquire(0));
        let full = view(PERMITS, vec![holder("p", 2, 1), holder("q", 1, 5)], vec![]);
        assert_eq!(findings(&before, &full, Some(&command)), none());
        let beyond = view(PERMITS, vec![holder("p", 2, 1), holder("q", 2, 5)], vec![]);
        assert_eq!(findings(&before, &beyond, Some(&command)), ["permits"]);
        // Their number was lowered.
        assert_eq!(findings(&before, &view(1, vec![holder("p", 2, 1)], vec![]), Some(&command)), none());
        let twice = view(PERMITS, vec![holder("p", 1, 1), holder("p", 1, 5)], vec![]);
        assert!(findings(&before, &twice, Some(&command)).contains(&"permits".to_owned()));
        let wrong = |in_use| {
            let mut view = view(PERMITS, vec![holder("p", 2, 1)], vec![]);
            let scene = view.namespaces.get_mut(&namespace()).and_then(Rc::get_mut).expect("nobody else has it");
            scene.semaphores.get_mut(&Path::flat("s")).expect("it is there").view.in_use = in_use;
            view
        };
        assert_eq!(findings(&before, &wrong(1), Some(&command)), ["permits"]);
    }

    #[test]
    fn a_token_that_does_not_rise_is_found() {
        let (before, after) = (view(PERMITS, vec![], vec![]), view(PERMITS, vec![holder("p", 1, 4)], vec![]));
        assert_eq!(findings(&before, &after, Some(&acquire(0))), ["tokens rise"]);
    }

    #[test]
    fn who_overtakes_is_found() {
        let queue = || vec![wait(2, "q", 3, 0), wait(3, "r", 2, 1)];
        let before = view(PERMITS, vec![holder("h", 2, 1)], queue());
        let after = |rest| view(PERMITS, vec![holder("h", 2, 1), holder("p", 1, 5)], rest);
        let name = "first come first served";
        // At once, with the same priority as one of them, and with a higher one than both.
        assert_eq!(findings(&before, &after(queue()), Some(&acquire(1))), [name]);
        assert_eq!(findings(&before, &after(queue()), Some(&acquire(2))), none());
        // From the queue.
        let before = view(PERMITS, vec![holder("h", 2, 1)], vec![wait(2, "q", 3, 0), wait(3, "p", 1, 0)]);
        assert_eq!(findings(&before, &after(vec![wait(2, "q", 3, 0)]), None), [name]);
        // By growing.
        let before = view(PERMITS, vec![holder("h", 2, 1), holder("p", 1, 2)], queue());
        let grown = view(4, vec![holder("h", 2, 1), holder("p", 2, 5)], vec![wait(2, "q", 3, 0)]);
        assert_eq!(findings(&before, &grown, Some(&acquire(9))), [name]);
    }

    #[test]
    fn what_stays_is_found() {
        let nothing = view(PERMITS, vec![], vec![]);
        let waits = |wait| view(PERMITS, vec![holder("h", 3, 1)], vec![wait]);
        assert_eq!(findings(&waits(wait(2, "q", 1, 0)), &waits(wait(2, "q", 1, 0)), None), none());
        assert_eq!(
            findings(&nothing, &view(PERMITS, vec![], vec![wait(2, "q", 3, 0)]), None),
            ["first come first served"]
        );
        let before = waits(wait(2, "q", 1, 0));
        assert_eq!(findings(&before, &waits(wait(2, "q", 4, 0)), None), ["waits end"]);
        let late = PermitWaitView { ends_at_ms: Some(CLOCK_MS), ..wait(2, "q", 1, 0) };
        assert_eq!(findings(&before, &waits(late), None), ["waits end"]);
        let of = |session: &str| Owner::Session { session_id: session.to_owned(), holder: None };
        let orphan = |session| PermitWaitView { owner: of(session), ..wait(2, "q", 1, 0) };
        assert_eq!(findings(&before, &waits(orphan("open")), None), none());
        assert_eq!(findings(&before, &waits(orphan("gone")), None), ["waits end"]);
        let held = |holder| view(PERMITS, vec![holder], vec![]);
        let late = PermitHolderView { deadline_ms: Some(CLOCK_MS), ..holder("h", 1, 1) };
        assert_eq!(findings(&held(holder("h", 1, 1)), &held(late), None), ["holds end"]);
        let orphan = |session| held(PermitHolderView { owner: of(session), ..holder("h", 1, 1) });
        assert_eq!(findings(&orphan("gone"), &orphan("gone"), None), ["holds end"]);
        assert_eq!(findings(&orphan("open"), &orphan("open"), None), none());
    }

    #[test]
    fn what_ends_before_its_time_is_found() {
        let (held, nothing) = (|holder| view(PERMITS, vec![holder], vec![]), view(PERMITS, vec![], vec![]));
        assert_eq!(findings(&held(holder("h", 1, 1)), &nothing, None), ["nothing expires early"]);
        let due = PermitHolderView { deadline_ms: Some(CLOCK_MS), ..holder("h", 1, 1) };
        assert_eq!(findings(&held(due), &nothing, None), none());
        // A command ended it.
        assert_eq!(findings(&held(holder("h", 1, 1)), &nothing, Some(&acquire(0))), none());
    }
}
