//! Validates requests for conditions, semaphores, pools, latches and barriers.

use holdfast_types::{
    AWAIT_MS, BARRIER_RETAIN_MS, DEFAULT_BARRIER_RETAIN_MS, DEFAULT_LATCH_EXPIRES_IN_MS, DEFAULT_LATCH_RETAIN_MS,
    DEFAULT_RELOCK_MS, FencingToken, Jobs, Kind, Kinds, LATCH_EXPIRES_IN_MS, LATCH_RETAIN_MS, Limits,
    MAX_ASK_REASON_BYTES, MAX_ASK_WITHIN_MS, MAX_IDS_PER_COUNT_DOWN, MAX_NAME_BYTES, MAX_NAMES_PER_POOL_CHANGE,
    MAX_PARTIES, MAX_PERMITS, MAX_PRIORITY, Owner, Path, RELOCK_MS, Wanted, limit,
};

use super::{WaitOptions, bounded, existing_lock, metadata_of, name, new_lock, range, request_id, wait_options};
use crate::{ApiError, ApiResult, ChangePool, LockName, PoolMember, Terms};

/// Returns the path of a thing that a call may make.
pub fn new_thing(thing: &LockName, limits: &Limits) -> ApiResult<Path> {
    with_segments(new_lock(thing, limits)?)
}

/// Returns the path of a thing that may exist already, also from when paths could be deeper.
pub fn existing_thing(thing: &LockName, limits: &Limits) -> ApiResult<Path> {
    with_segments(existing_lock(thing, limits)?)
}

/// Returns a set of kinds by their names, as in addresses; locks if there are none.
pub fn kinds(names: &[String]) -> ApiResult<Kinds> {
    if names.is_empty() {
        return Ok(Kinds::LOCKS);
    }
    let kind = |name: &String| {
        let found = Kind::ALL.into_iter().find(|kind| kind.plural() == name);
        let known = || Kind::ALL.map(Kind::plural).join(", ");
        found.ok_or_else(|| ApiError::invalid("kinds", format!("kinds: must be some of {}", known())))
    };
    names.iter().map(kind).collect()
}

fn with_segments(path: Path) -> ApiResult<Path> {
    if path.0.is_empty() {
        let detail = "path: must have at least one segment; only a lock can be that of the whole namespace";
        return Err(ApiError::invalid("path", detail));
    }
    Ok(path)
}

/// Returns how long a new latch may stay active, and how long it is kept once it is final, in milliseconds.
pub fn latch_times(expires_in_ms: Option<u64>, retain_ms: Option<u64>) -> ApiResult<(u64, u64)> {
    let expires_in_ms = expires_in_ms.unwrap_or(DEFAULT_LATCH_EXPIRES_IN_MS);
    let retain_ms = retain_ms.unwrap_or(DEFAULT_LATCH_RETAIN_MS);
    range("expires_in_ms", expires_in_ms, *LATCH_EXPIRES_IN_MS.start(), *LATCH_EXPIRES_IN_MS.end())?;
    range("retain_ms", retain_ms, *LATCH_RETAIN_MS.start(), *LATCH_RETAIN_MS.end())?;
    Ok((expires_in_ms, retain_ms))
}

/// Returns what a count-down reports: either ids, or ranges of indexes with both ends included, in order and apart.
pub fn jobs(ids: Option<&[String]>, ranges: Option<&[(u64, u64)]>) -> ApiResult<Jobs> {
    match (ids, ranges) {
        (Some(ids), None) => {
            count("ids", ids.len())?;
            ids.iter().enumerate().try_for_each(|(index, id)| name(&format!("ids[{index}]"), id))?;
            Ok(Jobs::Named(ids.to_vec()))
        }
        (None, Some(ranges)) => {
            count("ranges", ranges.len())?;
            if let Some(index) = ranges.iter().position(|(from, to)| from > to) {
                let field = format!("ranges[{index}]");
                return Err(ApiError::invalid(field.clone(), format!("{field}: must not end before it begins")));
            }
            Ok(Jobs::Indexed(merged(ranges)))
        }
        (Some(_), Some(_)) => Err(ApiError::invalid("ranges", "ranges: only one of ids and ranges may be given")),
        (None, None) => Err(ApiError::invalid("ids", "ids: one of ids and ranges is needed")),
    }
}

/// Returns the ranges in order, and those that overlap or meet as one: the same indexes are counted at the cost of one
/// range, however often they are named.
fn merged(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in sorted {
        match merged.last_mut() {
            Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
            _ => merged.push((from, to)),
        }
    }
    merged
}

fn count(field: &str, given: usize) -> ApiResult<()> {
    if (1..=MAX_IDS_PER_COUNT_DOWN).contains(&given) {
        return Ok(());
    }
    let detail = format!("{field}: must have 1 to {MAX_IDS_PER_COUNT_DOWN} entries, has {given}");
    Err(ApiError::invalid(field, detail))
}

/// Validates the number of permits of a semaphore.
pub fn permits(permits: u64) -> ApiResult<()> {
    range("permits", permits, 0, MAX_PERMITS)
}

/// Validates what a request asks for. Permits that it says there are count from 1 on: a request that leaves that to the
/// configuration has none, as 0 is no request for a paused semaphore. The limits of the account bound how many members.
pub fn wanted(wanted: &Wanted) -> ApiResult<()> {
    match wanted {
        Wanted::Permits { weight, permits } => {
            range("weight", *weight, 1, MAX_PERMITS)?;
            permits.map_or(Ok(()), |permits| range("permits", permits, 1, MAX_PERMITS))
        }
        Wanted::Members { count, prefer } => {
            range("count", *count, 1, MAX_PERMITS)?;
            prefer.as_deref().map_or(Ok(()), |prefer| name("prefer", prefer))
        }
        Wanted::Member(member) => name("member", member),
    }
}

/// Returns the priority of a request for permits or members.
pub fn priority(priority: u32) -> ApiResult<u8> {
    let priority = u8::try_from(priority).unwrap_or(u8::MAX);
    range("priority", priority.into(), 0, MAX_PRIORITY.into())?;
    Ok(priority)
}

/// Returns what a request takes from a pool: some members, one unless it says how many, or one by its name.
pub fn wanted_members(count: Option<u64>, member: Option<String>, prefer: Option<String>) -> ApiResult<Wanted> {
    match (count, member, prefer) {
        (None, Some(member), None) => Ok(Wanted::Member(member)),
        (_, Some(_), _) => Err(ApiError::invalid("member", "member: does not go with count or prefer")),
        (count, None, prefer) => Ok(Wanted::Members { count: count.unwrap_or(1), prefer }),
    }
}

/// Members that one list of names may have: as many as a pool has by default.
const MAX_NAMED_MEMBERS: u64 = 1_000;

/// Validates all members of a pool. No account may have more members than one list of names,
/// so that more are refused as by its limit.
pub fn configured_members(members: &[PoolMember], limits: &Limits) -> ApiResult<()> {
    if members.len() as u64 > MAX_NAMED_MEMBERS {
        let hint = "remove members or have the limit raised";
        return Err(ApiError::limited(&limit::MEMBERS_OF_POOL, limits.max_members_per_pool, hint));
    }
    described_members("members", members, limits)
}

/// Validates the names of members and what is stored with them.
fn described_members(field: &str, members: &[PoolMember], limits: &Limits) -> ApiResult<()> {
    members.iter().enumerate().try_for_each(|(index, member)| {
        name(&format!("{field}[{index}].name"), &member.name)?;
        metadata_of(&format!("{field}[{index}].metadata"), &member.metadata, limits)
    })
}

/// Validates names of members. The limits of the account bound how many members a pool has.
pub fn members(field: &str, members: &[String]) -> ApiResult<()> {
    range(field, members.len() as u64, 0, MAX_NAMED_MEMBERS)?;
    members.iter().enumerate().try_for_each(|(index, member)| name(&format!("{field}[{index}]"), member))
}

/// Validates the members in a change of a pool: so many in all lists together that the change is one step.
pub fn changed_members(change: &ChangePool, limits: &Limits) -> ApiResult<()> {
    let lists = [("remove", &change.remove), ("disable", &change.disable), ("enable", &change.enable)];
    let given = change.add.len() + lists.iter().map(|(_, names)| names.len()).sum::<usize>();
    if given > MAX_NAMES_PER_POOL_CHANGE {
        let fields = "add, remove, disable, enable";
        let most = MAX_NAMES_PER_POOL_CHANGE;
        let detail = format!("{fields}: must have at most {most} names together, have {given}; send several changes");
        return Err(ApiError::invalid(fields, detail));
    }
    described_members("add", &change.add, limits)?;
    lists.into_iter().try_for_each(|(field, names)| members(field, names))
}

/// Returns the members that a release names; none for the whole hold. An empty list is refused: a caller whose list
/// became empty returns nothing, and must not return everything.
pub fn members_to_return(names: Option<Vec<String>>) -> ApiResult<Vec<String>> {
    let Some(names) = names else { return Ok(Vec::new()) };
    if names.is_empty() {
        let detail = "members: must not be empty; without it the whole hold is returned";
        return Err(ApiError::invalid("members", detail));
    }
    members("members", &names)?;
    Ok(names)
}

/// Validates how long a member rests after its hold ended, in milliseconds.
pub fn cooldown_ms(cooldown_ms: u64, limits: &Limits) -> ApiResult<()> {
    super::at_most("cooldown_ms", cooldown_ms, &limit::MAX_TTL, limits)
}

/// Returns how long permits are held, in milliseconds: a process's have a time to live, a session's last as long as it.
pub fn permit_ttl_ms(owner: &Owner, ttl_ms: Option<u64>, limits: &Limits) -> ApiResult<Option<u64>> {
    match (owner, ttl_ms) {
        (Owner::Process(_), Some(ttl_ms)) => {
            super::check_ttl_ms(ttl_ms, limits)?;
            Ok(Some(ttl_ms))
        }
        (Owner::Process(_), None) => Err(ApiError::invalid("ttl_ms", "ttl_ms: is needed with a process_id")),
        (Owner::Session { .. }, None) => Ok(None),
        (Owner::Session { .. }, Some(_)) => {
            let detail = "ttl_ms: does not go with a session_id; its holds last as long as it does";
            Err(ApiError::invalid("ttl_ms", detail))
        }
    }
}

/// Returns the options of a wait for permits, if the request waits.
pub fn permit_wait(
    wait_ms: u64,
    poll_ms: Option<u64>,
    fencing_token: Option<FencingToken>,
    limits: &Limits,
) -> ApiResult<Option<WaitOptions>> {
    if fencing_token.is_some() && wait_ms > 0 {
        let detail = "fencing_token: only extends the one hold that has it; it does not go with wait_ms";
        return Err(ApiError::invalid("fencing_token", detail));
    }
    wait_options(&Terms { wait_ms, poll_ms, ..Terms::default() }, limits)
}

/// Validates what a release of permits names: one of the two at least.
pub fn permits_to_release(request: Option<&str>, fencing_token: Option<FencingToken>) -> ApiResult<()> {
    match (request, fencing_token) {
        (Some(request), _) => request_id(request),
        (None, Some(_)) => Ok(()),
        (None, None) => {
            Err(ApiError::invalid("request_id", "request_id: one of request_id and fencing_token is needed"))
        }
    }
}

/// Validates what a request to release says.
pub fn ask_release(member: Option<&str>, reason: &str, within_ms: Option<u64>) -> ApiResult<()> {
    if reason.len() > MAX_ASK_REASON_BYTES {
        let detail = format!("reason: must have at most {MAX_ASK_REASON_BYTES} bytes, has {}", reason.len());
        return Err(ApiError::invalid("reason", detail));
    }
    range("within_ms", within_ms.unwrap_or(0), 0, MAX_ASK_WITHIN_MS)?;
    member.map_or(Ok(()), |member| name("member", member))
}

/// Validates how many meet at a barrier. The limits of the account may allow fewer.
pub fn parties(parties: u32) -> ApiResult<()> {
    range("parties", parties.into(), 1, MAX_PARTIES.into())
}

/// Returns how long a barrier is kept with nobody in it, in milliseconds; 0 is for ever.
pub fn barrier_retain_ms(retain_ms: Option<u64>) -> ApiResult<u64> {
    let retain_ms = retain_ms.unwrap_or(DEFAULT_BARRIER_RETAIN_MS);
    if retain_ms > 0 && !BARRIER_RETAIN_MS.contains(&retain_ms) {
        let (min, max) = (BARRIER_RETAIN_MS.start(), BARRIER_RETAIN_MS.end());
        let detail = format!("retain_ms: must be 0 or {min} to {max}, is {retain_ms}");
        return Err(ApiError::invalid("retain_ms", detail));
    }
    Ok(retain_ms)
}

/// Validates the name of a condition, which may be empty.
pub fn condition(condition: &str) -> ApiResult<()> {
    bounded("condition", condition, 0, MAX_NAME_BYTES)
}

/// Validates how long an await of a connected session lasts, in milliseconds.
pub fn stream_await_ms(wait_ms: Option<u64>) -> ApiResult<()> {
    wait_ms.map_or(Ok(()), |wait_ms| range("wait_ms", wait_ms, *AWAIT_MS.start(), *AWAIT_MS.end()))
}

/// Returns how long a call awaits a condition, and how long it then waits for the lock, in milliseconds; and the wait
/// options of both together.
pub fn await_times(
    (wait_ms, relock_ms): (u64, Option<u64>),
    poll_ms: Option<u64>,
    limits: &Limits,
) -> ApiResult<(u64, WaitOptions)> {
    let relock_ms = relock_ms.unwrap_or(DEFAULT_RELOCK_MS);
    range("wait_ms", wait_ms, *AWAIT_MS.start(), *AWAIT_MS.end())?;
    range("relock_ms", relock_ms, *RELOCK_MS.start(), *RELOCK_MS.end())?;
    let terms = Terms { wait_ms, poll_ms, ..Terms::default() };
    let options =
        wait_options(&terms, limits)?.ok_or_else(|| ApiError::invalid("wait_ms", "wait_ms: must be at least 1"))?;
    Ok((relock_ms, options))
}

/// Validates how long a call waits, in milliseconds.
pub fn wait_ms(wait_ms: u64, limits: &Limits) -> ApiResult<()> {
    super::at_most("wait_ms", wait_ms, &limit::WAIT, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, ThingName};

    fn field<T: std::fmt::Debug>(refused: ApiResult<T>) -> String {
        refused.unwrap_err().ids[0].1.clone()
    }

    #[test]
    fn a_thing_has_a_name_or_at_least_one_segment() {
        let limits = Limits::default();
        assert_eq!(new_thing(&"a/b".into(), &limits).unwrap(), Path::flat("a/b"));
        let path = |depth| LockName::Path(vec!["x".to_owned(); depth]);
        for check in [new_thing, existing_thing] {
            assert_eq!(check(&path(16), &limits).unwrap().0.len(), 16);
            assert_eq!(field(check(&path(0), &limits)), "path");
            assert_eq!(field(check(&path(17), &limits)), "path");
            assert_eq!(field(check(&"".into(), &limits)), "name");
        }
    }

    #[test]
    fn a_latch_lasts_a_day_and_is_kept_an_hour_unless_told_otherwise() {
        assert_eq!(latch_times(None, None).unwrap(), (86_400_000, 3_600_000));
        assert_eq!(latch_times(Some(1_000), Some(60_000)).unwrap(), (1_000, 60_000));
        let days = |days: u64| days * 86_400_000;
        assert_eq!(latch_times(Some(days(30)), Some(days(30))).unwrap(), (days(30), days(30)));
        for wrong in [0, 999, days(30) + 1, u64::MAX] {
            assert_eq!(field(latch_times(Some(wrong), None)), "expires_in_ms");
        }
        for wrong in [0, 59_999, days(30) + 1, u64::MAX] {
            assert_eq!(field(latch_times(None, Some(wrong))), "retain_ms");
        }
    }

    #[test]
    fn a_barrier_has_some_parties_and_is_kept_an_hour_unless_told_otherwise() {
        assert!(parties(1).is_ok() && parties(1_000).is_ok());
        assert_eq!(field(parties(0)), "parties");
        assert_eq!(field(parties(1_001)), "parties");
        assert_eq!(barrier_retain_ms(None).unwrap(), 3_600_000);
        assert_eq!(barrier_retain_ms(Some(0)).unwrap(), 0);
        for wrong in [1, 59_999, 30 * 86_400_000 + 1] {
            let refused = barrier_retain_ms(Some(wrong)).unwrap_err();
            assert!(refused.detail.starts_with("retain_ms: must be 0 or 60000 to "), "{}", refused.detail);
        }
    }

    #[test]
    fn a_request_for_permits_has_figures_within_their_bounds() {
        let of = |weight, permits| wanted(&Wanted::Permits { weight, permits });
        assert!(of(1, None).is_ok() && of(MAX_PERMITS, Some(1)).is_ok() && priority(9).is_ok());
        assert_eq!(field(of(0, None)), "weight");
        assert_eq!(field(of(MAX_PERMITS + 1, None)), "weight");
        assert_eq!(field(of(1, Some(0))), "permits");
        assert_eq!(field(priority(10)), "priority");
        assert_eq!(field(priority(u32::MAX)), "priority");
        assert!(permits(0).is_ok() && permits(MAX_PERMITS).is_ok());
        assert_eq!(field(permits(MAX_PERMITS + 1)), "permits");
    }

    #[test]
    fn a_request_takes_some_members_or_one_by_its_name() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(wanted_members(None, None, None).unwrap(), Wanted::Members { count: 1, prefer: None });
        let preferring = Wanted::Members { count: 3, prefer: text("a") };
        assert_eq!(wanted_members(Some(3), None, text("a")).unwrap(), preferring);
        assert_eq!(wanted_members(None, text("a"), None).unwrap(), Wanted::Member("a".to_owned()));
        assert_eq!(field(wanted_members(Some(1), text("a"), None)), "member");
        assert_eq!(field(wanted_members(None, text("a"), text("b"))), "member");
        assert_eq!(field(wanted(&Wanted::Members { count: 0, prefer: None })), "count");
        assert_eq!(field(wanted(&Wanted::Members { count: 1, prefer: text("") })), "prefer");
        assert_eq!(field(wanted(&Wanted::Member(String::new()))), "member");
        assert_eq!(field(members("remove", &["a".to_owned(), String::new()])), "remove[1]");
        assert_eq!(field(members("remove", &vec!["a".to_owned(); 1_001])), "remove");
        assert!(members("remove", &vec!["a".to_owned(); 1_000]).is_ok());
        let longest = Limits::default().max_ttl_ms;
        assert_eq!(members_to_return(None).unwrap(), [""; 0]);
        assert_eq!(members_to_return(Some(vec!["a".to_owned()])).unwrap(), ["a"]);
        assert_eq!(field(members_to_return(Some(Vec::new()))), "members");
        assert_eq!(field(members_to_return(Some(vec![String::new()]))), "members[0]");
        assert!(cooldown_ms(longest, &Limits::default()).is_ok());
        assert_eq!(field(cooldown_ms(longest + 1, &Limits::default())), "cooldown_ms");
    }

    #[test]
    fn a_pool_with_more_members_than_any_account_may_have_is_refused_as_by_the_limit_of_the_account() {
        let limits = Limits { max_members_per_pool: 7, ..Limits::default() };
        let member = || PoolMember { name: "a".to_owned(), disabled: false, metadata: [].into() };
        assert!(configured_members(&vec![member(); 1_000], &limits).is_ok());
        let refused = configured_members(&vec![member(); 1_001], &limits).unwrap_err();
        let of_limit = [("limit", "max_members_per_pool".to_owned()), ("max", "7".to_owned())];
        assert_eq!((refused.code, &refused.ids[..]), (Code::QuotaExceeded, &of_limit[..]));
        let highest = limit::MEMBERS_OF_POOL.value;
        assert!(matches!(highest, limit::Value::OfAccount { max: MAX_NAMED_MEMBERS, .. }));
    }

    #[test]
    fn what_is_wrong_with_a_member_names_the_member() {
        let limits = Limits::default();
        let member = |name: &str, key: &str| {
            let metadata = [(key.to_owned(), "x".to_owned())].into();
            PoolMember { name: name.to_owned(), disabled: false, metadata }
        };
        let good = member("a", "k");
        for (wrong, expected) in [(member("", "k"), "[1].name"), (member("b", ""), "[1].metadata")] {
            let members = vec![good.clone(), wrong];
            assert_eq!(field(configured_members(&members, &limits)), format!("members{expected}"));
            let thing = ThingName { namespace: "n".into(), name: "p".into() };
            let change = ChangePool { thing, add: members, remove: vec![], disable: vec![], enable: vec![] };
            let refused = changed_members(&change, &limits).unwrap_err();
            assert!(refused.detail.starts_with(&format!("add{expected}: ")), "{}", refused.detail);
            assert_eq!(refused.ids[0].1, format!("add{expected}"));
        }
    }

    #[test]
    fn all_lists_of_a_change_of_a_pool_have_a_thousand_names_together() {
        let names = |count: usize| vec!["a".to_owned(); count];
        let add =
            |count| names(count).into_iter().map(|name| PoolMember { name, disabled: false, metadata: [].into() });
        let change = |added, remove, disable, enable| {
            let thing = ThingName { namespace: "n".into(), name: "p".into() };
            let (remove, disable, enable) = (names(remove), names(disable), names(enable));
            let change = ChangePool { thing, add: add(added).collect(), remove, disable, enable };
            changed_members(&change, &Limits::default())
        };
        for full in [(1_000, 0, 0, 0), (0, 1_000, 0, 0), (0, 0, 1_000, 0), (0, 0, 0, 1_000), (250, 250, 250, 250)] {
            assert!(change(full.0, full.1, full.2, full.3).is_ok(), "{full:?}");
        }
        for over in [(1_001, 0, 0, 0), (1, 1_000, 0, 0), (500, 500, 1, 0), (251, 250, 250, 250), (0, 0, 500, 501)] {
            let refused = change(over.0, over.1, over.2, over.3);
            let detail = refused.as_ref().unwrap_err().to_string();
            assert!(detail.contains("at most 1000 names together, have 1001"), "{detail}");
            assert_eq!(field(refused), "add, remove, disable, enable");
        }
        let thing = ThingName { namespace: "n".into(), name: "p".into() };
        let (add, remove, disable) = (vec![], names(1), vec![String::new()]);
        let change = ChangePool { thing, add, remove, disable, enable: vec![] };
        assert_eq!(field(changed_members(&change, &Limits::default())), "disable[0]");
    }

    #[test]
    fn a_process_names_a_time_to_live_and_a_session_none() {
        let (limits, process) = (Limits::default(), Owner::Process("p".into()));
        let session = Owner::Session { session_id: "se_1".into(), holder: None };
        assert_eq!(permit_ttl_ms(&process, Some(1_000), &limits).unwrap(), Some(1_000));
        assert_eq!(permit_ttl_ms(&session, None, &limits).unwrap(), None);
        for (owner, ttl_ms) in [(&process, None), (&process, Some(1)), (&session, Some(1_000))] {
            assert_eq!(field(permit_ttl_ms(owner, ttl_ms, &limits)), "ttl_ms");
        }
    }

    #[test]
    fn an_extension_does_not_wait_and_a_release_names_its_hold() {
        let limits = Limits::default();
        assert_eq!(permit_wait(0, None, Some(7), &limits).unwrap(), None);
        assert_eq!(permit_wait(5, None, None, &limits).unwrap().unwrap().wait_ms, 5);
        assert_eq!(field(permit_wait(5, None, Some(7), &limits)), "fencing_token");
        assert!(permits_to_release(Some("r"), None).is_ok() && permits_to_release(None, Some(7)).is_ok());
        assert_eq!(field(permits_to_release(None, None)), "request_id");
        assert_eq!(field(permits_to_release(Some(""), Some(7))), "request_id");
    }

    #[test]
    fn a_request_to_release_has_a_short_reason_and_a_time_of_ten_minutes_at_most() {
        assert!(ask_release(None, "", None).is_ok() && ask_release(Some("m"), &"x".repeat(256), Some(600_000)).is_ok());
        assert_eq!(field(ask_release(None, &"x".repeat(257), None)), "reason");
        assert_eq!(field(ask_release(None, "", Some(600_001))), "within_ms");
        assert_eq!(field(ask_release(Some(""), "", None)), "member");
    }

    #[test]
    fn an_await_lasts_up_to_ten_minutes_and_waits_for_the_lock_a_minute_unless_told_otherwise() {
        let limits = Limits::default();
        let times = |wait_ms, relock_ms, poll_ms| {
            await_times((wait_ms, relock_ms), poll_ms, &limits).map(|(relock_ms, options)| (relock_ms, options.wait_ms))
        };
        assert_eq!(times(1, None, None).unwrap(), (60_000, 1));
        assert_eq!(times(600_000, Some(600_000), Some(5)).unwrap(), (600_000, 600_000));
        for wrong in [0, 600_001] {
            assert_eq!(field(times(wrong, None, None)), "wait_ms");
            assert_eq!(field(times(1, Some(wrong), None)), "relock_ms");
            assert_eq!(field(stream_await_ms(Some(wrong))), "wait_ms");
        }
        assert!(stream_await_ms(None).is_ok() && condition("").is_ok() && condition("full").is_ok());
        let refused = condition(&"x".repeat(129)).unwrap_err();
        assert_eq!(refused.detail, "condition: must have 0 to 128 bytes, has 129");
    }

    #[test]
    fn a_count_down_names_one_to_a_hundred_ids_or_ranges() {
        let ids = |count: usize| vec!["x".to_owned(); count];
        assert_eq!(jobs(Some(&ids(100)), None).unwrap(), Jobs::Named(ids(100)));
        assert_eq!(jobs(None, Some(&[(7, 9), (1, 2)])).unwrap(), Jobs::Indexed(vec![(1, 2), (7, 9)]));
        let all = (0, u64::MAX);
        assert_eq!(jobs(None, Some(&[all; 100])).unwrap(), Jobs::Indexed(vec![all]));
        let ranges = [(5, 9), (0, 2), (3, 3), (6, 7), (11, u64::MAX), (u64::MAX, u64::MAX)];
        assert_eq!(jobs(None, Some(&ranges)).unwrap(), Jobs::Indexed(vec![(0, 3), (5, 9), (11, u64::MAX)]));
        assert_eq!(field(jobs(None, None)), "ids");
        assert_eq!(field(jobs(Some(&ids(0)), None)), "ids");
        assert_eq!(field(jobs(Some(&ids(101)), None)), "ids");
        assert_eq!(field(jobs(Some(&["x".to_owned(), String::new()]), None)), "ids[1]");
        assert_eq!(field(jobs(Some(&ids(1)), Some(&[(0, 0)]))), "ranges");
        assert_eq!(field(jobs(None, Some(&[(0, 0); 101]))), "ranges");
        assert_eq!(field(jobs(None, Some(&[(0, 1), (1, 0)]))), "ranges[1]");
    }
}
