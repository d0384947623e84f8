//! Barriers: requests and responses of their operations. Each view serializes as its JSON form in the contract.

use holdfast_types::{BarrierOutcome, GenerationEnd, Metadata, OnLoss, Revision};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{BarrierOutcomeName, GenerationEndName, OnLossName, OwnerFields, ThingName};
use crate::Timestamp;

/// The configuration of a barrier. All values are absolute.
#[derive(Clone, Debug)]
pub struct ConfigureBarrier {
    /// The barrier.
    pub thing: ThingName,
    /// How many meet.
    pub parties: u32,
    /// Whether they also leave together.
    pub double: bool,
    /// What becomes of a generation when an arrival ends before all have come; frontends set BREAK when the caller says
    /// nothing.
    pub on_loss: OnLoss,
    /// How long it is kept with nobody in it, in milliseconds; 1 h when absent, for ever with 0.
    pub retain_ms: Option<u64>,
    /// For people; empty when absent.
    pub description: Option<String>,
    /// Kept with the barrier.
    pub metadata: Metadata,
}

/// An arrival, or a repeat of one.
#[derive(Clone, Debug)]
pub struct ArriveAtBarrier {
    /// The barrier.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// The generation; without it, a repeat may arrive in the next one.
    pub generation: Option<Revision>,
    /// How many meet at a barrier that nobody configured.
    pub parties: Option<u32>,
    /// Whether such a barrier is a double one.
    pub double: Option<bool>,
    /// How long the arrival counts, in milliseconds. A process id needs it, a session has none.
    pub ttl_ms: Option<u64>,
    /// How long to wait for the trip, in milliseconds.
    pub wait_ms: u64,
    /// Kept with the arrival.
    pub metadata: Metadata,
}

/// A wait for the end of a generation, by somebody who did not arrive.
#[derive(Clone, Debug)]
pub struct WaitAtBarrier {
    /// The barrier.
    pub thing: ThingName,
    /// The generation.
    pub generation: Revision,
    /// How long to wait, in milliseconds; with 0 the answer comes at once.
    pub wait_ms: u64,
}

/// The end of an arrival.
#[derive(Clone, Debug)]
pub struct LeaveBarrier {
    /// The barrier.
    pub thing: ThingName,
    /// The owner.
    pub owner: OwnerFields,
    /// The generation that it arrived in.
    pub generation: Revision,
    /// Of a double barrier: how long to wait until all have left, in milliseconds.
    pub wait_ms: u64,
}

/// The current state of a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Barrier)]
pub struct BarrierInfo {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Its path.
    pub path: Vec<String>,
    /// Whether it was configured; if not, its first arrival made it.
    pub configured: bool,
    /// How many meet.
    pub parties: u32,
    /// Whether they also leave together.
    pub double: bool,
    /// What becomes of a generation when an arrival ends before all have come.
    #[serde(serialize_with = "on_loss_as_name")]
    #[schema(value_type = OnLossName)]
    pub on_loss: OnLoss,
    /// How long it is kept with nobody in it, in milliseconds; 0 is for ever.
    pub retain_ms: u64,
    /// The generation that gathers now.
    pub generation: u64,
    /// How many have come.
    pub arrived: u32,
    /// How many are inside a double barrier.
    pub inside: u32,
    /// The generation of those inside.
    pub inside_generation: Option<u64>,
    /// How much longer it is kept if nobody comes; absent while somebody is in it, and of one that stays.
    pub remaining_ms: Option<u64>,
    /// As given.
    pub description: String,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The revision of its last change.
    pub revision: u64,
}

/// One arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = BarrierArrival)]
pub struct ArrivalInfo {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when a session arrived.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// Of an arrival on the connection of a session: its name there.
    pub request_id: Option<String>,
    /// Whether it is inside a double barrier, and not in the generation that gathers.
    pub inside: bool,
    /// Wall clock at the arrival.
    pub arrived_at: Timestamp,
    /// How much longer it counts; absent for one that lives as long as a session.
    pub remaining_ms: Option<u64>,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
}

/// A generation that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = BarrierGeneration)]
pub struct GenerationInfo {
    /// Its number.
    pub generation: u64,
    /// How it ended.
    #[serde(serialize_with = "end_as_name")]
    #[schema(value_type = GenerationEndName)]
    pub outcome: GenerationEnd,
    /// How many were in it.
    pub parties: u32,
    /// Wall clock at its end.
    pub ended_at: Timestamp,
    /// Once all have left a double barrier: how many of them did not leave by themselves.
    pub lost: Option<u32>,
}

/// What a party is told of a generation, or somebody who did not arrive. JSON omits what does not go with the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = BarrierAnswer)]
pub struct BarrierAnswerInfo {
    /// The outcome.
    #[serde(serialize_with = "outcome_as_name")]
    #[schema(value_type = BarrierOutcomeName)]
    pub outcome: BarrierOutcome,
    /// The generation that the outcome is about.
    pub generation: u64,
    /// The generation that gathers now.
    pub next_generation: u64,
    /// The place among those who tripped, in order of arrival from 0: 0 is the one to do what only one should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// With LEFT: how many did not leave by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u32>,
    /// With PAST: how the generation ended; null if that is not known any more.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_end_as_name")]
    #[schema(value_type = Option<GenerationEndName>)]
    pub ended: Option<Option<GenerationEnd>>,
    /// The barrier as it now is.
    pub barrier: BarrierInfo,
}

/// A barrier with those who have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct BarrierArrivals {
    /// The barrier.
    pub barrier: BarrierInfo,
    /// Those who have come in order of arrival, and then those inside; at most 1,000.
    pub arrivals: Vec<ArrivalInfo>,
    /// The latest generations that ended, the last one first; at most 64.
    pub generations: Vec<GenerationInfo>,
}

/// Returns what becomes of a generation when an arrival ends, by its public name.
pub fn parse_on_loss(name: &str) -> Option<OnLoss> {
    [OnLoss::Break, OnLoss::Withdraw].into_iter().find(|on_loss| on_loss.name() == name)
}

fn on_loss_as_name<S: Serializer>(on_loss: &OnLoss, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(on_loss.name())
}

fn outcome_as_name<S: Serializer>(outcome: &BarrierOutcome, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

fn end_as_name<S: Serializer>(end: &GenerationEnd, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(end.name())
}

fn some_end_as_name<S: Serializer>(end: &Option<Option<GenerationEnd>>, serializer: S) -> Result<S::Ok, S::Error> {
    match end.as_ref().and_then(Option::as_ref) {
        Some(end) => end_as_name(end, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_shown_by_the_names_of_the_contract() {
        let barrier = BarrierInfo {
            namespace: "ns".into(),
            name: Some("b".into()),
            path: vec!["b".into()],
            configured: false,
            parties: 2,
            double: true,
            on_loss: OnLoss::Break,
            retain_ms: 60_000,
            generation: 9,
            arrived: 0,
            inside: 2,
            inside_generation: Some(7),
            remaining_ms: None,
            description: "d".into(),
            metadata: Metadata::new(),
            revision: 9,
        };
        let answer = BarrierAnswerInfo {
            outcome: BarrierOutcome::Tripped,
            generation: 7,
            next_generation: 9,
            index: Some(0),
            lost: None,
            ended: None,
            barrier,
        };
        let past = BarrierAnswerInfo {
            outcome: BarrierOutcome::Past,
            index: None,
            ended: Some(Some(GenerationEnd::Broken)),
            ..answer.clone()
        };
        let forgotten = BarrierAnswerInfo { ended: Some(None), ..past.clone() };
        let expected = json!({"outcome": "TRIPPED", "generation": 7, "next_generation": 9, "index": 0, "barrier": {
            "namespace": "ns", "name": "b", "path": ["b"], "configured": false, "parties": 2, "double": true,
            "on_loss": "BREAK", "retain_ms": 60_000, "generation": 9, "arrived": 0, "inside": 2,
            "inside_generation": 7, "remaining_ms": null, "description": "d", "metadata": {}, "revision": 9,
        }});
        assert_eq!(serde_json::to_value(answer).unwrap(), expected);
        let past = serde_json::to_value(past).unwrap();
        assert_eq!((&past["outcome"], &past["ended"]), (&json!("PAST"), &json!("BROKEN")));
        assert!(past.get("index").is_none());
        assert_eq!(serde_json::to_value(forgotten).unwrap().get("ended"), Some(&json!(null)));
        assert_eq!(parse_on_loss("WITHDRAW"), Some(OnLoss::Withdraw));
        assert_eq!(parse_on_loss("withdraw"), None);
    }
}
