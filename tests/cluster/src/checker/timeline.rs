//! The story of one lock: who held it at each revision that anybody saw.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_types::Mode;

use super::{Rule, ViolationSink};
use crate::history::{Call, Hold, Outcome, Record};

/// The lock at one revision.
struct LockVersion {
    holds: Vec<Hold>,
    is_whole: bool,
    /// When the first caller knew of it.
    first_known: Duration,
}

/// A hold in the story.
#[derive(Debug)]
pub(super) struct ObservedHold {
    pub(super) hold: Hold,
    /// When the first caller saw it.
    pub(super) first_known: Duration,
    /// The last revision at which it was seen.
    pub(super) last_seen: u64,
    /// The first revision at which it was seen to be gone, if it was.
    pub(super) gone: Option<ObservedEnd>,
}

/// That a hold was seen to be gone.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservedEnd {
    /// At this revision.
    pub(super) revision: u64,
    /// When the first caller knew, of all that saw this revision or a later one.
    pub(super) known_at: Duration,
}

/// Every hold of a lock that anybody saw, by token.
pub(super) struct LockTimeline {
    pub(super) holds: BTreeMap<u64, ObservedHold>,
}

impl LockTimeline {
    /// Puts what callers saw in order of revision.
    pub(super) fn build(records: &[&Record], found: &mut ViolationSink<'_>) -> Self {
        let versions = versions(records, found);
        let known = earliest_known(&versions);
        let mut holds: BTreeMap<u64, ObservedHold> = BTreeMap::new();
        let mut present: Vec<u64> = Vec::new();
        // The latest revision of which all holders are known.
        let mut whole_at = 0;
        for (revision, version) in &versions {
            for hold in &version.holds {
                let Some(before) = holds.get_mut(&hold.token) else {
                    if hold.token <= whole_at {
                        let what = format!("{hold:?} was not there at {whole_at}, and is at {revision}");
                        found.add(Rule::GrantCause, what);
                    }
                    let first_known = known[revision];
                    let held = ObservedHold { hold: hold.clone(), first_known, last_seen: *revision, gone: None };
                    holds.insert(hold.token, held);
                    present.push(hold.token);
                    continue;
                };
                if before.hold != *hold {
                    found.add(Rule::Consistency, format!("one token, two holds: {:?} and {hold:?}", before.hold));
                }
                if let Some(gone) = before.gone {
                    found.add(
                        Rule::Consistency,
                        format!("{hold:?} was gone at {}, and is back at {revision}", gone.revision),
                    );
                }
                before.last_seen = *revision;
            }
            if version.is_whole {
                whole_at = *revision;
                present.retain(|token| {
                    let is_there = version.holds.iter().any(|hold| hold.token == *token);
                    if let (false, Some(held)) = (is_there, holds.get_mut(token)) {
                        held.gone = Some(ObservedEnd { revision: *revision, known_at: known[revision] });
                    }
                    is_there
                });
            }
        }
        let story = Self { holds };
        story.check_exclusion(found);
        story
    }

    /// From its grant to the last time it was seen a hold was there, and a writer was alone.
    fn check_exclusion(&self, found: &mut ViolationSink<'_>) {
        let mut last_reader: Option<&ObservedHold> = None;
        let mut last_writer: Option<&ObservedHold> = None;
        for held in self.holds.values() {
            let is_writer = held.hold.mode == Mode::Write;
            let before = if is_writer { [last_reader, last_writer] } else { [None, last_writer] };
            for other in before.into_iter().flatten().filter(|other| other.last_seen >= held.hold.token) {
                let until = other.last_seen;
                found.add(Rule::Exclusion, format!("{:?} and {:?} until {until} at the least", held.hold, other.hold));
            }
            let last = if is_writer { &mut last_writer } else { &mut last_reader };
            if last.is_none_or(|last| last.last_seen < held.last_seen) {
                *last = Some(held);
            }
        }
    }
}

/// All views by revision. A revision has one state.
fn versions(records: &[&Record], found: &mut ViolationSink<'_>) -> BTreeMap<u64, LockVersion> {
    let mut versions: BTreeMap<u64, LockVersion> = BTreeMap::new();
    for record in records {
        let Outcome::Answered(answer) = &record.outcome else { continue };
        if matches!(record.call, Call::Delete) {
            continue;
        }
        let view = &answer.lock;
        let mut holds = view.holds.clone();
        holds.sort_unstable();
        let Some(version) = versions.get_mut(&view.revision) else {
            let version = LockVersion { holds, is_whole: view.is_whole, first_known: record.end };
            versions.insert(view.revision, version);
            continue;
        };
        version.first_known = version.first_known.min(record.end);
        let (fewer, more) = if version.is_whole { (&holds, &version.holds) } else { (&version.holds, &holds) };
        let agree = fewer.iter().all(|hold| more.contains(hold));
        let agree = agree && (!(version.is_whole && view.is_whole) || holds.len() == version.holds.len());
        if !agree && (version.is_whole || view.is_whole) {
            let what = format!("two states at revision {}: {:?} and {holds:?}", view.revision, version.holds);
            found.add(Rule::Consistency, what);
        }
        if view.is_whole && !version.is_whole {
            version.holds = holds;
            version.is_whole = true;
        }
    }
    versions
}

/// Of each revision when the first caller knew it or a later one.
fn earliest_known(versions: &BTreeMap<u64, LockVersion>) -> BTreeMap<u64, Duration> {
    let mut earliest = Duration::MAX;
    let known = versions.iter().rev().map(|(revision, version)| {
        earliest = earliest.min(version.first_known);
        (*revision, earliest)
    });
    known.collect()
}
