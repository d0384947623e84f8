//! Renders the service's responses, for humans and for programs.

pub(crate) mod json;

use std::time::{Duration, SystemTime};

use holdfast_client::Path;
use holdfast_client::protocol::barrier_answer::Outcome;
use holdfast_client::protocol::{Event, Holder, Latch, Lock, ReleaseRequest, Session, event, holder, latch, lock};
use prost_types::Timestamp;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Formats an instant as RFC 3339, in UTC, to the second.
pub(crate) fn instant(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at).replace_nanosecond(0);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

/// Formats a timestamp of the protocol, with milliseconds.
pub(crate) fn timestamp(at: &Timestamp) -> Option<String> {
    let at = OffsetDateTime::from(SystemTime::try_from(*at).ok()?);
    let milliseconds = time::format_description::parse_borrowed::<2>(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z",
    );
    at.format(&milliseconds.ok()?).ok()
}

/// Returns the command-line arguments that name a lock.
pub(crate) fn as_arguments(path: &Path) -> String {
    match path.segments() {
        [name] => quoted(name),
        [] => "/ --path".to_owned(),
        segments => format!("{} --path", quoted(&segments.join("/"))),
    }
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@%+,".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with('-') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Formats a path for a table.
pub(crate) fn path(segments: &[String]) -> String {
    Path::of(segments).to_string()
}

/// Returns the name of a lock's state.
pub(crate) fn state(lock: &Lock) -> &'static str {
    match lock.state() {
        lock::State::Unlocked => "UNLOCKED",
        lock::State::ReadLocked => "READ_LOCKED",
        lock::State::WriteLocked => "WRITE_LOCKED",
    }
}

/// Returns all holders in the response.
pub(crate) fn holders(lock: &Lock) -> impl Iterator<Item = &Holder> {
    lock.write_lock_holder.iter().chain(&lock.read_lock_holders)
}

/// Returns the name of a holder: its process, and the holder within the session if there is one.
pub(crate) fn owner_name(holder: &Holder) -> String {
    match &holder.holder {
        Some(thread) => format!("{} ({thread})", holder.process_id),
        None => holder.process_id.clone(),
    }
}

/// Returns "1 other", "2 others" and so on.
pub(crate) fn others(count: u64) -> String {
    format!("{count} {}", if count == 1 { "other" } else { "others" })
}

/// Formats a lock with all its holders.
pub(crate) fn lock(lock: &Lock) -> String {
    let mut lines = vec![format!("{} is {}", path(&lock.path), state(lock))];
    for holder in holders(lock) {
        let mut line = format!("  {} with token {}", owner_name(holder), holder.fencing_token);
        if let Some(since) = holder.locked_at.as_ref().and_then(timestamp) {
            line += &format!(" since {since}");
        }
        line += &match (holder.remaining_ms, &holder.session_id) {
            (Some(left), _) => format!(", {} left", humantime::format_duration(Duration::from_millis(left))),
            (None, Some(session)) => format!(", as long as session {session}"),
            (None, None) => String::new(),
        };
        if holder.phase() == holder::Phase::Transition {
            line += ", in transition";
        }
        if let Some(request) = &holder.release_requested {
            line += &release_request(request);
        }
        lines.push(line);
    }
    let shown = holders(lock).count() as u64;
    if lock.holders_total > shown {
        lines.push(format!("  and {}", others(lock.holders_total - shown)));
    }
    if lock.waiting > 0 {
        lines.push(format!("  {} waiting", lock.waiting));
    }
    lines.join("\n")
}

/// Formats a request to release, to follow its hold.
pub(crate) fn release_request(request: &ReleaseRequest) -> String {
    let mut line = format!(", asked for by {}", request.by);
    if !request.reason.is_empty() {
        line += &format!(": {}", request.reason);
    }
    if let Some(left) = request.remaining_ms.filter(|_| request.force) {
        line += &format!(", ends in {}", humantime::format_duration(Duration::from_millis(left)));
    }
    line
}

/// Formats a session as one line.
pub(crate) fn session(session: &Session) -> String {
    let left = humantime::format_duration(Duration::from_millis(session.remaining_ms));
    let (id, process) = (&session.session_id, &session.process_id);
    format!("{id} of {process}: {} holds, {} waiting, {left} left", session.holds, session.waiting)
}

/// Returns the name of an event's type.
pub(crate) fn event_type(event: &Event) -> &'static str {
    match event.r#type() {
        event::Type::Acquired => "ACQUIRED",
        event::Type::Released => "RELEASED",
        event::Type::Expired => "EXPIRED",
        event::Type::Deleted => "DELETED",
        event::Type::Reset => "RESET",
        event::Type::SessionOpened => "SESSION_OPENED",
        event::Type::SessionEnded => "SESSION_ENDED",
        event::Type::LatchCreated => "LATCH_CREATED",
        event::Type::LatchCompleted => "LATCH_COMPLETED",
        event::Type::LatchExpired => "LATCH_EXPIRED",
        event::Type::LatchDeleted => "LATCH_DELETED",
        event::Type::PermitsAcquired => "PERMITS_ACQUIRED",
        event::Type::PermitsReleased => "PERMITS_RELEASED",
        event::Type::SemaphoreConfigured => "SEMAPHORE_CONFIGURED",
        event::Type::SemaphoreDeleted => "SEMAPHORE_DELETED",
        event::Type::MembersTaken => "MEMBERS_TAKEN",
        event::Type::MembersReturned => "MEMBERS_RETURNED",
        event::Type::PoolConfigured => "POOL_CONFIGURED",
        event::Type::PoolDeleted => "POOL_DELETED",
        event::Type::ReleaseRequested => "RELEASE_REQUESTED",
        event::Type::BarrierTripped => "BARRIER_TRIPPED",
        event::Type::BarrierBroken => "BARRIER_BROKEN",
        event::Type::BarrierLeft => "BARRIER_LEFT",
        event::Type::Awaiting => "AWAITING",
        event::Type::Signalled => "SIGNALLED",
        event::Type::Unspecified => "UNKNOWN",
    }
}

/// Returns the name of a latch's status.
pub(crate) fn latch_status(latch: &Latch) -> &'static str {
    match latch.status() {
        latch::Status::Active => "ACTIVE",
        latch::Status::Completed => "COMPLETED",
        latch::Status::Expired => "EXPIRED",
        latch::Status::Unspecified => "UNKNOWN",
    }
}

/// Returns the name of what a party at a barrier is told.
pub(crate) fn barrier_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Tripped => "TRIPPED",
        Outcome::Broken => "BROKEN",
        Outcome::Waiting => "WAITING",
        Outcome::Left => "LEFT",
        Outcome::Withdrawn => "WITHDRAWN",
        Outcome::Full => "FULL",
        Outcome::Past => "PAST",
        Outcome::Unspecified => "UNKNOWN",
    }
}

/// Formats an event as one line.
pub(crate) fn event(event: &Event) -> String {
    let at = event.at.as_ref().and_then(timestamp).unwrap_or_default();
    let mut line = format!("{} {at} {}", event.revision, event_type(event));
    for claim in &event.claims {
        line += &format!(" {}", path(&claim.path));
    }
    if event.kind.is_some() {
        line += &format!(" {}", path(&event.path));
    }
    if let Some(generation) = event.generation {
        line += &format!(" generation {generation}");
    }
    if !event.process_id.is_empty() {
        line += &format!(" by {}", event.process_id);
    }
    if let Some(thread) = &event.holder {
        line += &format!(" ({thread})");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_utc_with_milliseconds() {
        let at = Timestamp { seconds: 1_700_000_000, nanos: 42_999_999 };
        assert_eq!(timestamp(&at).unwrap(), "2023-11-14T22:13:20.042Z");
        assert_eq!(instant(SystemTime::try_from(at).unwrap()), "2023-11-14T22:13:20Z");
    }

    #[test]
    fn one_other_is_singular() {
        assert_eq!([1, 2].map(others), ["1 other", "2 others"]);
    }

    #[test]
    fn names_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(as_arguments(&"deploy".into()), "deploy");
        assert_eq!(as_arguments(&"it's".into()), r"'it'\''s'");
        assert_eq!(as_arguments(&Path::of(["user", "ann lee"])), "'user/ann lee' --path");
        assert_eq!(as_arguments(&Path::whole_namespace()), "/ --path");
    }
}
