//! Validates requests about things of other kinds than locks.

use holdfast_types::{
    DEFAULT_LATCH_EXPIRES_IN_MS, DEFAULT_LATCH_RETAIN_MS, Jobs, LATCH_EXPIRES_IN_MS, LATCH_RETAIN_MS, Limits,
    MAX_IDS_PER_COUNT_DOWN, Path,
};

use super::{existing_lock, name, new_lock, range};
use crate::{ApiError, ApiResult, LockName};

/// Returns the path of a thing that a call may make.
pub fn new_thing(thing: &LockName, limits: &Limits) -> ApiResult<Path> {
    with_segments(new_lock(thing, limits)?)
}

/// Returns the path of a thing that may exist already, also from when paths could be deeper.
pub fn existing_thing(thing: &LockName, limits: &Limits) -> ApiResult<Path> {
    with_segments(existing_lock(thing, limits)?)
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

/// Returns what a count-down reports: either ids or ranges of indexes, both ends included.
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
            Ok(Jobs::Indexed(ranges.to_vec()))
        }
        (Some(_), Some(_)) => Err(ApiError::invalid("ranges", "ranges: only one of ids and ranges may be given")),
        (None, None) => Err(ApiError::invalid("ids", "ids: one of ids and ranges is needed")),
    }
}

fn count(field: &str, given: usize) -> ApiResult<()> {
    if (1..=MAX_IDS_PER_COUNT_DOWN).contains(&given) {
        return Ok(());
    }
    let detail = format!("{field}: must have 1 to {MAX_IDS_PER_COUNT_DOWN} entries, has {given}");
    Err(ApiError::invalid(field, detail))
}

/// Validates how long a call waits, in milliseconds.
pub fn wait_ms(wait_ms: u64, limits: &Limits) -> ApiResult<()> {
    range("wait_ms", wait_ms, 0, limits.max_wait_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_count_down_names_one_to_a_hundred_ids_or_ranges() {
        let ids = |count: usize| vec!["x".to_owned(); count];
        assert_eq!(jobs(Some(&ids(100)), None).unwrap(), Jobs::Named(ids(100)));
        assert_eq!(jobs(None, Some(&[(3, 3), (1, 2)])).unwrap(), Jobs::Indexed(vec![(3, 3), (1, 2)]));
        assert_eq!(field(jobs(None, None)), "ids");
        assert_eq!(field(jobs(Some(&ids(0)), None)), "ids");
        assert_eq!(field(jobs(Some(&ids(101)), None)), "ids");
        assert_eq!(field(jobs(Some(&["x".to_owned(), String::new()]), None)), "ids[1]");
        assert_eq!(field(jobs(Some(&ids(1)), Some(&[(0, 0)]))), "ranges");
        assert_eq!(field(jobs(None, Some(&[(0, 0); 101]))), "ranges");
        assert_eq!(field(jobs(None, Some(&[(0, 1), (1, 0)]))), "ranges[1]");
    }
}
