//! Event subscriptions, and events as callers see them.

use holdfast_types::{Event, EventKind, Mode, Owner, Revision};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{EventName, ModeName, mode_name};
use crate::Timestamp;

/// Selects events.
#[derive(Clone, Debug, Default)]
pub struct WatchEvents {
    /// The namespace.
    pub namespace: String,
    /// Segments of a path: only events of this path, or of one above or below. Empty for all.
    pub prefix: Vec<String>,
    /// From this revision on, inclusive; absent means from now.
    pub from_revision: Option<Revision>,
}

/// Some events, and the position of the stream after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    /// In order of revision; may be empty.
    pub events: Vec<EventInfo>,
    /// A watcher that continues from here misses nothing.
    pub next_revision: Revision,
}

/// An event of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventInfo {
    /// The event's position in the order of the namespace; no two events share one.
    pub revision: u64,
    /// The kind of event; shown by [`EventKind::name`].
    #[serde(rename = "type", serialize_with = "kind_as_name")]
    #[schema(value_type = EventName)]
    pub kind: EventKind,
    /// Wall clock of the shard's leader, for display.
    pub at: Timestamp,
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when the event concerns a session or a hold of a session.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// The token of the hold that was granted or ended; absent for sessions.
    pub fencing_token: Option<u64>,
    /// All claims of the grant, or the one hold that ended; empty for sessions.
    pub claims: Vec<ClaimInfo>,
}

/// One path in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Claim)]
pub struct ClaimInfo {
    /// Segments from the root.
    pub path: Vec<String>,
    /// The mode.
    #[serde(serialize_with = "mode_as_name")]
    #[schema(value_type = ModeName)]
    pub mode: Mode,
}

impl From<Event> for EventInfo {
    fn from(event: Event) -> Self {
        let (session_id, holder) = match event.owner {
            Owner::Process(_) => (None, None),
            Owner::Session { session_id, holder } => (Some(session_id), holder),
        };
        let claims = event.claims.into_iter().map(|claim| ClaimInfo { path: claim.path.0, mode: claim.mode });
        Self {
            revision: event.revision,
            kind: event.kind,
            at: Timestamp(event.at_ms),
            process_id: event.process_id,
            session_id,
            holder,
            fencing_token: event.fencing_token,
            claims: claims.collect(),
        }
    }
}

fn kind_as_name<S: Serializer>(kind: &EventKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

fn mode_as_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode_name(*mode))
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Claim, Path};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_shown_by_the_names_of_the_contract() {
        let event = Event {
            revision: 7,
            at_ms: 1_700_000_000_123,
            kind: EventKind::Expired,
            owner: Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) },
            process_id: "p".into(),
            fencing_token: Some(5),
            claims: vec![Claim { path: Path(vec!["a".into(), "b".into()]), mode: Mode::Read }],
        };
        let shown = serde_json::to_value(EventInfo::from(event)).unwrap();
        let expected = json!({
            "revision": 7, "type": "EXPIRED", "at": "2023-11-14T22:13:20.123Z", "process_id": "p",
            "session_id": "se_1", "holder": "h", "fencing_token": 5,
            "claims": [{"path": ["a", "b"], "mode": "READ"}],
        });
        assert_eq!(shown, expected);
    }
}
