//! Real time: what was answered is seen by everything that begins later.

use std::collections::HashMap;
use std::time::Duration;

use super::{Rule, ViolationSink};
use crate::history::{Call, Outcome, Record};

/// Something that took effect between two instants, at a revision.
struct Observation<'a> {
    record: &'a Record,
    start: Duration,
    end: Duration,
    /// The revision was at least this.
    at_least: u64,
    /// It was no more than this.
    at_most: u64,
}

/// Of one lock no view is older than one that was there before the call began.
pub(super) fn check_lock(records: &[&Record], found: &mut ViolationSink<'_>) {
    let seen = records.iter().filter(|record| !matches!(record.call, Call::Delete)).filter_map(|record| {
        let Outcome::Answered(answer) = &record.outcome else { return None };
        let revision = answer.lock.revision;
        Some(Observation { record, start: record.start, end: record.end, at_least: revision, at_most: revision })
    });
    check(seen.collect(), found);
}

/// Of one shard no change has a revision that was passed before the call began. So tokens rise, over all its locks.
pub(super) fn check_shard(records: &[&Record], found: &mut ViolationSink<'_>) {
    let mut begun: HashMap<(&str, &str, &str), Vec<&Record>> = HashMap::new();
    for record in records.iter().filter(|record| matches!(record.call, Call::Acquire { token: None, .. })) {
        begun.entry((&record.lock.namespace, &record.lock.name, &record.owner)).or_default().push(record);
    }
    let mut tokens: HashMap<u64, &Record> = HashMap::new();
    let mut seen = Vec::new();
    for record in records.iter().filter(|record| !matches!(record.call, Call::Delete)) {
        let Outcome::Answered(answer) = &record.outcome else { continue };
        let revision = answer.lock.revision;
        let is_free = answer.lock.is_whole && answer.lock.holds.is_empty();
        let has_ended = matches!(record.call, Call::Release { .. }) && answer.success;
        let at_most = if is_free || has_ended { revision } else { u64::MAX };
        seen.push(Observation { record, start: record.start, end: record.end, at_least: revision, at_most });
        let (Call::Acquire { .. }, Some(token)) = (record.call, answer.token) else { continue };
        let other = tokens.insert(token, record);
        if other.is_some_and(|other| other.lock != record.lock || other.owner != record.owner) {
            found.add(Rule::Consistency, format!("token {token} was given twice: {other:?} and {record:?}"));
        }
        // The grant itself came with the first acquire that it can have been.
        let own = begun.get(&(&*record.lock.namespace, &*record.lock.name, &*record.owner));
        let first =
            own.into_iter().flatten().filter(|earlier| may_have_granted(earlier, token)).map(|first| first.start);
        if let Some(start) = first.min() {
            seen.push(Observation { record, start, end: record.end, at_least: token, at_most: token });
        }
    }
    check(seen, found);
}

/// Whether an acquire can have been the one that granted a token.
fn may_have_granted(record: &Record, token: u64) -> bool {
    match &record.outcome {
        Outcome::Unknown => true,
        Outcome::Answered(answer) => answer.token == Some(token),
        Outcome::NotDone => false,
    }
}

fn check(seen: Vec<Observation<'_>>, found: &mut ViolationSink<'_>) {
    let mut by_end: Vec<&Observation<'_>> = seen.iter().collect();
    by_end.sort_by_key(|seen| seen.end);
    let mut by_start: Vec<&Observation<'_>> = seen.iter().collect();
    by_start.sort_by_key(|seen| seen.start);
    let mut ended = by_end.into_iter().peekable();
    let mut latest: Option<&Observation<'_>> = None;
    for seen in by_start {
        while let Some(before) = ended.next_if(|before| before.end < seen.start) {
            if latest.is_none_or(|latest| before.at_least > latest.at_least) {
                latest = Some(before);
            }
        }
        if let Some(latest) = latest.filter(|latest| latest.at_least > seen.at_most) {
            found.add(Rule::RealTime, format!("{:?} was answered before {:?} began", latest.record, seen.record));
        }
    }
}
