//! Queries about barriers, and views of them.

use std::ops::Bound;
use std::sync::Arc;

use super::Barriers;
use super::arrive::{check_generation, not_found};
use super::barrier::{Arrival, Barrier};
use super::party::{ArrivalKey, Party};
use crate::kit::Kit;
use crate::permits::Requester;
use crate::reply_size::ByteBudget;
use crate::{
    ArrivalView, BarrierAnswer, BarrierCommand, BarrierQuery, BarrierView, CommandError, MAX_ARRIVALS_IN_REPLY, Path,
    ReportedPermits, Response, SessionNumber, WaitAtBarrier, page,
};

/// Bytes of the arrivals in a response. No page follows, so it is larger than one of a list.
const MAX_ARRIVALS_BYTES: usize = 1024 * 1024;

impl Barriers {
    /// Replies to a query. The requester is the owner that a wait names.
    pub fn query(&self, query: &BarrierQuery, requester: Option<&Requester>) -> Result<Response, CommandError> {
        match query {
            BarrierQuery::Get { path, .. } => {
                let barrier = self.present(path)?;
                let (barrier_view, arrivals) = (barrier.view(path), barrier.arrivals_page());
                let outcomes = barrier.outcomes.iter().rev().copied().collect();
                Ok(Response::BarrierArrivals { barrier: barrier_view, arrivals, outcomes })
            }
            BarrierQuery::List { prefix, after, limit, .. } => Ok(self.list(prefix, after.as_ref(), *limit)),
            BarrierQuery::Wait(wait) => self.wait(wait, requester),
            BarrierQuery::HasArrived { path, .. } => {
                Ok(Response::Holds(requester.is_some_and(|requester| self.has_arrived(path, requester))))
            }
        }
    }

    fn has_arrived(&self, path: &Path, requester: &Requester) -> bool {
        let path = self.by_path.get_key_value(path).map(|(path, _)| path.clone());
        path.is_some_and(|path| self.index.contains_key(&ArrivalKey { party: Party::of(requester), path }))
    }

    fn wait(&self, wait: &WaitAtBarrier, requester: Option<&Requester>) -> Result<Response, CommandError> {
        let (path, barrier) = self.by_path.get_key_value(&wait.path).ok_or_else(|| not_found(&wait.path))?;
        if barrier.facts.is_deleted && wait.generation >= barrier.facts.generation {
            return Err(not_found(path));
        }
        check_generation(barrier, Some(wait.generation))?;
        let key = requester.map(|requester| ArrivalKey { party: Party::of(requester), path: path.clone() });
        let number = key.as_ref().and_then(|key| self.index.get(key)).copied();
        let party = key.as_ref().map(|key| &key.party);
        let answer = barrier.answer(party, number, wait.generation, wait.leaves);
        Ok(Response::AtBarrier { answer, barrier: barrier.view(path) })
    }

    fn present(&self, path: &Path) -> Result<&Barrier, CommandError> {
        let barrier = self.by_path.get(path).filter(|barrier| !barrier.facts.is_deleted);
        barrier.map(AsRef::as_ref).ok_or_else(|| not_found(path))
    }

    fn list(&self, prefix: &Path, after: Option<&Path>, limit: u32) -> Response {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let rows = self.by_path.range::<Path, _>((start, Bound::Unbounded));
        let rows = rows.take_while(|(path, _)| prefix.is_prefix_of(path));
        let is_present = |(_, barrier): &(_, &Arc<Barrier>)| !barrier.facts.is_deleted;
        let (barriers, last) = page::collect_visible(rows, limit, is_present, |(path, barrier)| barrier.view(path));
        Response::Barriers { barriers, next: last.map(|(path, _)| Path::clone(path)) }
    }

    /// Returns the response with what somebody is told.
    pub(super) fn response(&self, kit: &Kit<'_>, path: &Path, answer: BarrierAnswer) -> Response {
        let barrier = self.view(kit, path).unwrap_or_else(|| BarrierView::absent(path, 0));
        Response::AtBarrier { answer, barrier }
    }

    /// Returns the view of a barrier in a response to a command, unless nobody receives it.
    pub(super) fn view(&self, kit: &Kit<'_>, path: &Path) -> Option<BarrierView> {
        self.by_path.get(path).filter(|_| kit.with_views).map(|barrier| barrier.view(path))
    }

    /// Returns whether a command would create state; repeats do not. The requester is that of an arrival.
    pub fn creates_state(&self, command: &BarrierCommand, requester: Option<&Requester>) -> bool {
        match command {
            BarrierCommand::Configure(configure) => self.present(&configure.path).is_err(),
            BarrierCommand::Arrive(arrive) => {
                !requester.is_some_and(|requester| self.has_arrived(&arrive.path, requester))
            }
            BarrierCommand::Leave(_) | BarrierCommand::Delete { .. } => false,
        }
    }

    /// Returns whether a session has that arrival in that generation, under the request id that its client reports.
    pub fn has_arrival(&self, number: SessionNumber, reported: &ReportedPermits) -> bool {
        let key = self.requests.get(&(number, Arc::<str>::from(reported.request_id.as_str())));
        let Some(key) = key.filter(|key| *key.path == reported.path) else { return false };
        let (barrier, arrival) = (self.by_path.get(&key.path), self.index.get(key));
        barrier.zip(arrival).is_some_and(|(barrier, arrival)| barrier.is_in(*arrival, reported.fencing_token))
    }
}

impl Barrier {
    fn view(&self, path: &Path) -> BarrierView {
        let facts = &self.facts;
        let inside = self.inside.as_ref();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        BarrierView {
            path: path.clone(),
            configured: facts.is_configured,
            parties: facts.parties,
            double: facts.is_double,
            on_loss: facts.on_loss,
            retain_ms: facts.retain_ms,
            generation: facts.generation,
            arrived: count(self.gathered.len()),
            inside: inside.map_or(0, |inside| count(inside.arrivals.len())),
            inside_generation: inside.map(|inside| inside.roster.generation),
            gone_at_ms: self.gone_at_ms(),
            description: facts.description.clone(),
            metadata: facts.metadata.get(),
            revision: facts.revision,
        }
    }

    /// Returns the views of as many arrivals as a response has. If these do not fit with their metadata, all are shown
    /// without.
    fn arrivals_page(&self) -> Vec<ArrivalView> {
        let most = self.gathered.len() + self.inside.as_ref().map_or(0, |inside| inside.arrivals.len());
        let most = most.min(MAX_ARRIVALS_IN_REPLY as usize);
        let mut left = ByteBudget::new(MAX_ARRIVALS_BYTES);
        let views = self.arrivals().take(most).map(|arrival| self.arrival_view(arrival));
        let shown: Vec<ArrivalView> = views.take_while(|view| left.try_take(view)).collect();
        if shown.len() == most {
            return shown;
        }
        let bare =
            |arrival: &Arc<Arrival>| ArrivalView { metadata: crate::Metadata::new(), ..self.arrival_view(arrival) };
        self.arrivals().take(most).map(bare).collect()
    }

    fn arrival_view(&self, arrival: &Arrival) -> ArrivalView {
        ArrivalView {
            owner: arrival.key.party.owner(),
            process_id: arrival.process_id.to_string(),
            request_id: arrival.request_id.as_deref().map(str::to_owned),
            inside: !self.gathered.contains_key(&arrival.number),
            arrived_at_ms: arrival.arrived_at_ms,
            deadline_ms: arrival.deadline_ms,
            metadata: arrival.metadata.get(),
        }
    }
}
