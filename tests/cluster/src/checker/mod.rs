//! Checks a history against the specification, in about linear time: every answer carries a revision, so each lock's
//! story is put in order by revision first, and then held against what callers did and against real time.
//!
//! What it finds: a lock with two writers or a reader beside a writer; a hold that vanished although nobody may have
//! ended it and its time was not over; a hold that came from nowhere, or after "nothing was done"; an answer that
//! contradicts the lock it shows; a token that was given twice or does not rise; an answer older than one that some
//! caller already had.
//!
//! A call of unknown outcome may have taken effect once, at any time after it began, or never.

mod answers;
mod causes;
mod real_time;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeMap;

use crate::history::{LockId, Record};

/// What contradicts the specification, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// Where and how.
    pub what: String,
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Never a writer together with anybody else.
    Exclusion,
    /// A hold ends only by its owner's release, a deletion, or its time.
    EndCause,
    /// A hold begins only with an acquire of its owner that was answered so, or may have been done.
    GrantCause,
    /// An answer agrees with the lock that it shows.
    Answer,
    /// A revision has one state, a token one hold.
    Consistency,
    /// What was answered is seen by everything that begins later.
    RealTime,
}

/// Checks a history. Empty when nothing contradicts the specification.
pub fn check(records: &[Record]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut by_lock: BTreeMap<&LockId, Vec<&Record>> = BTreeMap::new();
    let mut by_shard: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        by_lock.entry(&record.lock).or_default().push(record);
        by_shard.entry(&record.lock.shard).or_default().push(record);
    }
    for (lock, records) in by_lock {
        let mut found =
            ViolationSink { place: format!("{}/{}", lock.namespace, lock.name), violations: &mut violations };
        answers::check(&records, &mut found);
        let story = timeline::LockTimeline::build(&records, &mut found);
        causes::check(&records, &story, &mut found);
        real_time::check_lock(&records, &mut found);
    }
    for (shard, records) in by_shard {
        let mut found = ViolationSink { place: shard.to_owned(), violations: &mut violations };
        real_time::check_shard(&records, &mut found);
    }
    violations
}

/// Where violations go.
struct ViolationSink<'a> {
    place: String,
    violations: &'a mut Vec<Violation>,
}

impl ViolationSink<'_> {
    fn add(&mut self, rule: Rule, what: impl std::fmt::Display) {
        self.violations.push(Violation { rule, what: format!("{}: {what}", self.place) });
    }
}
