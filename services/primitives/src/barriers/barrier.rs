//! One barrier: who has come, who is inside, and how the latest generations ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::charge;
use super::party::{ArrivalKey, Party};
use crate::item_bytes::ItemBytes;
use crate::metadata::EncodedMetadata;
use crate::{
    BarrierAnswer, BarrierOutcome, DELETED_BARRIER_RETAIN_MS, EndedGeneration, GenerationEnd, MAX_GENERATIONS, OnLoss,
    Revision,
};

/// A barrier. Shared with snapshots in progress.
#[derive(Clone, Debug)]
pub(super) struct Barrier {
    pub(super) facts: BarrierFacts,
    /// Those who have come, by number: in order of arrival.
    pub(super) gathered: BTreeMap<Revision, Arc<Arrival>>,
    /// Of a double barrier.
    pub(super) inside: Option<Inside>,
    /// Those of the generation that ended last.
    pub(super) last: Option<Arc<Roster>>,
    /// The latest generations that ended, in order.
    pub(super) outcomes: VecDeque<EndedGeneration>,
    /// When arrivals end, of those inside too, and their numbers.
    pub(super) deadlines: BTreeSet<(u64, Revision)>,
    /// The bytes of those who have come.
    pub(super) gathered_bytes: ItemBytes,
}

/// What a barrier is besides those in it. The serialized form is stored: fields never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierFacts {
    pub(super) parties: u32,
    pub(super) is_double: bool,
    pub(super) on_loss: OnLoss,
    pub(super) retain_ms: u64,
    pub(super) is_configured: bool,
    /// Only its outcomes are left, for those who were in it.
    pub(super) is_deleted: bool,
    pub(super) description: String,
    pub(super) metadata: EncodedMetadata,
    /// The revision of its last change.
    pub(super) revision: Revision,
    /// The generation that gathers: the revision of its beginning.
    pub(super) generation: Revision,
    /// The shard clock of its last activity.
    pub(super) active_ms: u64,
}

/// An arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) key: ArrivalKey,
    pub(super) process_id: Arc<str>,
    /// The revision of the arrival.
    pub(super) number: Revision,
    pub(super) request_id: Option<Arc<str>>,
    /// Wall clock.
    pub(super) arrived_at_ms: u64,
    /// Shard clock at which it ends; absent for one that lives as long as a session.
    pub(super) deadline_ms: Option<u64>,
    pub(super) metadata: EncodedMetadata,
}

/// The parties of an ended generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roster {
    pub(super) generation: Revision,
    pub(super) members: BTreeMap<Party, Member>,
    /// The bytes of all members.
    pub(super) bytes: ItemBytes,
}

/// One of these parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The rank in order of arrival.
    pub(super) index: u32,
    pub(super) request_id: Option<Arc<str>>,
}

/// The parties of a tripped generation of a double barrier, until all have left.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    pub(super) roster: Arc<Roster>,
    /// The arrivals of the parties that have not left.
    pub(super) arrivals: BTreeMap<Revision, Arc<Arrival>>,
    /// The requests of sessions that have left and wait for the others.
    pub(super) leaving: Vec<(Party, Arc<str>)>,
    /// The number of parties that ended without leaving.
    pub(super) lost: u32,
    /// The bytes, without those of the roster.
    pub(super) bytes: ItemBytes,
}

impl Arrival {
    pub(super) fn due(&self) -> Option<(u64, Revision)> {
        Some((self.deadline_ms?, self.number))
    }
}

impl Roster {
    /// Returns that of a generation, given those in it in order of arrival.
    pub(super) fn new(generation: Revision, members: impl Iterator<Item = (Party, Option<Arc<str>>)>) -> Self {
        let mut bytes = ItemBytes::default();
        let members = members.zip(0..).map(|((party, request_id), index)| {
            bytes += charge::of_member(&party, request_id.as_deref());
            (party, Member { index, request_id })
        });
        let members = members.collect();
        Self { generation, members, bytes }
    }
}

impl Inside {
    pub(super) fn new(roster: Arc<Roster>, arrivals: BTreeMap<Revision, Arc<Arrival>>) -> Self {
        let bytes = arrivals.values().map(|arrival| charge::inside(arrival)).sum();
        Self { roster, arrivals, leaving: Vec::new(), lost: 0, bytes }
    }

    pub(super) fn add_leaving(&mut self, party: Party, request_id: Arc<str>) {
        self.bytes += charge::LEAVING;
        self.leaving.push((party, request_id));
    }
}

impl Barrier {
    pub(super) fn new(facts: BarrierFacts) -> Self {
        Self {
            facts,
            gathered: BTreeMap::new(),
            inside: None,
            last: None,
            outcomes: VecDeque::new(),
            deadlines: BTreeSet::new(),
            gathered_bytes: ItemBytes::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.gathered.is_empty() && self.inside.is_none()
    }

    /// Returns when it is gone if nobody comes.
    pub(super) fn gone_at_ms(&self) -> Option<u64> {
        let facts = &self.facts;
        let retain_ms = if facts.is_deleted { DELETED_BARRIER_RETAIN_MS } else { facts.retain_ms };
        (self.is_idle() && retain_ms > 0).then(|| facts.active_ms.saturating_add(retain_ms))
    }

    pub(super) fn due(&self) -> Option<(u64, Revision)> {
        Some((self.gone_at_ms()?, self.facts.generation))
    }

    /// Returns whether all have come and nobody is inside any more.
    pub(super) fn is_complete(&self) -> bool {
        self.has_all() && self.inside.is_none()
    }

    pub(super) fn has_all(&self) -> bool {
        self.gathered.len() as u64 >= u64::from(self.facts.parties)
    }

    /// Iterates over all who have come, and then those inside.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = &Arc<Arrival>> {
        let inside = self.inside.as_ref().map(|inside| inside.arrivals.values());
        self.gathered.values().chain(inside.into_iter().flatten())
    }

    pub(super) fn arrival(&self, number: Revision) -> Option<&Arc<Arrival>> {
        self.gathered.get(&number).or_else(|| self.inside.as_ref()?.arrivals.get(&number))
    }

    /// Returns whether an arrival is in that generation, or inside with it.
    pub(super) fn is_in(&self, number: Revision, generation: Revision) -> bool {
        match &self.inside {
            _ if self.gathered.contains_key(&number) => generation == self.facts.generation,
            Some(inside) => inside.roster.generation == generation && inside.arrivals.contains_key(&number),
            None => false,
        }
    }

    pub(super) fn gather(&mut self, arrival: Arc<Arrival>) {
        self.gathered_bytes += charge::gathered(&arrival);
        self.deadlines.extend(arrival.due());
        self.gathered.insert(arrival.number, arrival);
    }

    /// Replaces an arrival where it is.
    pub(super) fn replace(&mut self, before: &Arrival, arrival: Arc<Arrival>) {
        if let Some(due) = before.due() {
            self.deadlines.remove(&due);
        }
        self.deadlines.extend(arrival.due());
        if let Some(there) = self.gathered.get_mut(&before.number) {
            self.gathered_bytes = self.gathered_bytes - charge::gathered(before) + charge::gathered(&arrival);
            *there = arrival;
        } else if let Some(inside) = &mut self.inside
            && let Some(there) = inside.arrivals.get_mut(&before.number)
        {
            inside.bytes = inside.bytes - charge::inside(before) + charge::inside(&arrival);
            *there = arrival;
        }
    }

    /// Removes an arrival, wherever it is.
    pub(super) fn remove(&mut self, number: Revision) -> Option<Arc<Arrival>> {
        let arrival = match self.gathered.remove(&number) {
            Some(arrival) => {
                self.gathered_bytes -= charge::gathered(&arrival);
                arrival
            }
            None => {
                let inside = self.inside.as_mut()?;
                let arrival = inside.arrivals.remove(&number)?;
                inside.bytes -= charge::inside(&arrival);
                arrival
            }
        };
        if let Some(due) = arrival.due() {
            self.deadlines.remove(&due);
        }
        Some(arrival)
    }

    /// Ends the generation that gathers; `next` begins. Returns those who were in it, in order of arrival. They are
    /// inside if `stays`.
    pub(super) fn end_generation(
        &mut self,
        ended: EndedGeneration,
        next: Revision,
        now_ms: u64,
        stays: bool,
    ) -> Vec<Arc<Arrival>> {
        let gathered = std::mem::take(&mut self.gathered);
        self.gathered_bytes = ItemBytes::default();
        let arrivals: Vec<Arc<Arrival>> = gathered.values().map(Arc::clone).collect();
        let members = arrivals.iter().map(|arrival| (arrival.key.party.clone(), arrival.request_id.clone()));
        let roster = Arc::new(Roster::new(ended.generation, members));
        if stays {
            self.inside = Some(Inside::new(Arc::clone(&roster), gathered));
        } else {
            for due in arrivals.iter().filter_map(|arrival| arrival.due()) {
                self.deadlines.remove(&due);
            }
        }
        self.last = Some(roster);
        self.outcomes.push_back(ended);
        self.remove_oldest();
        let facts = &mut self.facts;
        (facts.generation, facts.revision, facts.active_ms) = (next, next, now_ms);
        arrivals
    }

    /// Removes the oldest outcome if there are too many, but not that of those inside.
    fn remove_oldest(&mut self) {
        if self.outcomes.len() > MAX_GENERATIONS {
            let inside = self.inside.as_ref().map(|inside| inside.roster.generation);
            let oldest = self.outcomes.iter().position(|ended| Some(ended.generation) != inside);
            oldest.and_then(|oldest| self.outcomes.remove(oldest));
        }
    }

    pub(super) fn outcome(&self, generation: Revision) -> Option<&EndedGeneration> {
        self.outcomes.iter().rev().find(|ended| ended.generation == generation)
    }

    /// Returns whether a request of this party with this id was in the generation that ended last.
    pub(super) fn is_repeat(&self, party: &Party, request_id: &str) -> bool {
        let member = self.last.as_ref().and_then(|roster| roster.members.get(party));
        member.is_some_and(|member| member.request_id.as_deref() == Some(request_id))
    }

    fn member(&self, party: &Party, generation: Revision) -> Option<&Member> {
        let inside = self.inside.as_ref().map(|inside| &inside.roster);
        let rosters = inside.into_iter().chain(&self.last);
        let roster = rosters.into_iter().find(|roster| roster.generation == generation)?;
        roster.members.get(party)
    }

    /// Returns what is known of a generation that has begun: what a party is told, or somebody who did not arrive.
    /// `number` is that of the party's arrival, wherever it is; `leaves` tells whether it asks if all have left.
    pub(super) fn answer(
        &self,
        party: Option<&Party>,
        number: Option<Revision>,
        generation: Revision,
        leaves: bool,
    ) -> BarrierAnswer {
        let answer = BarrierAnswer { generation, ..self.answer_of(BarrierOutcome::Past) };
        if generation >= self.facts.generation {
            let is_in = party.is_none() || number.is_some_and(|number| self.gathered.contains_key(&number));
            let outcome = if is_in { BarrierOutcome::Waiting } else { BarrierOutcome::Withdrawn };
            return BarrierAnswer { outcome, ..answer };
        }
        let Some(ended) = self.outcome(generation) else { return answer };
        let member = party.and_then(|party| self.member(party, generation));
        let is_concerned = member.is_some() || party.is_none();
        let index = member.filter(|_| ended.end == GenerationEnd::Tripped).map(|member| member.index);
        let is_inside = self.inside.as_ref().is_some_and(|inside| inside.roster.generation == generation);
        match ended.lost {
            Some(lost) if leaves => BarrierAnswer { outcome: BarrierOutcome::Left, index, lost: Some(lost), ..answer },
            _ if leaves && is_inside && is_concerned => {
                BarrierAnswer { outcome: BarrierOutcome::Waiting, index, ..answer }
            }
            _ if is_concerned => BarrierAnswer { outcome: ended.end.into(), index, ..answer },
            _ => BarrierAnswer { ended: Some(ended.end), ..answer },
        }
    }

    /// Returns an answer about the generation that gathers.
    pub(super) fn answer_of(&self, outcome: BarrierOutcome) -> BarrierAnswer {
        let generation = self.facts.generation;
        BarrierAnswer { outcome, generation, next_generation: generation, index: None, lost: None, ended: None }
    }
}
