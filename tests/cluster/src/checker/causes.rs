//! How holds began and ended: each needs a cause.

use std::collections::HashMap;
use std::time::Duration;

use super::timeline::{LockTimeline, ObservedEnd, ObservedHold};
use super::{Rule, ViolationSink};
use crate::history::{Call, Outcome, Record};

/// What one owner did to the lock.
#[derive(Default)]
struct Causes<'a> {
    acquires: Vec<&'a Record>,
    /// Releases, each of which may have ended one hold.
    releases: Vec<Release<'a>>,
    /// Acquires of unknown outcome that have not been taken for the cause of a hold.
    remaining_unknown: usize,
}

struct Release<'a> {
    record: &'a Record,
    is_attributed: bool,
}

pub(super) fn check(records: &[&Record], story: &LockTimeline, found: &mut ViolationSink<'_>) {
    let mut deeds: HashMap<&str, Causes<'_>> = HashMap::new();
    let mut deletes = Vec::new();
    for record in records.iter().copied().filter(|record| record.outcome != Outcome::NotDone) {
        let own = deeds.entry(&record.owner).or_default();
        let is_unknown = record.outcome == Outcome::Unknown;
        match record.call {
            Call::Acquire { token, .. } => {
                own.acquires.push(record);
                own.remaining_unknown += usize::from(is_unknown && token.is_none());
            }
            Call::Release { .. } => own.releases.push(Release { record, is_attributed: false }),
            Call::Delete => deletes.push(record),
            Call::Get => {}
        }
    }
    for held in story.holds.values() {
        let own = deeds.entry(&held.hold.owner).or_default();
        check_grant(held, own, found);
        if let Some(gone) = held.gone {
            let deleted = deletes.iter().any(|record| record.start <= gone.known_at);
            if !attribute_to_release(held, gone, own) && !deleted && !may_have_expired(held, gone, &own.acquires) {
                found.add(Rule::EndCause, format!("nobody ended it, and it is gone: {held:?}"));
            }
        }
    }
    for (owner, own) in &mut deeds {
        for release in
            own.releases.iter().filter(|release| !release.is_attributed && is_confirmed_release(release.record))
        {
            // It may have ended a hold of an acquire of unknown outcome, which no client observed.
            if own.remaining_unknown == 0 {
                found.add(Rule::Answer, format!("{owner} released what it did not hold: {:?}", release.record));
            }
            own.remaining_unknown = own.remaining_unknown.saturating_sub(1);
        }
    }
}

/// Whether the answer says that a hold ended.
fn is_confirmed_release(record: &Record) -> bool {
    matches!(&record.outcome, Outcome::Answered(answer) if answer.success)
}

fn check_grant(held: &ObservedHold, own: &mut Causes<'_>, found: &mut ViolationSink<'_>) {
    let is_answered = |record: &Record| is_grant_of(record, held) || outlived_its_first_grant(record, held);
    if own.acquires.iter().any(|record| is_answered(record)) {
        return;
    }
    let may_have = own.acquires.iter().any(|record| {
        let fits = matches!(record.call, Call::Acquire { mode, token: None, .. } if mode == held.hold.mode);
        fits && record.outcome == Outcome::Unknown && record.start <= held.first_known
    });
    if !may_have || own.remaining_unknown == 0 {
        found.add(Rule::GrantCause, format!("nobody was granted it: {held:?}"));
    }
    own.remaining_unknown = own.remaining_unknown.saturating_sub(1);
}

/// Whether that acquire was answered with that hold.
fn is_grant_of(record: &Record, held: &ObservedHold) -> bool {
    match (&record.call, &record.outcome) {
        (Call::Acquire { mode, .. }, Outcome::Answered(answer)) => {
            answer.success && answer.token == Some(held.hold.token) && *mode == held.hold.mode
        }
        _ => false,
    }
}

/// Whether that acquire may have been granted with that hold at first, and answered after its end: a gateway repeats an
/// acquire whose leader died over it, and if no other leader was found within the time to live, the repetition is
/// another request.
fn outlived_its_first_grant(record: &Record, held: &ObservedHold) -> bool {
    let Call::Acquire { mode, ttl_ms, token: None } = record.call else { return false };
    mode == held.hold.mode
        && matches!(record.outcome, Outcome::Answered(_))
        && record.start <= held.first_known
        && record.end >= record.start + Duration::from_millis(ttl_ms)
}

/// Looks for the release that ended the hold: one that was answered so at a revision in question, or else one of
/// unknown outcome.
fn attribute_to_release(held: &ObservedHold, gone: ObservedEnd, own: &mut Causes<'_>) -> bool {
    let names = |record: &Record| match record.call {
        Call::Release { token } => token.is_none_or(|token| token == held.hold.token),
        _ => false,
    };
    let answered = own.releases.iter_mut().find(|release| {
        let revision = match &release.record.outcome {
            Outcome::Answered(answer) => answer.lock.revision,
            _ => return false,
        };
        !release.is_attributed && names(release.record) && held.last_seen < revision && revision <= gone.revision
    });
    // A release that the gateway had to send again, because the leader died over it, may have ended the hold the first
    // time and then finds nothing: its answer is that of the second time.
    let unknown = |release: &&mut Release<'_>| {
        let may_have = match &release.record.outcome {
            Outcome::Unknown => true,
            Outcome::Answered(answer) => !answer.success && answer.lock.revision >= gone.revision,
            Outcome::NotDone => false,
        };
        !release.is_attributed && may_have && release.record.start <= gone.known_at && names(release.record)
    };
    let cause = match answered {
        Some(release) => Some(release),
        None => own.releases.iter_mut().find(unknown),
    };
    cause.map(|release| release.is_attributed = true).is_some()
}

/// Whether its time may have been over when it was seen to be gone. Time counts from before the last renewal that was
/// answered before, and every renewal that may have been done may have shortened it.
fn may_have_expired(held: &ObservedHold, gone: ObservedEnd, acquires: &[&Record]) -> bool {
    let end_of = |record: &Record| match record.call {
        Call::Acquire { ttl_ms, .. } => record.start + Duration::from_millis(ttl_ms),
        _ => Duration::MAX,
    };
    let renewals = || acquires.iter().copied().filter(|record| is_grant_of(record, held));
    let last = renewals().filter(|record| record.end <= gone.known_at).max_by_key(|record| record.start);
    let last_start = last.map_or(Duration::ZERO, |record| record.start);
    // Later ones, and those of unknown outcome, may or may not have come before the end.
    let may_be_later = acquires.iter().copied().filter(|record| {
        let is_open =
            record.outcome == Outcome::Unknown || is_grant_of(record, held) || outlived_its_first_grant(record, held);
        is_open && record.end >= last_start && record.start <= gone.known_at
    });
    last.into_iter().chain(may_be_later).any(|record| end_of(record) <= gone.known_at)
}
