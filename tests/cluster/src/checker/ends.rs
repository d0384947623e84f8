//! How holds began and ended: each needs a cause.

use std::collections::HashMap;
use std::time::Duration;

use super::story::{Gone, Held, Story};
use super::{Found, Rule};
use crate::history::{Call, Outcome, Record};

/// What one owner did to the lock.
#[derive(Default)]
struct Deeds<'a> {
    acquires: Vec<&'a Record>,
    /// Releases, each of which may have ended one hold.
    releases: Vec<Release<'a>>,
    /// Acquires of unknown outcome that have not been taken for the cause of a hold.
    unknown_left: usize,
}

struct Release<'a> {
    record: &'a Record,
    is_used: bool,
}

pub(super) fn check(records: &[&Record], story: &Story, found: &mut Found<'_>) {
    let mut deeds: HashMap<&str, Deeds<'_>> = HashMap::new();
    let mut deletes = Vec::new();
    for record in records.iter().copied().filter(|record| record.outcome != Outcome::NotDone) {
        let own = deeds.entry(&record.owner).or_default();
        let is_unknown = record.outcome == Outcome::Unknown;
        match record.call {
            Call::Acquire { token, .. } => {
                own.acquires.push(record);
                own.unknown_left += usize::from(is_unknown && token.is_none());
            }
            Call::Release { .. } => own.releases.push(Release { record, is_used: false }),
            Call::Delete => deletes.push(record),
            Call::Get => {}
        }
    }
    for held in story.holds.values() {
        let own = deeds.entry(&held.hold.owner).or_default();
        check_beginning(held, own, found);
        if let Some(gone) = held.gone {
            let deleted = deletes.iter().any(|record| record.start <= gone.known);
            if !released(held, gone, own) && !deleted && !may_have_expired(held, gone, &own.acquires) {
                found.add(Rule::Kept, format!("nobody ended it, and it is gone: {held:?}"));
            }
        }
    }
    for (owner, own) in &mut deeds {
        for release in own.releases.iter().filter(|release| !release.is_used && has_released(release.record)) {
            // It may have ended a hold of an acquire of unknown outcome, which nobody ever saw.
            if own.unknown_left == 0 {
                found.add(Rule::Answer, format!("{owner} released what it did not hold: {:?}", release.record));
            }
            own.unknown_left = own.unknown_left.saturating_sub(1);
        }
    }
}

/// Whether the answer says that a hold ended.
fn has_released(record: &Record) -> bool {
    matches!(&record.outcome, Outcome::Answered(answer) if answer.success)
}

fn check_beginning(held: &Held, own: &mut Deeds<'_>, found: &mut Found<'_>) {
    let answered = own.acquires.iter().any(|record| gave(record, held));
    if answered {
        return;
    }
    let may_have = own.acquires.iter().any(|record| {
        let fits = matches!(record.call, Call::Acquire { mode, token: None, .. } if mode == held.hold.mode);
        fits && record.outcome == Outcome::Unknown && record.start <= held.first_known
    });
    if !may_have || own.unknown_left == 0 {
        found.add(Rule::Granted, format!("nobody was granted it: {held:?}"));
    }
    own.unknown_left = own.unknown_left.saturating_sub(1);
}

/// Whether that acquire was answered with that hold.
fn gave(record: &Record, held: &Held) -> bool {
    match (&record.call, &record.outcome) {
        (Call::Acquire { mode, .. }, Outcome::Answered(answer)) => {
            answer.success && answer.token == Some(held.hold.token) && *mode == held.hold.mode
        }
        _ => false,
    }
}

/// Looks for the release that ended the hold: one that was answered so at a revision in question, or else one of
/// unknown outcome.
fn released(held: &Held, gone: Gone, own: &mut Deeds<'_>) -> bool {
    let names = |record: &Record| match record.call {
        Call::Release { token } => token.is_none_or(|token| token == held.hold.token),
        _ => false,
    };
    let answered = own.releases.iter_mut().find(|release| {
        let revision = match &release.record.outcome {
            Outcome::Answered(answer) => answer.lock.revision,
            _ => return false,
        };
        !release.is_used && names(release.record) && held.last_seen < revision && revision <= gone.by
    });
    // A release that the gateway had to send again, because the leader died over it, may have ended the hold the first
    // time and then finds nothing: its answer is that of the second time.
    let unknown = |release: &&mut Release<'_>| {
        let may_have = match &release.record.outcome {
            Outcome::Unknown => true,
            Outcome::Answered(answer) => !answer.success && answer.lock.revision >= gone.by,
            Outcome::NotDone => false,
        };
        !release.is_used && may_have && release.record.start <= gone.known && names(release.record)
    };
    let cause = match answered {
        Some(release) => Some(release),
        None => own.releases.iter_mut().find(unknown),
    };
    cause.map(|release| release.is_used = true).is_some()
}

/// Whether its time may have been over when it was seen to be gone. Time counts from before the last renewal that was
/// answered before, and every renewal that may have been done may have shortened it.
fn may_have_expired(held: &Held, gone: Gone, acquires: &[&Record]) -> bool {
    let end_of = |record: &Record| match record.call {
        Call::Acquire { ttl_ms, .. } => record.start + Duration::from_millis(ttl_ms),
        _ => Duration::MAX,
    };
    let renewals = || acquires.iter().copied().filter(|record| gave(record, held));
    let last = renewals().filter(|record| record.end <= gone.known).max_by_key(|record| record.start);
    let last_start = last.map_or(Duration::ZERO, |record| record.start);
    // Later ones, and those of unknown outcome, may or may not have come before the end.
    let may_be_later = acquires.iter().copied().filter(|record| {
        let is_open = record.outcome == Outcome::Unknown || gave(record, held);
        is_open && record.end >= last_start && record.start <= gone.known
    });
    last.into_iter().chain(may_be_later).any(|record| end_of(record) <= gone.known)
}
