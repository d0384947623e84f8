//! Event subscriptions, and events as callers see them.

use holdfast_types::{Event, EventKind, Kind, Kinds, Mode, Owner, PermitsEnd, Revision, Woken};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{EventName, ModeName, PermitsEndName, WokenName, mode_name, woken_as_name};
use crate::{ApiResult, Timestamp, validate};

/// Selects events.
#[derive(Clone, Debug, Default)]
pub struct WatchEvents {
    /// The namespace.
    pub namespace: String,
    /// Segments of a path: only events of this path, or of one above or below. Empty for all.
    pub prefix: Vec<String>,
    /// From this revision on, inclusive; absent means from now.
    pub from_revision: Option<Revision>,
    /// What the events are about, by the names of [`Kind::plural`]; locks if there are none.
    pub kinds: Vec<String>,
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
    /// The owner's process id; of a session: the session's. Empty for what has no owner.
    pub process_id: String,
    /// Set when the event concerns a session or a hold of a session.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// The token of the hold that was granted or ended; absent for sessions.
    pub fencing_token: Option<u64>,
    /// All claims of the grant, or the one hold that ended; empty for sessions and for other kinds than locks.
    pub claims: Vec<ClaimInfo>,
    /// Of another kind than locks and sessions: `semaphore`, `pool`, `latch`, `barrier` or `condition`; of a request to
    /// release, `lock` too. JSON omits it otherwise, and what follows.
    #[serde(rename = "kind", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub thing: Option<&'static str>,
    /// Of another kind than locks and sessions: segments of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<String>>,
    /// How many permits were granted or released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// The members of a pool that were taken or returned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Why permits were released, members returned or a barrier broken, and how the last one left a double barrier.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "cause_as_name")]
    #[schema(value_type = Option<PermitsEndName>)]
    pub cause: Option<PermitsEnd>,
    /// The generation of a barrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// How many were in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parties: Option<u32>,
    /// The name of a condition, unless it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Why an owner that awaited a condition was woken.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "woken_as_name")]
    #[schema(value_type = Option<WokenName>)]
    pub woken: Option<Woken>,
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
        let (weight, cause) = match event.kind {
            EventKind::PermitsAcquired { weight } => (Some(weight), None),
            EventKind::PermitsReleased { weight, cause } => (Some(weight), Some(cause)),
            EventKind::MembersReturned { cause }
            | EventKind::BarrierBroken { cause, .. }
            | EventKind::BarrierLeft { cause, .. } => (None, Some(cause)),
            _ => (None, None),
        };
        let (generation, parties) = match event.kind {
            EventKind::BarrierTripped { generation, parties }
            | EventKind::BarrierBroken { generation, parties, .. }
            | EventKind::BarrierLeft { generation, parties, .. } => (Some(generation), Some(parties)),
            _ => (None, None),
        };
        let woken = if let EventKind::Signalled { woken } = event.kind { Some(woken) } else { None };
        let mut claims = event.claims.into_iter().map(|claim| ClaimInfo { path: claim.path.0, mode: claim.mode });
        let is_of_other = event.kind.of() != Kind::Lock;
        let thing = is_of_other.then(|| event.kind.thing().name());
        // Its first claim says which, and the others are members.
        let path = thing.and_then(|_| claims.next()).map(|claim| claim.path);
        let (claims, members): (Vec<ClaimInfo>, Vec<ClaimInfo>) = claims.partition(|_| thing.is_none());
        let mut members: Vec<String> = members.into_iter().map(|member| member.path.concat()).collect();
        let condition = if event.kind.of() == Kind::Condition { members.pop() } else { None };
        Self {
            revision: event.revision,
            kind: event.kind,
            at: Timestamp(event.at_ms),
            process_id: event.process_id,
            session_id,
            holder,
            fencing_token: event.fencing_token,
            claims,
            thing,
            path,
            weight,
            members,
            cause,
            generation,
            parties,
            condition,
            woken,
        }
    }
}

impl WatchEvents {
    /// Returns the set of the kinds.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a name that is none of a kind with events.
    pub fn kinds(&self) -> ApiResult<Kinds> {
        validate::kinds(&self.kinds)
    }
}

fn kind_as_name<S: Serializer>(kind: &EventKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

fn cause_as_name<S: Serializer>(cause: &Option<PermitsEnd>, serializer: S) -> Result<S::Ok, S::Error> {
    match cause {
        Some(cause) => serializer.serialize_str(cause.name()),
        None => serializer.serialize_none(),
    }
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

    #[test]
    fn an_event_of_another_kind_names_the_thing_in_place_of_claims() {
        let event = Event {
            revision: 7,
            at_ms: 1_700_000_000_123,
            kind: EventKind::PermitsReleased { weight: 2, cause: PermitsEnd::Shrunk },
            owner: Owner::Process("p".into()),
            process_id: "p".into(),
            fencing_token: Some(5),
            claims: vec![Claim { path: Path::flat("a"), mode: Mode::Write }],
        };
        let latch = Event { kind: EventKind::LatchCompleted, fencing_token: None, ..event.clone() };
        let broken = EventKind::BarrierBroken { generation: 3, parties: 2, cause: PermitsEnd::Expired };
        let barrier = serde_json::to_value(EventInfo::from(Event { kind: broken, ..latch.clone() })).unwrap();
        let of_barrier = ["kind", "generation", "parties", "cause"].map(|member| barrier[member].clone());
        assert_eq!(of_barrier, [json!("barrier"), json!(3), json!(2), json!("EXPIRED")]);
        let shown = serde_json::to_value(EventInfo::from(event)).unwrap();
        let expected = json!({
            "revision": 7, "type": "PERMITS_RELEASED", "at": "2023-11-14T22:13:20.123Z", "process_id": "p",
            "session_id": null, "holder": null, "fencing_token": 5, "claims": [],
            "kind": "semaphore", "path": ["a"], "weight": 2, "cause": "SHRUNK",
        });
        assert_eq!(shown, expected);
        let shown = serde_json::to_value(EventInfo::from(latch)).unwrap();
        assert_eq!((&shown["kind"], &shown["path"]), (&json!("latch"), &json!(["a"])));
        assert!(shown.get("generation").is_none() && shown.get("parties").is_none(), "{shown}");
        assert!(shown.get("weight").is_none() && shown.get("cause").is_none(), "{shown}");
    }

    #[test]
    fn a_request_to_release_names_the_thing_that_is_asked_for() {
        let event = Event {
            revision: 7,
            at_ms: 1_700_000_000_123,
            kind: EventKind::ReleaseRequested { of: Kind::Lock },
            owner: Owner::Process(String::new()),
            process_id: String::new(),
            fencing_token: None,
            claims: vec![Claim { path: Path::flat("a"), mode: Mode::Write }],
        };
        let shown = serde_json::to_value(EventInfo::from(event)).unwrap();
        assert_eq!((&shown["type"], &shown["kind"]), (&json!("RELEASE_REQUESTED"), &json!("lock")));
        assert_eq!((&shown["path"], &shown["claims"]), (&json!(["a"]), &json!([])));
    }

    #[test]
    fn kinds_are_named_as_in_addresses() {
        let kinds = |names: &[&str]| {
            let kinds = names.iter().map(|name| (*name).to_owned()).collect();
            WatchEvents { kinds, ..WatchEvents::default() }.kinds()
        };
        assert_eq!(kinds(&[]).unwrap(), Kinds::LOCKS);
        assert_eq!(kinds(&["locks"]).unwrap(), Kinds::LOCKS);
        let both = kinds(&["latches", "semaphores"]).unwrap();
        assert!(both.contains(Kind::Latch) && both.contains(Kind::Semaphore) && !both.contains(Kind::Lock));
        assert!(kinds(&["latch"]).unwrap_err().detail.contains("locks, semaphores, latches"));
    }
}
