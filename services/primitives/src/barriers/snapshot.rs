//! Barriers in a snapshot: each barrier, then the generation that ended last, those inside and those who have come.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Barriers;
use super::barrier::{Arrival, Barrier, BarrierFacts, Inside, Roster};
use super::party::{ArrivalKey, Party};
use crate::chunks::first_after;
use crate::codec::DecodeError;
use crate::metadata::EncodedMetadata;
use crate::permits::Scope;
use crate::{EndedGeneration, MAX_PARTIES, Path, Revision, SessionNumber};

/// The barriers at one entry. They are shared with the state, which copies what it changes: the first change of one
/// copies its indexes, though not the arrivals in them. The limits bound what that costs.
#[derive(Debug)]
pub struct FrozenBarriers(Vec<(Arc<Path>, Arc<Barrier>)>);

/// What of some barriers is written next.
#[derive(Default)]
pub struct BarrierCursor {
    /// The position of the barrier.
    barrier: usize,
    stage: CursorStage,
}

/// What of a barrier is written next.
#[derive(Default)]
enum CursorStage {
    #[default]
    Facts,
    Last,
    Inside,
    /// The arrival inside that follows the one of this number.
    InsideAfter(Option<Revision>),
    /// The arrival in the generation that gathers that follows the one of this number.
    GatheredAfter(Option<Revision>),
}

/// An item of a snapshot. The serialized form is stored: variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub enum BarrierItem {
    /// A barrier, and how its latest generations ended. What it has follows.
    Barrier(Path, BarrierFacts, Vec<EndedGeneration>),
    /// Those of the generation of the preceding barrier that ended last. As many as a barrier has parties.
    Last(RosterItem),
    /// Those inside the preceding barrier. The arrivals follow of those who have not left.
    Inside {
        /// If they are not those of the generation that ended last.
        roster: Option<RosterItem>,
        /// Those who wait until all have left, each with a request id.
        leaving: Vec<(PartyItem, String)>,
        /// How many were lost.
        lost: u32,
    },
    /// An arrival inside, in order of number.
    ArrivalInside(ArrivalItem),
    /// An arrival in the generation that gathers, in order of number.
    Arrival(ArrivalItem),
}

/// A party of a barrier.
#[derive(Serialize, Deserialize)]
pub enum PartyItem {
    Process(String),
    Session { number: SessionNumber, session_id: String, holder: Option<String> },
}

/// The parties of one generation of a barrier.
#[derive(Serialize, Deserialize)]
pub struct RosterItem {
    generation: Revision,
    /// In order of arrival, each with its request id.
    members: Vec<(PartyItem, Option<String>)>,
}

/// An arrival.
#[derive(Serialize, Deserialize)]
pub struct ArrivalItem {
    party: PartyItem,
    process_id: String,
    number: Revision,
    request_id: Option<String>,
    arrived_at_ms: u64,
    deadline_ms: Option<u64>,
    metadata: EncodedMetadata,
}

impl BarrierItem {
    /// Makes the instants of the shard clock later by a time.
    pub fn delay(&mut self, by_ms: u64) {
        match self {
            Self::Barrier(_, facts, _) => facts.active_ms = facts.active_ms.saturating_add(by_ms),
            Self::ArrivalInside(arrival) | Self::Arrival(arrival) => {
                arrival.deadline_ms = arrival.deadline_ms.map(|at_ms| at_ms.saturating_add(by_ms));
            }
            Self::Last(_) | Self::Inside { .. } => {}
        }
    }
}

impl Barriers {
    /// Returns the table as it is now, for a snapshot.
    pub fn freeze(&self) -> FrozenBarriers {
        FrozenBarriers(self.by_path.iter().map(|(path, barrier)| (Arc::clone(path), Arc::clone(barrier))).collect())
    }

    /// Adds an item of a snapshot; `now` is the revision of the shard.
    pub fn restore(&mut self, item: BarrierItem, now: Revision) -> Result<(), DecodeError> {
        match item {
            BarrierItem::Barrier(path, facts, outcomes) => self.restore_barrier(path, facts, outcomes, now),
            BarrierItem::Last(roster) => {
                let roster = Arc::new(roster.restored()?);
                let path = self.last_path()?;
                let before = self.change(&path, |barrier| barrier.last.replace(roster)).flatten();
                ensure(before.is_none(), "two generations ended last")
            }
            BarrierItem::Inside { roster, leaving, lost } => self.restore_inside(roster, leaving, lost),
            BarrierItem::ArrivalInside(item) => self.restore_arrival(item, true, now),
            BarrierItem::Arrival(item) => self.restore_arrival(item, false, now),
        }
    }

    fn restore_barrier(
        &mut self,
        path: Path,
        facts: BarrierFacts,
        outcomes: Vec<EndedGeneration>,
        now: Revision,
    ) -> Result<(), DecodeError> {
        let is_next = self.by_path.last_key_value().is_none_or(|(last, _)| **last < path);
        ensure(is_next && !path.0.is_empty(), "barriers are out of order")?;
        ensure(facts.generation <= now && facts.revision <= now, "a barrier is from the future")?;
        let mut barrier = Barrier::new(facts);
        barrier.outcomes = outcomes.into();
        let is_only = barrier.due().is_none_or(|due| !self.due.contains_key(&due));
        ensure(is_only, "two barriers have one generation")?;
        self.insert_barrier(Arc::new(path), barrier);
        Ok(())
    }

    fn restore_inside(
        &mut self,
        roster: Option<RosterItem>,
        leaving: Vec<(PartyItem, String)>,
        lost: u32,
    ) -> Result<(), DecodeError> {
        let path = self.last_path()?;
        let last = self.by_path.get(&path).and_then(|barrier| barrier.last.as_ref()).map(Arc::clone);
        let roster = match roster {
            Some(roster) => Some(Arc::new(roster.restored()?)),
            None => last,
        };
        let roster = roster.ok_or(DecodeError::Snapshot("those inside have no generation"))?;
        let mut inside = Inside::new(roster, std::collections::BTreeMap::new());
        inside.lost = lost;
        leaving.into_iter().for_each(|(party, request_id)| inside.add_leaving(party.restored(), request_id.into()));
        let before = self.change(&path, |barrier| barrier.inside.replace(inside)).flatten();
        ensure(before.is_none(), "two generations are inside")
    }

    fn restore_arrival(&mut self, item: ArrivalItem, is_inside: bool, now: Revision) -> Result<(), DecodeError> {
        let path = self.last_path()?;
        let is_process = matches!(item.party, PartyItem::Process(_));
        ensure(item.deadline_ms.is_some() == is_process, "an arrival ends never, or at a wrong time")?;
        ensure(item.number <= now && !(is_process && item.request_id.is_some()), "an arrival is from the future")?;
        let key = ArrivalKey { party: item.party.restored(), path: Arc::clone(&path) };
        let request_id: Option<Arc<str>> = item.request_id.map(Into::into);
        let session = key.party.session().map(|(number, _)| number);
        let taken = session.zip(request_id.as_ref()).is_some_and(|(number, id)| self.has_request(number, id));
        let barrier = self.by_path.get(&path);
        let is_new = !self.index.contains_key(&key)
            && !taken
            && barrier.is_some_and(|barrier| barrier.arrival(item.number).is_none());
        ensure(is_new, "an arrival comes twice")?;
        let arrival = Arrival {
            key,
            process_id: item.process_id.into(),
            number: item.number,
            request_id,
            arrived_at_ms: item.arrived_at_ms,
            deadline_ms: item.deadline_ms,
            metadata: item.metadata,
        };
        let is_only = arrival.due().is_none_or(|due| !self.due.contains_key(&due));
        let of_process = if let Scope::Process(id) = &arrival.key.party.scope { Some(Arc::clone(id)) } else { None };
        let is_counted = of_process.is_some_and(|id| self.of_processes.contains(&(id, arrival.number)));
        ensure(is_only && !is_counted, "two arrivals have one number")?;
        if !is_inside {
            self.insert_arrival(arrival);
            return Ok(());
        }
        let arrival = Arc::new(arrival);
        self.add_to_indexes(&arrival);
        let is_added = self.change(&path, |barrier| barrier.restore_inside(arrival));
        ensure(is_added == Some(true), "nobody is inside")
    }

    fn last_path(&self) -> Result<Arc<Path>, DecodeError> {
        let last = self.by_path.last_key_value().map(|(path, _)| Arc::clone(path));
        last.ok_or(DecodeError::Snapshot("an arrival belongs to nothing"))
    }

    /// Checks conditions that require everything. `is_open` tells whether a session exists.
    pub fn finish_restore(&self, is_open: impl Fn(SessionNumber) -> bool) -> Result<(), DecodeError> {
        let is_of_open = |arrival: &Arc<Arrival>| arrival.key.party.session().is_none_or(|(number, _)| is_open(number));
        for barrier in self.by_path.values() {
            barrier.check()?;
            ensure(barrier.arrivals().all(is_of_open), "an arrival has no session")?;
        }
        Ok(())
    }
}

impl Barrier {
    fn restore_inside(&mut self, arrival: Arc<Arrival>) -> bool {
        self.deadlines.extend(arrival.due());
        let Some(inside) = &mut self.inside else { return false };
        inside.bytes += super::charge::inside(&arrival);
        inside.arrivals.insert(arrival.number, arrival);
        true
    }

    /// Checks whether its parts fit together.
    pub(super) fn check(&self) -> Result<(), DecodeError> {
        let facts = &self.facts;
        ensure((1..=MAX_PARTIES).contains(&facts.parties), "a barrier has no parties, or too many")?;
        ensure(facts.generation <= facts.revision, "a barrier has a generation from the future")?;
        ensure(!facts.is_deleted || self.is_idle(), "somebody is in a deleted barrier")?;
        ensure(!self.is_complete(), "a barrier at which all have come has not tripped")?;
        ensure(self.gathered.len() <= MAX_PARTIES as usize, "too many have come")?;
        let numbers = || self.outcomes.iter().map(|ended| ended.generation);
        let rises = numbers().zip(numbers().skip(1)).all(|(one, next)| one < next);
        let is_past = numbers().all(|generation| generation < facts.generation);
        ensure(rises && is_past && self.outcomes.len() <= crate::MAX_GENERATIONS, "generations are out of order")?;
        let last = self.last.as_ref().map(|last| last.generation);
        ensure(last == numbers().next_back(), "another generation ended last")?;
        let Some(inside) = &self.inside else { return Ok(()) };
        let ended = self.outcome(inside.roster.generation);
        ensure(
            ended.is_some_and(|ended| ended.lost.is_none()),
            "a generation is inside that did not trip, or has left",
        )?;
        let is_member = |party: &Party| inside.roster.members.contains_key(party);
        let fits = inside.arrivals.values().all(|arrival| is_member(&arrival.key.party))
            && inside.leaving.iter().all(|(party, _)| is_member(party))
            && !inside.arrivals.is_empty();
        ensure(fits, "somebody is inside that did not trip")
    }
}

impl FrozenBarriers {
    /// Returns the item at a place, and moves the place on; `None` at the end.
    pub fn next_item(&self, cursor: &mut BarrierCursor) -> Option<BarrierItem> {
        loop {
            let (path, barrier) = self.0.get(cursor.barrier)?;
            match &cursor.stage {
                CursorStage::Facts => {
                    cursor.stage = CursorStage::Last;
                    let outcomes = barrier.outcomes.iter().copied().collect();
                    return Some(BarrierItem::Barrier(Path::clone(path), barrier.facts.clone(), outcomes));
                }
                CursorStage::Last => {
                    cursor.stage = CursorStage::Inside;
                    if let Some(last) = &barrier.last {
                        return Some(BarrierItem::Last(RosterItem::of(last)));
                    }
                }
                CursorStage::Inside => {
                    cursor.stage = CursorStage::InsideAfter(None);
                    if let Some(inside) = &barrier.inside {
                        return Some(inside_item(barrier, inside));
                    }
                }
                CursorStage::InsideAfter(last) => {
                    let next = barrier.inside.as_ref().and_then(|inside| first_after(&inside.arrivals, *last));
                    if let Some((number, arrival)) = next {
                        cursor.stage = CursorStage::InsideAfter(Some(*number));
                        return Some(BarrierItem::ArrivalInside(ArrivalItem::of(arrival)));
                    }
                    cursor.stage = CursorStage::GatheredAfter(None);
                }
                CursorStage::GatheredAfter(last) => {
                    if let Some((number, arrival)) = first_after(&barrier.gathered, *last) {
                        cursor.stage = CursorStage::GatheredAfter(Some(*number));
                        return Some(BarrierItem::Arrival(ArrivalItem::of(arrival)));
                    }
                    *cursor = BarrierCursor { barrier: cursor.barrier + 1, stage: CursorStage::Facts };
                }
            }
        }
    }
}

fn inside_item(barrier: &Barrier, inside: &Inside) -> BarrierItem {
    let is_last = barrier.last.as_ref().is_some_and(|last| last.generation == inside.roster.generation);
    let leaving = inside.leaving.iter().map(|(party, request_id)| (PartyItem::of(party), request_id.to_string()));
    BarrierItem::Inside {
        roster: (!is_last).then(|| RosterItem::of(&inside.roster)),
        leaving: leaving.collect(),
        lost: inside.lost,
    }
}

impl PartyItem {
    fn of(party: &Party) -> Self {
        match &party.scope {
            Scope::Process(process_id) => Self::Process(process_id.to_string()),
            Scope::Session { number, session_id } => Self::Session {
                number: *number,
                session_id: session_id.to_string(),
                holder: party.holder.as_deref().map(str::to_owned),
            },
        }
    }

    fn restored(self) -> Party {
        match self {
            Self::Process(process_id) => Party { scope: Scope::Process(process_id.into()), holder: None },
            Self::Session { number, session_id, holder } => Party {
                scope: Scope::Session { number, session_id: session_id.into() },
                holder: holder.map(Into::into),
            },
        }
    }
}

impl RosterItem {
    fn of(roster: &Roster) -> Self {
        let mut members: Vec<_> = roster.members.iter().collect();
        members.sort_unstable_by_key(|(_, member)| member.index);
        let members = members
            .into_iter()
            .map(|(party, member)| (PartyItem::of(party), member.request_id.as_deref().map(str::to_owned)));
        Self { generation: roster.generation, members: members.collect() }
    }

    fn restored(self) -> Result<Roster, DecodeError> {
        let count = self.members.len();
        let members = self.members.into_iter().map(|(party, request_id)| {
            let request_id: Option<Arc<str>> = request_id.map(Into::into);
            (party.restored(), request_id)
        });
        let roster = Roster::new(self.generation, members);
        ensure(roster.members.len() == count && count <= MAX_PARTIES as usize, "a party was in a generation twice")?;
        Ok(roster)
    }
}

impl ArrivalItem {
    fn of(arrival: &Arrival) -> Self {
        Self {
            party: PartyItem::of(&arrival.key.party),
            process_id: arrival.process_id.to_string(),
            number: arrival.number,
            request_id: arrival.request_id.as_deref().map(str::to_owned),
            arrived_at_ms: arrival.arrived_at_ms,
            deadline_ms: arrival.deadline_ms,
            metadata: arrival.metadata.clone(),
        }
    }
}

fn ensure(fits: bool, otherwise: &'static str) -> Result<(), DecodeError> {
    if fits { Ok(()) } else { Err(DecodeError::Snapshot(otherwise)) }
}
