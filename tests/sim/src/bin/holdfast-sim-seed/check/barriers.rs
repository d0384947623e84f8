//! What must hold of barriers after a step, by rules of its own, without the core: a generation ends once, with one
//! outcome for all who are in it, and not before all have come or one of them is lost.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    ArrivalView, BarrierAnswer, BarrierCommand, BarrierOutcome, BarrierQuery, Event, EventKind, GenerationEnd,
    LocksCommand, NamespaceRef, OnLoss, Owner, Path, Query, Release, ReleaseTarget, Response, WaitAtBarrier,
};

use super::invariants::Step;
use super::permits::{StepContext, is_without_session};
use super::shard_view::BarrierState;
use crate::barrier_calls::{ObservedBarrier, ObservedMeeting};

/// A barrier at a place, and the owners in the generation that gathers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BarrierMoment {
    pub(crate) barrier: ObservedBarrier,
    pub(crate) gathered: Vec<Owner>,
}

/// How a generation ended.
#[derive(Debug)]
struct GenerationRecord {
    place: usize,
    end: GenerationEnd,
    /// Those who were in it, each with its index.
    members: BTreeMap<Owner, u32>,
    /// When all had left, and how many of them did not leave by themselves.
    left: Option<(usize, u32)>,
}

/// All generations that ended.
#[derive(Default)]
pub(crate) struct Meetings {
    ended: BTreeMap<(NamespaceRef, Path, u64), GenerationRecord>,
    /// The highest generation that each barrier has had.
    highest: BTreeMap<(NamespaceRef, Path), u64>,
    /// Places at which there was no barrier any more.
    removed: BTreeMap<(NamespaceRef, Path), Vec<usize>>,
    /// Whether work was left for later entries before the step.
    had_backlog: bool,
}

/// What a step did, and the state after it.
struct BarrierStep<'a> {
    place: usize,
    step: &'a Step<'a>,
    context: &'a StepContext<'a>,
    core: &'a ShardState,
    /// Whether whatever ended in this step has its cause in it.
    is_whole: bool,
}

/// A generation that has ended by an event.
#[derive(Clone, Copy)]
struct EndEvent<'a> {
    life: &'a NamespaceRef,
    path: &'a Path,
    generation: u64,
    end: GenerationEnd,
    parties: u32,
    /// Whether no later one of the barrier ended in the same step: its members are remembered.
    is_last: bool,
}

impl From<&BarrierState> for BarrierMoment {
    fn from(barrier: &BarrierState) -> Self {
        let gathered = barrier.gathered().map(|arrival| arrival.owner.clone()).collect();
        Self { barrier: (&barrier.view).into(), gathered }
    }
}

/// Who was told that it was in a generation, its arrival, and its place.
type Member<'a> = (&'a Owner, Option<&'a ArrivalView>, Option<u32>);

/// Returns whether the places are those of the arrivals. Unless all could be asked, some are missing: of sessions that
/// ended later in the same step.
fn are_in_order(members: &[Member<'_>], parties: u32, is_complete: bool) -> bool {
    let places: Option<Vec<u32>> = members.iter().map(|(.., place)| *place).collect();
    let Some(places) = places else { return false };
    if is_complete {
        return places.iter().copied().eq(0..places.len() as u32);
    }
    places.is_sorted_by(|one, next| one < next) && places.last().is_none_or(|last| *last < parties)
}

impl Meetings {
    /// Checks a step that leads to a place, and records what ended.
    pub(crate) fn check(
        &mut self,
        place: usize,
        step: &Step<'_>,
        context: &StepContext<'_>,
        (core, events): (&ShardState, &[(NamespaceRef, Event)]),
        find: &mut dyn FnMut(String),
    ) {
        let is_whole = context.is_settled && !self.had_backlog;
        self.had_backlog = !context.is_settled;
        let known = BarrierStep { place, step, context, core, is_whole };
        for (at, (life, event)) in events.iter().enumerate() {
            let Some(path) = event.claims.first().map(|claim| &claim.path) else { continue };
            let (generation, end, parties) = match event.kind {
                EventKind::BarrierTripped { generation, parties } => (generation, GenerationEnd::Tripped, parties),
                EventKind::BarrierBroken { generation, parties, .. } => (generation, GenerationEnd::Broken, parties),
                EventKind::BarrierLeft { generation, .. } => {
                    self.all_left(&known, (life, path, generation), find);
                    continue;
                }
                _ => continue,
            };
            let ends = |event: &Event| {
                matches!(event.kind, EventKind::BarrierTripped { .. } | EventKind::BarrierBroken { .. })
            };
            let is_later = |(of, later): &(NamespaceRef, Event)| {
                of == life && ends(later) && later.claims.first().is_some_and(|claim| claim.path == *path)
            };
            let is_last = !events[at + 1..].iter().any(is_later);
            self.end(&known, &EndEvent { life, path, generation, end, parties, is_last }, find);
        }
        for life in step.after.changed(step.before) {
            for (path, _) in step.before.barriers(life).filter(|(path, _)| step.after.barrier(life, path).is_none()) {
                self.removed.entry((life.clone(), path.clone())).or_default().push(place);
            }
            for (path, after) in step.after.barriers(life) {
                counts_agree(after, context, find);
                self.generations_rise((life, path), step.before.barrier(life, path), after, find);
                self.outcomes_stay(&known, (life, path), after, find);
                if is_whole {
                    nothing_is_early((step.before.barrier(life, path), after), context, find);
                }
            }
        }
    }

    fn end(&mut self, known: &BarrierStep<'_>, ended: &EndEvent<'_>, find: &mut dyn FnMut(String)) {
        let EndEvent { life, path, generation, end, parties, .. } = *ended;
        let candidates = known.candidates(ended);
        let told = candidates.iter().filter_map(|(owner, arrival)| {
            let answer = known.outcome_for((life, path), generation, owner)?;
            Some((*owner, *arrival, answer))
        });
        let told: Vec<(&Owner, Option<&ArrivalView>, BarrierAnswer)> = told.collect();
        let outcome = BarrierOutcome::from(end);
        let members = told.iter().filter(|(.., answer)| answer.outcome == outcome);
        let members: Vec<Member<'_>> =
            members.map(|(owner, arrival, answer)| (*owner, *arrival, answer.index)).collect();
        let what = format!("generation {generation} of {path:?}, which is {}", end.name());
        if ended.is_last {
            for (owner, arrival, answer) in told.iter().filter(|(.., answer)| answer.outcome != outcome) {
                if known.is_whole && arrival.is_some_and(|arrival| !known.is_lost((life, path), arrival)) {
                    find(format!("[one outcome] {owner:?} was in {what}, and is told {answer:?}"));
                }
            }
            // Whoever has no session any more can't be asked.
            if told.len() == candidates.len() && members.len() as u64 != u64::from(parties) {
                find(format!("[one outcome] {members:?} are told of {what}, and {parties} were in it"));
            }
            if end == GenerationEnd::Tripped && !are_in_order(&members, parties, told.len() == candidates.len()) {
                find(format!("[one outcome] the places of {members:?} in {what} are not those of their arrival"));
            }
        }
        match end {
            GenerationEnd::Tripped => known.trips_rightly(ended, &members, find),
            GenerationEnd::Broken => known.breaks_rightly(ended, &candidates, find),
        }
        let place_of = |((owner, _, place), rank): (&Member<'_>, u32)| ((*owner).clone(), place.unwrap_or(rank));
        let members = members.iter().zip(0..).map(place_of).collect();
        let record = GenerationRecord { place: known.place, end, members, left: None };
        if let Some(before) = self.ended.insert((life.clone(), path.clone(), generation), record) {
            find(format!("[one outcome] {what} had ended before: {before:?}"));
        }
    }

    fn all_left(
        &mut self,
        known: &BarrierStep<'_>,
        (life, path, generation): (&NamespaceRef, &Path, u64),
        find: &mut dyn FnMut(String),
    ) {
        let lost_of = |state: &BarrierState| state.ended.iter().find(|it| it.generation == generation)?.lost;
        // A deleted barrier does not show it.
        let shown = known.step.after.barrier(life, path).and_then(lost_of);
        let lost = shown.or_else(|| {
            let answer = known.query((life, path), generation, None, true)?;
            answer.lost
        });
        match self.ended.get_mut(&(life.clone(), path.clone(), generation)) {
            Some(ended) if ended.end == GenerationEnd::Tripped && ended.left.is_none() => {
                ended.left = Some((known.place, lost.unwrap_or_default()));
            }
            ended => find(format!("[one outcome] all have left generation {generation} of {path:?}: {ended:?}")),
        }
        if known.step.after.barrier(life, path).is_some_and(|after| after.view.inside_generation == Some(generation)) {
            find(format!("[one outcome] somebody is inside {path:?} with {generation}, which all have left"));
        }
    }

    /// A generation that begins has a number that its barrier never had, and the one before has ended.
    fn generations_rise(
        &mut self,
        (life, path): (&NamespaceRef, &Path),
        before: Option<&BarrierState>,
        after: &BarrierState,
        find: &mut dyn FnMut(String),
    ) {
        let generation = after.view.generation;
        let highest = self.highest.entry((life.clone(), path.clone())).or_default();
        if before.map(|before| before.view.generation) != Some(generation) && generation <= *highest {
            find(format!("[one outcome] {:?} has a generation again, after {highest}", after.view));
        }
        *highest = generation.max(*highest);
        let was = before.filter(|before| before.view.generation != generation && before.view.arrived > 0);
        if let Some(was) = was
            && !self.ended.contains_key(&(life.clone(), path.clone(), was.view.generation))
        {
            find(format!("[one outcome] {was:?} has no outcome, and {:?} follows", after.view));
        }
    }

    /// What a generation came to never changes, and those of the last one can ask for it.
    fn outcomes_stay(
        &self,
        known: &BarrierStep<'_>,
        (life, path): (&NamespaceRef, &Path),
        after: &BarrierState,
        find: &mut dyn FnMut(String),
    ) {
        for shown in &after.ended {
            match self.ended.get(&(life.clone(), path.clone(), shown.generation)) {
                Some(ended) if ended.end == shown.end => {}
                ended => find(format!("[one outcome] {shown:?} of {path:?} was {ended:?}")),
            }
        }
        let Some(last) = after.ended.first() else { return };
        let Some(ended) = self.ended.get(&(life.clone(), path.clone(), last.generation)) else { return };
        for (owner, index) in &ended.members {
            let Some(answer) = known.outcome_for((life, path), last.generation, owner) else { continue };
            let meant = Some(*index).filter(|_| ended.end == GenerationEnd::Tripped);
            if (answer.outcome, answer.index) != (ended.end.into(), meant) {
                find(format!("[one outcome] {owner:?} is told {answer:?} of {path:?}, which was {ended:?}"));
            }
        }
    }

    /// Whether that is what an owner is told at a place, or somebody who did not arrive.
    pub(crate) fn is_right(
        &self,
        (life, path): (&NamespaceRef, &Path),
        (owner, leaves): (Option<&Owner>, bool),
        told: &ObservedMeeting,
        (place, moment): (usize, Option<&BarrierMoment>),
    ) -> bool {
        let shows = |moment: &BarrierMoment| {
            moment.barrier == told.barrier && moment.barrier.generation == told.next_generation
        };
        // A barrier that was deleted still tells how it ended.
        if !moment.is_none_or(shows) {
            return false;
        }
        let key = (life.clone(), path.clone(), told.generation);
        let ended = self.ended.get(&key).filter(|ended| ended.place <= place);
        let index = owner.and_then(|owner| ended?.members.get(owner)).copied();
        let is_present = moment.is_some_and(|moment| moment.barrier.generation == told.generation);
        let is_gathered = |owner: &Owner| moment.is_some_and(|moment| moment.gathered.contains(owner));
        match (told.outcome, ended) {
            (BarrierOutcome::Tripped | BarrierOutcome::Broken, Some(ended)) => {
                let meant = index.filter(|_| ended.end == GenerationEnd::Tripped);
                told.end() == Some(ended.end) && told.index == meant && (owner.is_none() || index.is_some())
            }
            (BarrierOutcome::Left, Some(ended)) => {
                ended.left.is_some_and(|(since, lost)| since <= place && told.lost == Some(lost))
            }
            (BarrierOutcome::Waiting, None) => is_present && owner.is_none_or(is_gathered),
            (BarrierOutcome::Waiting, Some(_)) => {
                leaves && moment.is_some_and(|moment| moment.barrier.inside_generation == Some(told.generation))
            }
            (BarrierOutcome::Withdrawn, None) => is_present && owner.is_some_and(|owner| !is_gathered(owner)),
            (BarrierOutcome::Past, Some(ended)) => {
                let is_known = index.is_some() && !self.is_forgotten(&key, ended.place, place);
                !is_known && told.ended.is_none_or(|end| end == ended.end)
            }
            (BarrierOutcome::Past, None) => told.ended.is_none(),
            _ => false,
        }
    }

    /// Whether nobody need know any more who was in a generation: another one has ended since, or the barrier was
    /// deleted.
    fn is_forgotten(&self, (life, path, generation): &(NamespaceRef, Path, u64), since: usize, place: usize) -> bool {
        let later = (life.clone(), path.clone(), generation + 1)..=(life.clone(), path.clone(), u64::MAX);
        let removed = self.removed.get(&(life.clone(), path.clone())).into_iter().flatten();
        self.ended.range(later).any(|(_, ended)| ended.place <= place)
            || removed.into_iter().any(|at| (since..=place).contains(at))
    }
}

impl<'a> BarrierStep<'a> {
    /// Those who may have been in a generation, in order of arrival, and their arrivals before the step.
    fn candidates(&self, ended: &EndEvent<'a>) -> Vec<(&'a Owner, Option<&'a ArrivalView>)> {
        let before = self.step.before.barrier(ended.life, ended.path);
        let before = before.filter(|before| before.view.generation == ended.generation);
        let mut candidates: Vec<(&Owner, Option<&ArrivalView>)> = before
            .into_iter()
            .flat_map(BarrierState::gathered)
            .map(|arrival| (&arrival.owner, Some(arrival)))
            .collect();
        if let Some(LocksCommand::Barrier(BarrierCommand::Arrive(arrive))) = self.context.command
            && (&arrive.namespace, &arrive.path) == (ended.life, ended.path)
            && !candidates.iter().any(|(owner, _)| **owner == arrive.owner)
        {
            candidates.push((&arrive.owner, None));
        }
        candidates
    }

    fn outcome_for(&self, of: (&NamespaceRef, &Path), generation: u64, owner: &Owner) -> Option<BarrierAnswer> {
        self.query(of, generation, Some(owner.clone()), false)
    }

    fn query(
        &self,
        (life, path): (&NamespaceRef, &Path),
        generation: u64,
        owner: Option<Owner>,
        leaves: bool,
    ) -> Option<BarrierAnswer> {
        let (namespace, path) = (life.clone(), path.clone());
        let query = BarrierQuery::Wait(WaitAtBarrier { namespace, path, generation, owner, leaves, wait_ms: 0 });
        match self.core.query(0, &Query::Barrier(query)).outcome {
            Ok(Response::AtBarrier { answer, .. }) => Some(answer),
            _ => None,
        }
    }

    /// Whether an arrival had ended, or was ended by the command.
    fn is_lost(&self, (life, path): (&NamespaceRef, &Path), arrival: &ArrivalView) -> bool {
        let by_command = match self.context.command {
            Some(LocksCommand::Barrier(BarrierCommand::Leave(leave))) => {
                (&leave.namespace, &leave.path, &leave.owner) == (life, path, &arrival.owner)
            }
            Some(LocksCommand::Barrier(BarrierCommand::Delete { path: deleted, .. })) => deleted == path,
            Some(LocksCommand::Release(Release { owner, what: ReleaseTarget::All, .. })) => *owner == arrival.owner,
            _ => false,
        };
        by_command || is_over(arrival, self.context)
    }

    /// A generation trips with all parties, and none of them is gone.
    fn trips_rightly(
        &self,
        ended: &EndEvent<'_>,
        members: &[(&Owner, Option<&ArrivalView>, Option<u32>)],
        find: &mut dyn FnMut(String),
    ) {
        let (EndEvent { life, path, generation, parties, .. }, context) = (*ended, self.context);
        let needed = self.step.after.barrier(life, path).map(|after| after.view.parties);
        let came_before = self.step.before.barrier(life, path).map_or(0, |before| before.view.arrived);
        // There may have been more parties when they came.
        let is_wrong = |needed| parties < needed || (parties > needed && came_before < parties);
        if needed.is_some_and(is_wrong) {
            find(format!("[one outcome] generation {generation} of {path:?} tripped with {parties}, not {needed:?}"));
        }
        let repeats = |owner: &Owner| {
            let LocksCommand::Barrier(BarrierCommand::Arrive(arrive)) = context.command? else { return None };
            Some(arrive.owner == *owner)
        };
        // Deadlines that pass in one step are handled in their order: who waited for the last one inside was still there.
        let before = self.step.before.barrier(life, path);
        let left_at =
            before.into_iter().flat_map(|before| before.inside()).filter_map(|inside| inside.deadline_ms).max();
        let was_there = |arrival: &ArrivalView| {
            let passed = left_at.filter(|left_at| *left_at <= context.clock_ms);
            passed.zip(arrival.deadline_ms).is_some_and(|(left_at, deadline_ms)| left_at < deadline_ms)
        };
        let gone = members.iter().filter(|(owner, arrival, _)| {
            let is_gone = |arrival: &ArrivalView| is_over(arrival, context) && !was_there(arrival);
            repeats(owner) != Some(true) && arrival.is_some_and(is_gone)
        });
        for (owner, arrival, _) in gone {
            find(format!("[one outcome] {generation} of {path:?} tripped with {owner:?}, who was gone: {arrival:?}"));
        }
    }

    /// A generation is broken by the end of an arrival.
    fn breaks_rightly(
        &self,
        ended: &EndEvent<'_>,
        candidates: &[(&Owner, Option<&ArrivalView>)],
        find: &mut dyn FnMut(String),
    ) {
        let EndEvent { life, path, generation, .. } = *ended;
        let deletes = matches!(self.context.command, Some(LocksCommand::Barrier(BarrierCommand::Delete { .. })));
        let withdraws = |state: &BarrierState| state.view.on_loss == OnLoss::Withdraw;
        if !deletes && self.step.before.barrier(life, path).is_some_and(withdraws) {
            find(format!("[one outcome] {generation} of {path:?} is broken, whose arrivals are withdrawn"));
        }
        let mut arrivals = candidates.iter().filter_map(|(_, arrival)| *arrival);
        if self.is_whole && !arrivals.any(|arrival| self.is_lost((life, path), arrival)) {
            find(format!("[one outcome] {generation} of {path:?} is broken, though all of {candidates:?} are there"));
        }
    }
}

/// Whether the time of an arrival is over, or its session is gone.
fn is_over(arrival: &ArrivalView, context: &StepContext<'_>) -> bool {
    arrival.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= context.clock_ms)
        || is_without_session(&arrival.owner, context)
}

/// Each owner is there once, nobody stays who is gone, and whoever can trip does.
fn counts_agree(after: &BarrierState, context: &StepContext<'_>, find: &mut dyn FnMut(String)) {
    let (gathered, inside) = (after.gathered().count() as u32, after.inside().count() as u32);
    let view = &after.view;
    if (view.arrived, view.inside) != (gathered, inside) {
        find(format!("[arrivals] {gathered} have come and {inside} are inside of {view:?}, which says otherwise"));
    }
    let owners: BTreeSet<&Owner> = after.arrivals.iter().map(|arrival| &arrival.owner).collect();
    if owners.len() != after.arrivals.len() {
        find(format!("[arrivals] somebody is there twice: {after:?}"));
    }
    if inside == 0 && gathered >= view.parties {
        find(format!("[arrivals] all have come, and {view:?} has not tripped"));
    }
    for arrival in after.arrivals.iter().filter(|arrival| context.is_settled && is_over(arrival, context)) {
        find(format!("[arrivals] {arrival:?} still counts at {}", context.clock_ms));
    }
}

/// While only time passes, an arrival is withdrawn at its end and no sooner.
fn nothing_is_early(
    (before, after): (Option<&BarrierState>, &BarrierState),
    context: &StepContext<'_>,
    find: &mut dyn FnMut(String),
) {
    let before = before.filter(|before| before.view.generation == after.view.generation && context.command.is_none());
    let is_there = |arrival: &ArrivalView| after.gathered().any(|there| there.owner == arrival.owner);
    let gone = before.into_iter().flat_map(BarrierState::gathered).filter(|arrival| !is_there(arrival));
    for arrival in gone.filter(|arrival| !is_over(arrival, context)) {
        find(format!("[nothing expires early] {arrival:?} ended at {}", context.clock_ms));
    }
}
