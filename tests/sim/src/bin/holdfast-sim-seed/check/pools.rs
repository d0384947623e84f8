//! What must hold of pools after a step, by rules of its own, without the core: what differs from semaphores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    Event, EventKind, LocksCommand, MemberView, NamespaceRef, Path, PermitCommand, PermitHolderView, PermitWaitView,
    Wanted,
};

use super::permits::{Changed, Request, StepContext, rank_of};
use super::shard_view::PoolState;

/// Who holds which member, told from the events of grants and returns alone.
#[derive(Default)]
pub(crate) struct MemberHolders(BTreeMap<(NamespaceRef, Path, Path), u64>);

impl MemberHolders {
    /// Compares the events of pools with what is known: a member is taken by one hold at a time, and returned by that.
    pub(crate) fn check(&mut self, events: &[(NamespaceRef, Event)], find: &mut dyn FnMut(String)) {
        for (life, event) in events {
            let (Some((pool, members)), Some(token)) = (event.claims.split_first(), event.fencing_token) else {
                continue;
            };
            for member in members {
                let key = (life.clone(), pool.path.clone(), member.path.clone());
                match event.kind {
                    EventKind::MembersTaken => {
                        if let Some(other) = self.0.insert(key, token) {
                            find(format!("[one holder] {event:?} takes {:?}, which {other} has", member.path));
                        }
                    }
                    EventKind::MembersReturned { .. } if self.0.remove(&key) != Some(token) => {
                        find(format!("[one holder] {event:?} returns {:?}, which it has not", member.path));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// What must hold of a pool after a step, besides what holds of semaphores too.
pub(super) fn check(
    (before, after): (Option<&PoolState>, &PoolState),
    changed: &Changed<'_>,
    context: &StepContext<'_>,
    find: &mut dyn FnMut(String),
) {
    counts_agree(after, find);
    in_order(changed, context, find);
    if let Some(before) = before {
        members_rest((before, after), changed, context, find);
        // Whoever was granted before the end of a rest can't be told from whoever was after it.
        if !has_rest_ended(before, after) {
            free_longest_first(after, changed, context, find);
        }
    }
    if context.is_settled {
        nobody_waits_in_vain(after, changed, find);
    }
}

fn is_free(member: &MemberView) -> bool {
    member.holder.is_none() && is_given_out(member)
}

fn is_given_out(member: &MemberView) -> bool {
    !member.disabled && !member.leaving && member.resting_until_ms.is_none()
}

/// The figures of a pool are those of its members, and a hold has as many as it says.
fn counts_agree(pool: &PoolState, find: &mut dyn FnMut(String)) {
    let count = |is_meant: &dyn Fn(&MemberView) -> bool| pool.members.values().filter(|it| is_meant(it)).count() as u64;
    let (held, free) = (count(&|member| member.holder.is_some()), count(&is_free));
    if (pool.view.in_use, pool.view.free) != (held, free) {
        find(format!("[one holder] {held} are held and {free} are free of {:?}, which says otherwise", pool.view));
    }
    for holder in pool.holders.iter().filter(|holder| holder.weight != holder.members.len() as u64) {
        find(format!("[one holder] {holder:?} has another number of members than it says"));
    }
}

/// Whether a request must not be granted before another that is before it: so many members before everything, and a
/// member before the same one.
fn holds_up(earlier: &PermitWaitView, member: Option<&str>) -> bool {
    earlier.member.is_none() || earlier.member.as_deref() == member
}

/// The member that a request wants by its name.
fn member_of<'a>(request: &'a Request<'_>) -> Option<&'a str> {
    match request {
        Request::Queued(wait) => wait.member.as_deref(),
        Request::Direct(acquire) => match &acquire.wanted {
            Wanted::Member(name) => Some(name),
            _ => None,
        },
    }
}

/// Nobody is granted before a request that holds it up and still waits.
fn in_order(changed: &Changed<'_>, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    for holder in changed.granted() {
        let Some(request) = changed.request_of(holder, context) else {
            find(format!("[first come first served] {holder:?} has asked for nothing"));
            continue;
        };
        let member = member_of(&request);
        if member.is_some_and(|member| holder.members != [member]) {
            find(format!("[one holder] {holder:?} has other members than it asked for"));
        }
        let is_before = |wait: &&PermitWaitView| rank_of(wait) < request.rank() && holds_up(wait, member);
        for earlier in changed.still_wait().filter(is_before) {
            find(format!("[first come first served] {holder:?} was granted before {earlier:?}"));
        }
    }
}

/// Who can be granted is, and who never can does not wait.
fn nobody_waits_in_vain(pool: &PoolState, changed: &Changed<'_>, find: &mut dyn FnMut(String)) {
    let staying = pool.members.values().filter(|member| !member.leaving).count() as u64;
    for wait in &changed.queue {
        let member = wait.member.as_ref().map(|name| pool.members.get(name).filter(|member| !member.leaving));
        let (is_possible, fits) = match member {
            None => (wait.weight <= staying, wait.weight <= pool.view.free),
            Some(member) => (member.is_some(), member.is_some_and(is_free)),
        };
        if !is_possible {
            find(format!("[waits end] {wait:?} waits for more than {:?} has", pool.view));
        }
        let is_held_up =
            |other: &&PermitWaitView| rank_of(other) < rank_of(wait) && holds_up(other, wait.member.as_deref());
        if fits && !changed.queue.iter().any(is_held_up) {
            find(format!("[first come first served] {wait:?} still waits, though it is free in {:?}", pool.view));
        }
    }
}

/// A member rests when its hold has ended, and is not given out while it rests.
fn members_rest(
    (before, after): (&PoolState, &PoolState),
    changed: &Changed<'_>,
    context: &StepContext<'_>,
    find: &mut dyn FnMut(String),
) {
    let cooldown_ms = after.view.cooldown_ms;
    let token_of = |member: &MemberView| member.holder.as_ref().map(|holder| holder.fencing_token);
    let rests = |member: &MemberView| {
        let until_ms = member.resting_until_ms;
        token_of(member).is_none() && until_ms.is_some_and(|until_ms| until_ms >= context.clock_ms + cooldown_ms)
    };
    let has_returned = |member: &&MemberView| {
        let was = before.members.get(&member.name).and_then(token_of);
        was.is_some() && was != token_of(member)
    };
    if cooldown_ms > 0 && before.view.cooldown_ms == cooldown_ms {
        for member in after.members.values().filter(has_returned).filter(|member| !rests(member)) {
            find(format!("[members rest] {member:?} was returned at {} and does not rest", context.clock_ms));
        }
    }
    let may_end_rests = matches!(context.command, Some(LocksCommand::Permit(PermitCommand::ChangePool(_))));
    let until_ms = |name: &String| before.members.get(name)?.resting_until_ms;
    for holder in changed.granted().filter(|_| !may_end_rests) {
        if holder.members.iter().filter_map(until_ms).any(|until_ms| until_ms > context.clock_ms) {
            find(format!("[members rest] {holder:?} was granted at {} what rests", context.clock_ms));
        }
    }
}

fn has_rest_ended(before: &PoolState, after: &PoolState) -> bool {
    let rests = |pool: &PoolState, name: &str| pool.members.get(name).is_some_and(|it| it.resting_until_ms.is_some());
    before.members.keys().any(|name| rests(before, name) && !rests(after, name))
}

/// So many members are those that have been free longest, but for one that the request may have preferred.
fn free_longest_first(
    after: &PoolState,
    changed: &Changed<'_>,
    context: &StepContext<'_>,
    find: &mut dyn FnMut(String),
) {
    for holder in changed.granted() {
        let Some(request) = changed.request_of(holder, context).filter(|request| member_of(request).is_none()) else {
            continue;
        };
        let free = free_at_grant(after, holder);
        let is_first = |without: Option<&String>| {
            let others = free.iter().copied().filter(|name| Some(*name) != without);
            let first: BTreeSet<&String> = others.take(holder.members.len() - usize::from(without.is_some())).collect();
            holder.members.iter().filter(|name| Some(*name) != without).collect::<BTreeSet<&String>>() == first
        };
        let preferred: Vec<&String> = match &request {
            // The queue does not show what a request prefers.
            Request::Queued(_) => holder.members.iter().collect(),
            Request::Direct(acquire) => match &acquire.wanted {
                Wanted::Members { prefer, .. } => prefer.iter().filter(|name| holder.members.contains(name)).collect(),
                _ => Vec::new(),
            },
        };
        if !is_first(None) && !preferred.into_iter().any(|name| is_first(Some(name))) {
            find(format!("[first come first served] {holder:?} has others than those of {free:?} that come first"));
        }
    }
}

/// The members that were free when a hold was granted, those that have been longest first.
fn free_at_grant<'a>(pool: &'a PoolState, granted: &PermitHolderView) -> Vec<&'a String> {
    let token = granted.fencing_token;
    let was_free = |member: &&MemberView| {
        let is_later = member.holder.as_ref().is_none_or(|holder| holder.fencing_token >= token);
        is_later && is_given_out(member) && member.free_since < token
    };
    let mut free: Vec<&MemberView> = pool.members.values().filter(was_free).collect();
    free.sort_by_key(|member| (member.free_since, &member.name));
    free.into_iter().map(|member| &member.name).collect()
}

#[cfg(test)]
mod tests {
    use holdfast_core::{
        AccountId, AcquirePermits, Claim, Incarnation, Kind, Metadata, Mode, Owner, PermitsEnd, Phase, PoolView, Wait,
        WaitId,
    };

    use super::*;

    const CLOCK_MS: u64 = 1_000;
    const ORDER: &str = "first come first served";

    fn namespace() -> NamespaceRef {
        NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
    }

    fn owner(name: &str) -> Owner {
        Owner::Process(name.to_owned())
    }

    /// A member that has been free since then.
    fn member(name: &str, free_since: u64) -> MemberView {
        MemberView {
            name: name.to_owned(),
            disabled: false,
            leaving: false,
            metadata: Metadata::new(),
            free_since,
            resting_until_ms: None,
            holder: None,
        }
    }

    /// The same as one of the members of a hold.
    fn held(name: &str, free_since: u64, (by, fencing_token, weight): (&str, u64, u64)) -> MemberView {
        let holder = PermitHolderView {
            owner: owner(by),
            process_id: by.to_owned(),
            request_id: "r".to_owned(),
            weight,
            members: Vec::new(),
            fencing_token,
            locked_at_ms: 0,
            deadline_ms: Some(CLOCK_MS + 1),
            phase: Phase::Held,
            metadata: Metadata::new(),
            release_requested: None,
        };
        MemberView { holder: Some(holder), ..member(name, free_since) }
    }

    fn pool(cooldown_ms: u64, members: Vec<MemberView>) -> PoolState {
        let (in_use, free) = (members.iter().filter(|it| it.holder.is_some()), members.iter().filter(|it| is_free(it)));
        let (in_use, free) = (in_use.count() as u64, free.count() as u64);
        PoolState::new(PoolView { in_use, free, cooldown_ms, ..PoolView::absent(&Path::flat("p"), 1) }, members)
    }

    fn wait(number: u64, name: &str, weight: u64, member: Option<&str>) -> PermitWaitView {
        PermitWaitView {
            wait: WaitId(number),
            kind: Kind::Pool,
            path: Path::flat("p"),
            owner: owner(name),
            process_id: name.to_owned(),
            request_id: "r".to_owned(),
            weight,
            member: member.map(str::to_owned),
            priority: 0,
            queue_position: 0,
            attempt: 1,
            since_ms: 0,
            ends_at_ms: None,
        }
    }

    fn take(wanted: Wanted) -> LocksCommand {
        LocksCommand::Permit(PermitCommand::Acquire(AcquirePermits {
            namespace: namespace(),
            path: Path::flat("p"),
            owner: owner("p"),
            request_id: "r".to_owned(),
            wanted,
            priority: 0,
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

    fn some(count: u64, prefer: Option<&str>) -> LocksCommand {
        take(Wanted::Members { count, prefer: prefer.map(str::to_owned) })
    }

    /// A pool, and who waits for it.
    type PoolAndWaits = (PoolState, Vec<PermitWaitView>);

    /// The checks that find something in a step of a command, or of the clock.
    fn findings(before: &PoolAndWaits, after: &PoolAndWaits, command: Option<&LocksCommand>) -> Vec<String> {
        let context = StepContext { clock_ms: CLOCK_MS, is_settled: true, command, has_session: &|_| true };
        let changed = Changed {
            held_before: &before.0.holders,
            holders: &after.0.holders,
            waited: before.1.iter().collect(),
            queue: after.1.iter().collect(),
        };
        let mut found = Vec::new();
        check((Some(&before.0), &after.0), &changed, &context, &mut |what| {
            found.push(what.split(']').next().unwrap_or_default().trim_start_matches('[').to_owned());
        });
        found
    }

    fn none() -> Vec<String> {
        Vec::new()
    }

    #[test]
    fn a_member_with_two_holders_is_found() {
        let claim = |name: &str| Claim { path: Path::flat(name), mode: Mode::Write };
        let event = |kind, token, members: &[&str]| {
            let claims = ["p"].iter().chain(members).map(|name| claim(name)).collect();
            let (at_ms, owner, process_id, fencing_token) = (0, owner("p"), "p".to_owned(), Some(token));
            (namespace(), Event { revision: token, at_ms, kind, owner, process_id, fencing_token, claims })
        };
        let returned = EventKind::MembersReturned { cause: PermitsEnd::Released };
        let count = |events: &[(NamespaceRef, Event)]| {
            let (mut holders, mut found) = (MemberHolders::default(), 0);
            holders.check(events, &mut |_| found += 1);
            found
        };
        let taken = event(EventKind::MembersTaken, 1, &["a", "b"]);
        let (back, next) = (event(returned, 1, &["a"]), event(EventKind::MembersTaken, 2, &["a"]));
        assert_eq!(count(&[taken.clone(), back.clone(), next.clone()]), 0);
        assert_eq!(count(&[taken.clone(), next]), 1);
        assert_eq!(count(&[taken, back.clone(), back]), 1);
    }

    #[test]
    fn figures_that_are_not_those_of_the_members_are_found() {
        let before = (pool(0, vec![held("a", 1, ("h", 2, 1))]), vec![]);
        let wrong = |change: fn(&mut PoolState)| {
            let mut pool = pool(0, vec![held("a", 1, ("h", 2, 1))]);
            change(&mut pool);
            findings(&before, &(pool, vec![]), None)
        };
        assert_eq!(wrong(|_| {}), none());
        assert_eq!(wrong(|pool| pool.view.in_use = 2), ["one holder"]);
        assert_eq!(wrong(|pool| pool.view.free = 1), ["one holder"]);
        assert_eq!(wrong(|pool| pool.holders[0].weight = 2), ["one holder"]);
    }

    #[test]
    fn who_overtakes_is_found() {
        let members = |last| pool(0, vec![held("a", 1, ("h", 2, 2)), held("b", 1, ("h", 2, 2)), last]);
        let step = |queue: &[PermitWaitView], command: &LocksCommand| {
            let scene = |last| (members(last), queue.to_vec());
            findings(&scene(member("c", 1)), &scene(held("c", 1, ("p", 5, 1))), Some(command))
        };
        let (named, any) = (take(Wanted::Member("c".to_owned())), some(1, None));
        // So many go before everything; a member before the same one.
        assert_eq!(step(&[wait(3, "q", 2, None)], &named), [ORDER]);
        assert_eq!(step(&[wait(3, "q", 2, None)], &any), [ORDER]);
        assert_eq!(step(&[wait(3, "q", 1, Some("c"))], &named), [ORDER]);
        assert_eq!(step(&[wait(3, "q", 1, Some("a"))], &named), none());
        assert_eq!(step(&[wait(3, "q", 1, Some("c"))], &any), none());
    }

    #[test]
    fn who_waits_in_vain_is_found() {
        let stays = |members: Vec<MemberView>, queue: Vec<PermitWaitView>| {
            let scene = |members: &[MemberView]| (pool(0, members.to_vec()), queue.clone());
            findings(&scene(&members), &scene(&members), None)
        };
        let two = || vec![held("a", 1, ("h", 2, 1)), member("b", 1)];
        assert_eq!(stays(two(), vec![wait(3, "q", 2, None), wait(4, "r", 1, Some("a"))]), none());
        assert_eq!(stays(two(), vec![wait(3, "q", 1, None)]), [ORDER]);
        assert_eq!(stays(two(), vec![wait(3, "q", 1, Some("a")), wait(4, "r", 1, Some("b"))]), [ORDER]);
        assert_eq!(stays(two(), vec![wait(3, "q", 2, None), wait(4, "r", 1, Some("b"))]), none());
        assert_eq!(stays(two(), vec![wait(3, "q", 3, None)]), ["waits end"]);
        assert_eq!(stays(two(), vec![wait(3, "q", 1, Some("x"))]), ["waits end"]);
    }

    #[test]
    fn a_member_that_does_not_rest_is_found() {
        let resting = |until_ms| MemberView { resting_until_ms: Some(until_ms), ..member("a", 3) };
        let before = (pool(10, vec![held("a", 1, ("h", 2, 1))]), vec![]);
        let after = |member| (pool(10, vec![member]), vec![]);
        let returned = |member| findings(&before, &after(member), None);
        assert_eq!(returned(resting(CLOCK_MS + 10)), none());
        assert_eq!(returned(resting(CLOCK_MS + 9)), ["members rest"]);
        assert_eq!(returned(member("a", 3)), ["members rest"]);
        // Its rest is over, or it is not.
        let granted =
            |until_ms| findings(&after(resting(until_ms)), &after(held("a", 3, ("p", 5, 1))), Some(&some(1, None)));
        assert_eq!(granted(CLOCK_MS), none());
        assert_eq!(granted(CLOCK_MS + 1), ["members rest"]);
    }

    #[test]
    fn members_that_have_not_been_free_longest_are_found() {
        let (a, b, c) = (member("a", 3), member("b", 1), member("c", 2));
        let before = (pool(0, vec![a.clone(), b.clone(), c.clone()]), vec![]);
        let is_right = |members: [MemberView; 3], command: &LocksCommand| {
            let found = findings(&before, &(pool(0, members.to_vec()), vec![]), Some(command));
            assert!(found.iter().all(|name| name == ORDER));
            found.is_empty()
        };
        let got = |member: &MemberView| held(&member.name, member.free_since, ("p", 5, 2));
        assert!(is_right([a.clone(), got(&b), got(&c)], &some(2, None)));
        assert!(!is_right([got(&a), got(&b), c.clone()], &some(2, None)));
        assert!(is_right([got(&a), got(&b), c.clone()], &some(2, Some("a"))));
        assert!(!is_right([got(&a), b.clone(), got(&c)], &some(2, Some("a"))));
    }
}
