//! Arrivals. A repeat finds its arrival, or how its generation ended.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::barrier::{Arrival, Barrier, BarrierFacts};
use super::party::{ArrivalKey, Party};
use super::{Barriers, charge};
use crate::item_bytes::ItemBytes;
use crate::kit::{Kit, check_path, quota_exceeded};
use crate::metadata::EncodedMetadata;
use crate::permits::Requester;
use crate::{
    ArriveAtBarrier, BarrierAnswer, BarrierOutcome, CommandError, DEFAULT_BARRIER_RETAIN_MS, Kind, Limits,
    MAX_NAME_BYTES, MAX_PARTIES, OnLoss, Owner, Path, Response, Revision,
};

impl Barriers {
    /// Lets a party arrive, or says what became of its arrival.
    pub fn arrive(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
    ) -> Result<Response, CommandError> {
        check_request(arrive)?;
        let known = self.end_what_is_over(kit, &arrive.path);
        let Some((path, barrier)) = known.as_ref().and_then(|path| self.by_path.get_key_value(path)) else {
            return self.begin(kit, requester, arrive);
        };
        let path = Arc::clone(path);
        let party = Party::of(requester);
        if barrier.facts.is_deleted {
            return match arrive.generation.filter(|generation| *generation < barrier.facts.generation) {
                Some(generation) => {
                    let answer = barrier.answer(Some(&party), None, generation, false);
                    Ok(self.response(kit, &path, answer))
                }
                None => self.begin(kit, requester, arrive),
            };
        }
        barrier.check_figures(arrive)?;
        check_generation(barrier, arrive.generation)?;
        let key = ArrivalKey { party, path: Arc::clone(&path) };
        let number = self.index.get(&key).copied();
        if let Some(answer) = self.known_answer(kit, requester, arrive, (&key, number)) {
            return Ok(self.response(kit, &path, answer));
        }
        if !requester.is_new {
            return Ok(Response::Ignored);
        }
        let Some(barrier) = self.by_path.get(&path) else { return Err(not_found(&path)) };
        if barrier.inside.is_some() && barrier.has_all() {
            let answer = barrier.answer_of(BarrierOutcome::Full);
            return Ok(self.response(kit, &path, answer));
        }
        self.check_arrival(kit, requester, arrive, (&key, false))?;
        Ok(self.gather(kit, requester, arrive, key))
    }

    /// Returns what a request is told that is a repeat, or is about a generation that ended. Extends its arrival.
    fn known_answer(
        &mut self,
        kit: &Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
        (key, number): (&ArrivalKey, Option<Revision>),
    ) -> Option<BarrierAnswer> {
        let barrier = self.by_path.get(&key.path)?;
        let (present, party) = (barrier.facts.generation, Some(&key.party));
        let inside = barrier.inside.as_ref().map(|inside| inside.roster.generation);
        let is_inside = |number: Revision| inside.is_some_and(|generation| barrier.is_in(number, generation));
        let generation = match (arrive.generation, &arrive.request_id) {
            _ if number.is_some_and(is_inside) => inside.unwrap_or(present),
            (Some(generation), _) if generation < present => {
                return Some(barrier.answer(party, number, generation, false));
            }
            _ if number.is_some() => present,
            // Whoever names the generation that gathers means that one.
            (None, Some(request_id)) if barrier.is_repeat(&key.party, request_id) => {
                let last = barrier.last.as_ref().map_or(present, |last| last.generation);
                return Some(barrier.answer(party, number, last, false));
            }
            _ => return None,
        };
        if let Some(number) = number.filter(|_| requester.is_new) {
            self.extend(kit, requester, arrive, (key, number));
        }
        let barrier = self.by_path.get(&key.path)?;
        Some(barrier.answer(party, number, generation, false))
    }

    /// Applies the terms of the newest call to an arrival. Without capacity for the new metadata, the old metadata
    /// stays.
    fn extend(
        &mut self,
        kit: &Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
        (key, number): (&ArrivalKey, Revision),
    ) {
        let Some(before) = self.by_path.get(&key.path).and_then(|barrier| barrier.arrival(number)) else { return };
        let before = Arc::clone(before);
        let mut arrival = Arrival::clone(&before);
        arrival.deadline_ms = arrive.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms));
        arrival.metadata = EncodedMetadata::of(&arrive.metadata);
        let more = charge::gathered(&arrival).saturating_sub(charge::gathered(&before));
        if kit.check_bytes(more).is_err() {
            arrival.metadata = before.metadata.clone();
        }
        let request_id = arrive.request_id.as_deref().filter(|id| before.request_id.as_deref() != Some(*id));
        if let Some(request_id) = request_id.filter(|_| requester.refusal.is_none()) {
            arrival.request_id = Some(request_id.into());
        }
        self.replace_arrival(&before, arrival);
        self.change(&key.path, |barrier| barrier.facts.active_ms = kit.clock_ms());
    }

    /// The first arrival at a barrier that does not exist makes it.
    fn begin(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
    ) -> Result<Response, CommandError> {
        let Some(parties) = arrive.parties.filter(|_| arrive.generation.is_none()) else {
            return Err(not_found(&arrive.path));
        };
        if !requester.is_new {
            return Ok(Response::Ignored);
        }
        check_path(kit.limits, &arrive.path)?;
        check_parties(kit.limits, parties)?;
        let known = self.by_path.get_key_value(&arrive.path).map(|(path, _)| Arc::clone(path));
        if known.is_none() {
            self.check_count(kit)?;
        }
        let path = known.clone().unwrap_or_else(|| Arc::new(arrive.path.clone()));
        let key = ArrivalKey { party: Party::of(requester), path: Arc::clone(&path) };
        self.check_arrival(kit, requester, arrive, (&key, known.is_none()))?;
        let generation = first_generation(kit);
        let facts = BarrierFacts {
            parties,
            is_double: arrive.double.unwrap_or_default(),
            on_loss: OnLoss::Break,
            retain_ms: DEFAULT_BARRIER_RETAIN_MS,
            is_configured: false,
            is_deleted: false,
            description: String::new(),
            metadata: EncodedMetadata::default(),
            revision: generation,
            generation,
            active_ms: kit.clock_ms(),
        };
        self.revive(path, facts);
        Ok(self.gather(kit, requester, arrive, key))
    }

    /// Makes a barrier. One that was deleted keeps its outcomes.
    pub(super) fn revive(&mut self, path: Arc<Path>, facts: BarrierFacts) {
        if self.by_path.contains_key(&path) {
            self.change(&path, |barrier| barrier.facts = facts);
        } else {
            self.insert_barrier(path, Barrier::new(facts));
        }
    }

    /// Adds an arrival, and trips the barrier if it is the last one.
    fn gather(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
        key: ArrivalKey,
    ) -> Response {
        let number = kit.next_revision();
        let (path, party) = (Arc::clone(&key.path), key.party.clone());
        let generation = self.by_path.get(&path).map_or(0, |barrier| barrier.facts.generation);
        self.insert_arrival(Arrival {
            key,
            process_id: Arc::clone(&requester.process_id),
            number,
            request_id: arrive.request_id.as_deref().map(Into::into),
            arrived_at_ms: kit.wall_ms,
            deadline_ms: arrive.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms)),
            metadata: EncodedMetadata::of(&arrive.metadata),
        });
        self.change(&path, |barrier| {
            (barrier.facts.revision, barrier.facts.active_ms) = (number, kit.clock_ms());
        });
        self.settle(kit, &path, Some(number));
        self.answer(kit, &path, (Some(&party), Some(number)), (generation, false))
    }

    fn check_arrival(
        &self,
        kit: &Kit<'_>,
        requester: &Requester,
        arrive: &ArriveAtBarrier,
        (key, is_new): (&ArrivalKey, bool),
    ) -> Result<(), CommandError> {
        if let Some(refusal) = &requester.refusal {
            return Err(refusal.clone());
        }
        if let Some((number, _)) = key.party.session() {
            if let Some(request_id) = arrive.request_id.as_ref().filter(|id| self.has_request(number, id)) {
                return Err(CommandError::RequestIdTaken(request_id.clone()));
            }
            let max = kit.limits.max_permit_holds_per_session;
            if self.count_of_session(number).saturating_add(requester.things_elsewhere) >= max {
                let what = "the number of holds of semaphores, pools and barriers of a session";
                return Err(quota_exceeded(what, max, "release permits or have the limit raised"));
            }
        }
        let of_barrier = if is_new { charge::of_ephemeral(&key.path) } else { ItemBytes::default() };
        kit.check_bytes(of_barrier + charge::of_new(key, requester, arrive))
    }

    pub(super) fn check_count(&self, kit: &Kit<'_>) -> Result<(), CommandError> {
        let max = kit.limits.max_barriers_per_namespace;
        let hint = "delete barriers or have the limit raised";
        let is_full = self.by_path.len() as u64 >= max;
        if is_full { Err(quota_exceeded("the number of barriers in a namespace", max, hint)) } else { Ok(()) }
    }

    /// Returns what a party is told of a generation, or somebody who did not arrive.
    pub(super) fn answer(
        &self,
        kit: &Kit<'_>,
        path: &Arc<Path>,
        (party, number): (Option<&Party>, Option<Revision>),
        (generation, leaves): (Revision, bool),
    ) -> Response {
        let barrier = self.by_path.get(path);
        let answer = barrier.map(|barrier| barrier.answer(party, number, generation, leaves));
        answer.map_or(Response::Ignored, |answer| self.response(kit, path, answer))
    }
}

impl Barrier {
    /// Rejects other figures than those of a barrier that was not configured.
    fn check_figures(&self, arrive: &ArriveAtBarrier) -> Result<(), CommandError> {
        let facts = &self.facts;
        if facts.is_configured {
            return Ok(());
        }
        if arrive.parties.is_some_and(|parties| parties != facts.parties) {
            return Err(invalid(format!("parties: the barrier has {}; configure it to change that", facts.parties)));
        }
        if arrive.double.is_some_and(|is_double| is_double != facts.is_double) {
            let is = if facts.is_double { "is" } else { "is not" };
            return Err(invalid(format!("double: the barrier {is} a double one; configure it to change that")));
        }
        Ok(())
    }
}

/// Returns the first generation of a barrier. Numbers of generations never come twice.
pub(super) fn first_generation(kit: &mut Kit<'_>) -> Revision {
    let revision = kit.next_revision();
    if is_enabled(Mutation::BarrierGenerationReused) { 1 } else { revision }
}

/// Rejects a generation that has not begun.
pub(super) fn check_generation(barrier: &Barrier, generation: Option<Revision>) -> Result<(), CommandError> {
    let present = barrier.facts.generation;
    if generation.is_some_and(|generation| generation > present) {
        return Err(invalid(format!("generation: {present} is the one that gathers; no later one has begun")));
    }
    Ok(())
}

pub(super) fn check_parties(limits: &Limits, parties: u32) -> Result<(), CommandError> {
    if !(1..=MAX_PARTIES).contains(&parties) {
        return Err(invalid(format!("parties: a barrier has 1 to {MAX_PARTIES}")));
    }
    let max = limits.max_parties_per_barrier;
    let hint = "use several barriers or have the limit raised";
    let is_within = u64::from(parties) <= max;
    if is_within { Ok(()) } else { Err(quota_exceeded("the number of parties of a barrier", max, hint)) }
}

pub(super) fn not_found(path: &Path) -> CommandError {
    CommandError::PrimitiveNotFound { kind: Kind::Barrier, path: path.clone() }
}

pub(super) fn invalid(what: String) -> CommandError {
    CommandError::InvalidArgument(what)
}

/// Validates a request. Frontends validate too; this check guarantees that no arrival counts for ever.
fn check_request(arrive: &ArriveAtBarrier) -> Result<(), CommandError> {
    let is_name = |name: &String| (1..=MAX_NAME_BYTES).contains(&name.len());
    if !arrive.request_id.as_ref().is_none_or(is_name) {
        return Err(invalid("the id of a request is empty or too long".to_owned()));
    }
    let malformed = |what: &str| Err(CommandError::Malformed(what.into()));
    match (&arrive.owner, arrive.ttl_ms) {
        (Owner::Session { .. }, Some(_)) => malformed("an arrival of a session lives as long as the session"),
        (Owner::Process(_), None | Some(0)) => malformed("an arrival of a process has a time to live"),
        (Owner::Process(_), _) if arrive.message.is_some() || arrive.request_id.is_some() => {
            malformed("a message is one of a session")
        }
        _ => Ok(()),
    }
}
