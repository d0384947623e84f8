//! Ends arrivals and generations.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::arrive::{check_generation, not_found};
use super::barrier::Arrival;
use super::party::{ArrivalKey, Party};
use super::{Barriers, DueThing};
use crate::kit::{END_UNITS, Kit, Notice};
use crate::permits::Requester;
use crate::{
    ArrivalEnd, BarrierAnswer, BarrierOutcome, CommandError, EndedGeneration, EventKind, GenerationEnd, LeaveBarrier,
    OnLoss, Path, Response, Revision, SessionEnd, arrival_units,
};

/// How an arrival ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its owner leaves, and waits for the others inside.
    Leaves,
    /// Its owner leaves, and does not wait.
    Releases,
    /// Its owner did not leave by itself.
    Lost,
}

impl Barriers {
    /// Ends an arrival before the trip, or leaves after it. Which of both it is, the log has decided.
    pub fn leave(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        leave: &LeaveBarrier,
    ) -> Result<Response, CommandError> {
        let path = self.end_what_is_over(kit, &leave.path).ok_or_else(|| not_found(&leave.path))?;
        let Some(barrier) = self.by_path.get(&path) else { return Err(not_found(&leave.path)) };
        if barrier.facts.is_deleted && leave.generation >= barrier.facts.generation {
            return Err(not_found(&leave.path));
        }
        check_generation(barrier, Some(leave.generation))?;
        let key = ArrivalKey { party: Party::of(requester), path: Arc::clone(&path) };
        let number = self.index.get(&key).copied();
        if let Some(number) = number.filter(|number| requester.is_new && barrier.is_in(*number, leave.generation)) {
            self.end_arrival(kit, &path, number, ArrivalEnd::Released, Departure::Leaves);
        }
        let number = self.index.get(&key).copied();
        let mut response = self.answer(kit, &path, (Some(&key.party), number), (leave.generation, true));
        if let Response::AtBarrier { answer, .. } = &mut response
            && answer.outcome == BarrierOutcome::Tripped
            && is_enabled(Mutation::BarrierTwoOutcomes)
        {
            answer.outcome = BarrierOutcome::Broken;
        }
        Ok(response)
    }

    /// Ends an arrival. Returns whether there was one.
    pub(super) fn end_arrival(
        &mut self,
        kit: &mut Kit<'_>,
        path: &Arc<Path>,
        number: Revision,
        cause: ArrivalEnd,
        departure: Departure,
    ) -> bool {
        let Some(barrier) = self.by_path.get(path) else { return false };
        let Some(arrival) = barrier.arrival(number).map(Arc::clone) else { return false };
        let is_gathered = barrier.gathered.contains_key(&number);
        if is_gathered && barrier.facts.on_loss == OnLoss::Break {
            let caller = Some(number).filter(|_| departure != Departure::Lost);
            self.end_generation(kit, path, Some(cause), caller);
            return true;
        }
        let revision = kit.next_revision();
        kit.spend(END_UNITS);
        self.remove_from_indexes(&arrival);
        let is_last = self.change(path, |barrier| {
            barrier.remove(number);
            (barrier.facts.revision, barrier.facts.active_ms) = (revision, kit.clock_ms());
            let Some(inside) = barrier.inside.as_mut().filter(|_| !is_gathered) else { return false };
            inside.lost = inside.lost.saturating_add(u32::from(departure == Departure::Lost));
            let is_last = inside.arrivals.is_empty();
            if let Some(request_id) = arrival.request_id.as_ref()
                && departure == Departure::Leaves
                && !is_last
            {
                inside.add_leaving(arrival.key.party.clone(), Arc::clone(request_id));
            }
            is_last
        });
        if is_gathered {
            kit.notify(Notice::BarrierSettled(Path::clone(path)));
        } else if is_last == Some(true) {
            self.end_inside(kit, path, cause);
        }
        true
    }

    /// Trips a barrier at which all have come. The command that did it is of the arrival `caller`, if any.
    pub(super) fn settle(&mut self, kit: &mut Kit<'_>, path: &Arc<Path>, caller: Option<Revision>) {
        if self.by_path.get(path).is_some_and(|barrier| barrier.is_complete()) {
            self.end_generation(kit, path, None, caller);
        }
    }

    /// Ends the generation that gathers: it trips, or is broken for a cause. All who are in it are told, but for the
    /// caller, whose response says so.
    fn end_generation(
        &mut self,
        kit: &mut Kit<'_>,
        path: &Arc<Path>,
        broken: Option<ArrivalEnd>,
        caller: Option<Revision>,
    ) {
        let Some(barrier) = self.by_path.get(path) else { return };
        let (generation, size) = (barrier.facts.generation, barrier.gathered.len());
        let parties = u32::try_from(size).unwrap_or(u32::MAX);
        let stays = barrier.facts.is_double && broken.is_none();
        let (kind, end) = match broken {
            None => (EventKind::BarrierTripped { generation, parties }, GenerationEnd::Tripped),
            Some(cause) => (EventKind::BarrierBroken { generation, parties, cause }, GenerationEnd::Broken),
        };
        kit.budget.visits = kit.budget.visits.saturating_sub(arrival_units(size));
        let next = kit.record(kind, path);
        let ended = EndedGeneration { generation, end, parties, at_ms: kit.wall_ms, lost: None };
        let ended = self.change(path, |barrier| barrier.end_generation(ended, next, kit.clock_ms(), stays));
        let arrivals = ended.unwrap_or_default();
        for (arrival, index) in arrivals.iter().zip(0..) {
            if !stays {
                self.remove_from_indexes(arrival);
            }
            let index = Some(index).filter(|_| end == GenerationEnd::Tripped);
            let (outcome, next_generation) = (end.into(), next);
            let answer = BarrierAnswer { outcome, generation, next_generation, index, lost: None, ended: None };
            if caller != Some(arrival.number) {
                notify(kit, &arrival.key.party, arrival.request_id.as_ref(), (answer, stays));
            }
        }
        kit.notify(Notice::BarrierSettled(Path::clone(path)));
    }

    /// All have left: those who gathered meanwhile may go in, and whoever waits for that is told which generation
    /// gathers now.
    fn end_inside(&mut self, kit: &mut Kit<'_>, path: &Arc<Path>, cause: ArrivalEnd) {
        let Some(roster) = self.by_path.get(path).and_then(|barrier| barrier.inside.as_ref()).map(|it| &it.roster)
        else {
            return;
        };
        let (generation, parties) = (roster.generation, u32::try_from(roster.members.len()).unwrap_or(u32::MAX));
        let revision = kit.record(EventKind::BarrierLeft { generation, parties, cause }, path);
        let inside = self.change(path, |barrier| {
            (barrier.facts.revision, barrier.facts.active_ms) = (revision, kit.clock_ms());
            let inside = barrier.inside.take()?;
            let ended = barrier.outcomes.iter_mut().find(|ended| ended.generation == generation);
            ended.into_iter().for_each(|ended| ended.lost = Some(inside.lost));
            Some(inside)
        });
        self.settle(kit, path, None);
        let next_generation = self.by_path.get(path).map_or(generation, |barrier| barrier.facts.generation);
        if let Some(inside) = inside.flatten() {
            for (party, request_id) in &inside.leaving {
                let index = inside.roster.members.get(party).map(|member| member.index);
                let (outcome, lost) = (BarrierOutcome::Left, Some(inside.lost));
                let answer = BarrierAnswer { outcome, generation, next_generation, index, lost, ended: None };
                notify(kit, party, Some(request_id), (answer, false));
            }
        }
        kit.notify(Notice::BarrierSettled(Path::clone(path)));
    }

    /// Does what is due first. Returns how many ends of a slice it costs.
    pub fn end_first_due(&mut self, kit: &mut Kit<'_>) -> usize {
        let Some((at, thing)) = self.due.first_key_value().map(|(at, thing)| (*at, thing.clone())) else { return 1 };
        match thing {
            DueThing::Barrier(path) => {
                kit.spend(END_UNITS);
                self.remove_barrier(&path);
                kit.notify(Notice::BarrierSettled(Path::clone(&path)));
                1
            }
            DueThing::Arrival(key) => {
                let ends = self.ends_of(&key, at.1);
                self.end_arrival(kit, &key.path, at.1, ArrivalEnd::Expired, Departure::Lost);
                ends
            }
        }
    }

    /// Ends all arrivals that are over at a barrier, though the slices that end them may come later, and the barrier if
    /// its time is over: a command meets nobody who is gone. Returns the path if there still is a barrier.
    pub(super) fn end_what_is_over(&mut self, kit: &mut Kit<'_>, path: &Path) -> Option<Arc<Path>> {
        let path = Arc::clone(self.by_path.get_key_value(path)?.0);
        let now_ms = kit.clock_ms();
        while let Some((_, number)) = self.by_path.get(&path)?.deadlines.first().filter(|due| due.0 <= now_ms).copied()
        {
            if !self.end_arrival(kit, &path, number, ArrivalEnd::Expired, Departure::Lost) {
                break;
            }
        }
        if !self.ending.is_empty() || kit.sight.has_sweeps {
            let barrier = self.by_path.get(&path)?;
            kit.budget.visits = kit.budget.visits.saturating_sub(barrier.arrivals().count());
            let over: Vec<_> = barrier.arrivals().filter_map(|arrival| self.end_of(kit, arrival)).collect();
            for (number, (cause, departure), swept) in over {
                if self.end_arrival(kit, &path, number, cause, departure) {
                    swept.into_iter().for_each(|began| kit.notify(Notice::SweptArrival(began)));
                }
            }
        }
        if self.by_path.get(&path)?.gone_at_ms().is_some_and(|at_ms| at_ms <= now_ms) {
            self.remove_barrier(&path);
            kit.notify(Notice::BarrierSettled(Path::clone(&path)));
            return None;
        }
        Some(path)
    }

    /// Returns how an arrival ends whose session has ended, or that an unfinished sweep will end, and that sweep.
    fn end_of(
        &self,
        kit: &Kit<'_>,
        arrival: &Arrival,
    ) -> Option<(Revision, (ArrivalEnd, Departure), Option<Revision>)> {
        let session = arrival.key.party.session();
        let ending = session.and_then(|(number, _)| self.ending.get(&number));
        if let Some(ending) = ending.filter(|_| !is_enabled(Mutation::BarrierGhost)) {
            return Some((arrival.number, (end_of_session(ending.why), Departure::Lost), None));
        }
        let mark = (kit.sight.sweep_of)(&arrival.key.item(arrival.number, arrival.request_id.as_deref()))?;
        Some((arrival.number, (ArrivalEnd::Released, Departure::Releases), Some(mark.began)))
    }

    /// Ends all arrivals, and deletes the barrier. Those who were in it can still learn how it ended.
    pub fn delete(&mut self, kit: &mut Kit<'_>, path: &Path) -> Response {
        let Some(path) = self.end_what_is_over(kit, path) else { return Response::Done };
        let Some(barrier) = self.by_path.get(&path).filter(|barrier| !barrier.facts.is_deleted) else {
            return Response::Done;
        };
        let (is_idle, is_empty) = (barrier.is_idle(), barrier.gathered.is_empty());
        if is_idle {
            kit.next_revision();
            self.remove_barrier(&path);
            kit.notify(Notice::BarrierSettled(Path::clone(&path)));
            return Response::Done;
        }
        if !is_empty {
            self.end_generation(kit, &path, Some(ArrivalEnd::Deleted), None);
        }
        self.expel(kit, &path);
        let next = kit.next_revision();
        self.change(&path, |barrier| {
            let facts = &mut barrier.facts;
            facts.is_deleted = true;
            (facts.generation, facts.revision, facts.active_ms) = (next, next, kit.clock_ms());
        });
        Response::Done
    }

    /// Ends the arrivals of all who are inside, who are told as if they were leaving.
    fn expel(&mut self, kit: &mut Kit<'_>, path: &Arc<Path>) {
        let inside = self.by_path.get(path).and_then(|barrier| barrier.inside.as_ref());
        let Some(arrivals) = inside.map(|inside| inside.arrivals.values().map(Arc::clone).collect::<Vec<_>>()) else {
            return;
        };
        kit.budget.visits = kit.budget.visits.saturating_sub(arrival_units(arrivals.len()));
        for arrival in arrivals {
            self.remove_from_indexes(&arrival);
            self.change(path, |barrier| {
                barrier.remove(arrival.number);
                let Some(inside) = &mut barrier.inside else { return };
                inside.lost = inside.lost.saturating_add(1);
                if let Some(request_id) = &arrival.request_id {
                    inside.add_leaving(arrival.key.party.clone(), Arc::clone(request_id));
                }
            });
        }
        self.end_inside(kit, path, ArrivalEnd::Deleted);
    }
}

/// Returns why an arrival ends with its session.
pub(super) fn end_of_session(why: SessionEnd) -> ArrivalEnd {
    match why {
        SessionEnd::Expired => ArrivalEnd::Expired,
        SessionEnd::Reset => ArrivalEnd::Reset,
        _ => ArrivalEnd::Released,
    }
}

/// Tells a session what became of one of its requests, and whether it is inside now.
fn notify(kit: &mut Kit<'_>, party: &Party, request_id: Option<&Arc<str>>, (answer, inside): (BarrierAnswer, bool)) {
    if let (Some((number, session_id)), Some(request_id)) = (party.session(), request_id) {
        let (session_id, request_id) = (Arc::clone(session_id), Arc::clone(request_id));
        kit.notify(Notice::MetAtBarrier { number, session_id, request_id, answer, inside });
    }
}
