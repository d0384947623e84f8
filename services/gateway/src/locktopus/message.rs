//! The messages of the Locktopus protocol.

use holdfast_api::Resource;
use holdfast_types::Mode;
use serde::Deserialize;
use serde_json::json;

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Lock(Vec<Resource>),
    Release,
}

/// The state of a connection's one lock, as its client was notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockState {
    Ready,
    Enqueued,
    Acquired,
}

impl LockState {
    /// The name in the protocol.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Enqueued => "enqueued",
            Self::Acquired => "acquired",
        }
    }
}

#[derive(Deserialize)]
struct Frame {
    action: String,
    #[serde(default)]
    resources: Option<Vec<FrameResource>>,
}

#[derive(Deserialize)]
struct FrameResource {
    #[serde(rename = "type")]
    kind: String,
    /// Absent for clients that lock everything.
    #[serde(default)]
    path: Option<Vec<String>>,
}

/// Parses a message. Ignores unknown fields, because clients may have newer ones.
///
/// # Errors
/// What is wrong with it, for the client.
pub(super) fn decode(text: &str) -> Result<Request, String> {
    let frame: Frame = serde_json::from_str(text).map_err(|error| format!("not a message: {error}"))?;
    match frame.action.as_str() {
        "release" => Ok(Request::Release),
        "lock" => {
            let resources = frame.resources.unwrap_or_default().into_iter();
            let resources: Vec<Resource> = resources.map(resource).collect::<Result<_, _>>()?;
            if resources.is_empty() {
                return Err("resources: a lock needs at least one".to_owned());
            }
            Ok(Request::Lock(resources))
        }
        other => Err(format!("unknown action {other:?}: must be lock or release")),
    }
}

fn resource(resource: FrameResource) -> Result<Resource, String> {
    let mode = match resource.kind.to_ascii_lowercase().as_str() {
        "r" | "read" => Mode::Read,
        "w" | "write" => Mode::Write,
        _ => return Err(format!("unknown type {:?}: must be r, read, w or write", resource.kind)),
    };
    Ok(Resource { path: resource.path.unwrap_or_default(), mode })
}

/// Returns a message for a client: the lock's id, the action, and the current state of the lock.
pub(super) fn encode(id: u64, action: &str, state: LockState) -> String {
    json!({"id": id.to_string(), "action": action, "state": state.name()}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_resources_by_short_and_long_types_of_any_case() {
        let text = r#"{"action":"lock","resources":[{"type":"read","path":["a","b"]},{"type":"W","path":[]},
            {"type":"r"},{"type":"WRITE","path":["c"],"colour":"red"}],"more":1}"#;
        let resource = |mode, path: &[&str]| Resource { path: path.iter().map(|s| (*s).to_owned()).collect(), mode };
        let expected = vec![
            resource(Mode::Read, &["a", "b"]),
            resource(Mode::Write, &[]),
            resource(Mode::Read, &[]),
            resource(Mode::Write, &["c"]),
        ];
        assert_eq!(decode(text), Ok(Request::Lock(expected)));
        assert_eq!(decode(r#"{"action":"release"}"#), Ok(Request::Release));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "not a message"),
            ("[]", "not a message"),
            (r#"{"action":"steal"}"#, "unknown action"),
            (r#"{"action":"lock"}"#, "resources"),
            (r#"{"action":"lock","resources":[]}"#, "resources"),
            (r#"{"action":"lock","resources":[{"type":"x","path":["a"]}]}"#, "unknown type"),
            (r#"{"action":"lock","resources":[{"type":"r","path":"a"}]}"#, "not a message"),
        ] {
            let error = decode(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }

    #[test]
    fn ids_are_told_as_decimal_texts() {
        let told: serde_json::Value = serde_json::from_str(&encode(7, "lock", LockState::Enqueued)).unwrap();
        assert_eq!(told, json!({"id": "7", "action": "lock", "state": "enqueued"}));
    }
}
