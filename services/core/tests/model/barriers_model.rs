//! A model of barriers of some plain lines: everything is a list, and numbers of generations are those that the shard
//! gave, each of which must be new.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{ArriveAtBarrier, BarrierOutcome, ConfigureBarrier, GenerationEnd, OnLoss, Path};

/// An owner: a process, or a session and a holder.
pub(crate) type Party = String;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) party: Party,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) request_id: Option<String>,
    pub(crate) since: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) end: GenerationEnd,
    /// Those who were in it, in order.
    pub(crate) parties: Vec<(Party, Option<String>)>,
    /// Of a double barrier: how many were lost, once all have left.
    pub(crate) left: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct Inside {
    pub(crate) generation: u64,
    pub(crate) present: Vec<Arrival>,
    pub(crate) lost: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    pub(crate) parties: u32,
    pub(crate) double: bool,
    pub(crate) on_loss: OnLoss,
    pub(crate) retain_ms: u64,
    pub(crate) is_configured: bool,
    pub(crate) is_deleted: bool,
    /// As the shard numbers it, or [`UNKNOWN`].
    pub(crate) generation: u64,
    pub(crate) gathered: Vec<Arrival>,
    pub(crate) inside: Option<Inside>,
    /// In order.
    pub(crate) ended: Vec<(u64, Ended)>,
    /// Requests of sessions that have left and wait for the others.
    leaving: Vec<String>,
    pub(crate) active_ms: u64,
}

/// What a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) outcome: BarrierOutcome,
    pub(crate) index: Option<u32>,
    pub(crate) lost: Option<u32>,
    pub(crate) ended: Option<GenerationEnd>,
}

impl Told {
    pub(crate) fn of(outcome: BarrierOutcome) -> Self {
        Self { outcome, index: None, lost: None, ended: None }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) barriers: BTreeMap<Path, Barrier>,
    pub(crate) clock_ms: u64,
    /// Barriers of which replies that are held back can be given.
    pub(crate) settled: BTreeSet<Path>,
    /// Requests of sessions that are told an outcome.
    pub(crate) told: BTreeSet<(String, BarrierOutcome)>,
    /// The generations that each barrier had.
    pub(crate) numbers: BTreeMap<Path, BTreeSet<u64>>,
}

/// A generation has begun, and the shard's number for it is not known yet.
const UNKNOWN: u64 = u64::MAX;
const DELETED_MS: u64 = 600_000;
const REMEMBERED: usize = 64;

/// How an arrival ends.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum How {
    Leaves,
    Releases,
    Lost,
}

impl Barrier {
    fn is_complete(&self) -> bool {
        self.inside.is_none() && self.gathered.len() >= self.parties as usize
    }

    fn is_idle(&self) -> bool {
        self.gathered.is_empty() && self.inside.is_none()
    }

    pub(crate) fn gone_at_ms(&self) -> Option<u64> {
        let retain_ms = if self.is_deleted { DELETED_MS } else { self.retain_ms };
        (self.is_idle() && retain_ms > 0).then_some(self.active_ms + retain_ms)
    }

    fn last(&self) -> Option<&(u64, Ended)> {
        self.ended.last()
    }

    /// What is known of a generation.
    pub(crate) fn answer(&self, party: Option<&str>, generation: u64, leaves: bool) -> Told {
        if generation == self.generation {
            let is_in = party.is_none_or(|party| self.gathered.iter().any(|it| it.party == party));
            return Told::of(if is_in { BarrierOutcome::Waiting } else { BarrierOutcome::Withdrawn });
        }
        let Some((_, ended)) = self.ended.iter().find(|(number, _)| *number == generation) else {
            return Told::of(BarrierOutcome::Past);
        };
        let is_inside = self.inside.as_ref().is_some_and(|inside| inside.generation == generation);
        let is_last = self.last().is_some_and(|(last, _)| *last == generation);
        let position = ended.parties.iter().position(|(it, _)| Some(it.as_str()) == party);
        let position = position.filter(|_| is_last || is_inside);
        let index = position.filter(|_| ended.end == GenerationEnd::Tripped).map(|index| index as u32);
        let is_concerned = position.is_some() || party.is_none();
        match ended.left {
            Some(lost) if leaves => Told { index, lost: Some(lost), ..Told::of(BarrierOutcome::Left) },
            _ if leaves && is_inside && is_concerned => Told { index, ..Told::of(BarrierOutcome::Waiting) },
            _ if is_concerned => Told { index, ..Told::of(ended.end.into()) },
            _ => Told { ended: Some(ended.end), ..Told::of(BarrierOutcome::Past) },
        }
    }
}

impl Model {
    /// What is due, in order of time; then barriers that are gone.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.clock_ms = now_ms;
        loop {
            let arrivals = self.barriers.iter().flat_map(|(path, barrier)| {
                let inside = barrier.inside.iter().flat_map(|inside| &inside.present);
                let all = barrier.gathered.iter().chain(inside);
                all.filter_map(move |it| Some((it.deadline_ms?, it.since, path.clone(), Some(it.party.clone()))))
            });
            let gone = self
                .barriers
                .iter()
                .filter_map(|(path, barrier)| Some((barrier.gone_at_ms()?, barrier.generation, path.clone(), None)));
            let Some((_, _, path, party)) = arrivals.chain(gone).min().filter(|due| due.0 <= now_ms) else { return };
            match party {
                Some(party) => _ = self.end(&path, &party, How::Lost),
                None => self.remove(&path),
            }
        }
    }

    pub(crate) fn remove(&mut self, path: &Path) {
        self.barriers.remove(path);
        self.settled.insert(path.clone());
    }

    /// The shard numbers generations; each number is a new one.
    pub(crate) fn number(&mut self, path: &Path, generation: u64) {
        let barrier = self.barriers.get_mut(path).expect("it is known");
        if barrier.generation == UNKNOWN {
            let is_new = self.numbers.entry(path.clone()).or_default().insert(generation);
            assert!(is_new, "{path:?} has generation {generation} again");
            barrier.generation = generation;
        }
        assert_eq!(barrier.generation, generation, "{path:?} goes on with another generation");
    }

    /// Makes a barrier. One that was deleted keeps its outcomes.
    fn begin(&mut self, path: &Path, parties: u32, double: bool) {
        let ended = self.barriers.remove(path).map(|deleted| deleted.ended).unwrap_or_default();
        let barrier = Barrier {
            parties,
            double,
            on_loss: OnLoss::Break,
            retain_ms: 3_600_000,
            is_configured: false,
            is_deleted: false,
            generation: UNKNOWN,
            gathered: vec![],
            inside: None,
            ended,
            leaving: vec![],
            active_ms: self.clock_ms,
        };
        self.barriers.insert(path.clone(), barrier);
    }

    pub(crate) fn configure(&mut self, configure: &ConfigureBarrier) {
        let ConfigureBarrier { path, parties, double, on_loss, retain_ms, .. } = configure;
        let figures = |it: &Barrier| (it.parties, it.double, it.on_loss, it.retain_ms, it.is_configured, it.is_deleted);
        let wanted = (*parties, *double, *on_loss, *retain_ms, true, false);
        if self.barriers.get(path).is_some_and(|barrier| figures(barrier) == wanted) {
            return;
        }
        if self.barriers.get(path).is_none_or(|barrier| barrier.is_deleted) {
            self.begin(path, *parties, *double);
        }
        let barrier = self.barriers.get_mut(path).expect("it is there");
        (barrier.parties, barrier.double, barrier.on_loss, barrier.retain_ms) =
            (*parties, *double, *on_loss, *retain_ms);
        (barrier.is_configured, barrier.active_ms) = (true, self.clock_ms);
        self.settle(path, None);
    }

    /// `None` if the command is wrong, or there is no barrier. `shown` is the generation that the shard answers.
    pub(crate) fn arrive(
        &mut self,
        arrive: &ArriveAtBarrier,
        party: &str,
        (since, shown): (u64, u64),
    ) -> Option<(u64, Told)> {
        let path = &arrive.path;
        let now_ms = self.clock_ms;
        let barrier = self.barriers.get(path);
        if let Some(barrier) = barrier.filter(|barrier| barrier.is_deleted)
            && let Some(generation) = arrive.generation.filter(|generation| *generation < barrier.generation)
        {
            return Some((generation, barrier.answer(Some(party), generation, false)));
        }
        let Some(barrier) = barrier.filter(|barrier| !barrier.is_deleted) else {
            let parties = arrive.parties.filter(|_| arrive.generation.is_none())?;
            self.begin(path, parties, arrive.double.unwrap_or_default());
            self.number(path, shown);
            return Some(self.gather(arrive, party, since));
        };
        let is_other = arrive.parties.is_some_and(|it| it != barrier.parties)
            || arrive.double.is_some_and(|it| it != barrier.double);
        let is_late = arrive.generation.is_some_and(|generation| generation > barrier.generation);
        if (is_other && !barrier.is_configured) || is_late {
            return None;
        }
        let deadline_ms = arrive.ttl_ms.map(|ttl_ms| now_ms + ttl_ms);
        let extend = |it: &mut Arrival| {
            it.deadline_ms = deadline_ms;
            it.request_id = arrive.request_id.clone().or(it.request_id.take());
        };
        let barrier = self.barriers.get_mut(path)?;
        if let Some(inside) = &mut barrier.inside
            && let Some(it) = inside.present.iter_mut().find(|it| it.party == party)
        {
            extend(it);
            let generation = inside.generation;
            barrier.active_ms = now_ms;
            return Some((generation, barrier.answer(Some(party), generation, false)));
        }
        if let Some(generation) = arrive.generation.filter(|generation| *generation < barrier.generation) {
            return Some((generation, barrier.answer(Some(party), generation, false)));
        }
        if let Some(it) = barrier.gathered.iter_mut().find(|it| it.party == party) {
            extend(it);
            barrier.active_ms = now_ms;
            return Some((barrier.generation, barrier.answer(Some(party), barrier.generation, false)));
        }
        let is_repeat =
            |(name, id): &(Party, Option<String>)| name == party && id.is_some() && *id == arrive.request_id;
        let named_none = arrive.generation.is_none();
        let last = barrier.last().filter(|(_, ended)| named_none && ended.parties.iter().any(is_repeat));
        if let Some((last, _)) = last {
            return Some((*last, barrier.answer(Some(party), *last, false)));
        }
        if barrier.inside.is_some() && barrier.gathered.len() >= barrier.parties as usize {
            return Some((barrier.generation, Told::of(BarrierOutcome::Full)));
        }
        Some(self.gather(arrive, party, since))
    }

    fn gather(&mut self, arrive: &ArriveAtBarrier, party: &str, since: u64) -> (u64, Told) {
        let deadline_ms = arrive.ttl_ms.map(|ttl_ms| self.clock_ms + ttl_ms);
        let (party, request_id) = (party.to_owned(), arrive.request_id.clone());
        let barrier = self.barriers.get_mut(&arrive.path).expect("it is there");
        let generation = barrier.generation;
        barrier.gathered.push(Arrival { party: party.clone(), deadline_ms, request_id, since });
        barrier.active_ms = self.clock_ms;
        let is_last = barrier.is_complete();
        let index = barrier.gathered.len() as u32 - 1;
        self.settle(&arrive.path, Some(&party));
        let tripped = Told { index: Some(index), ..Told::of(BarrierOutcome::Tripped) };
        (generation, if is_last { tripped } else { Told::of(BarrierOutcome::Waiting) })
    }

    /// Trips what is complete. The party whose command did it is not told apart.
    fn settle(&mut self, path: &Path, caller: Option<&str>) {
        if self.barriers.get(path).is_some_and(Barrier::is_complete) {
            self.end_generation(path, GenerationEnd::Tripped, caller);
        }
    }

    fn add_told(&mut self, arrivals: &[(Party, Option<String>)], caller: Option<&str>, outcome: BarrierOutcome) {
        let others = arrivals.iter().filter(|(party, _)| Some(party.as_str()) != caller);
        self.told.extend(others.filter_map(|(_, id)| Some((id.clone()?, outcome))));
    }

    fn end_generation(&mut self, path: &Path, end: GenerationEnd, caller: Option<&str>) {
        let barrier = self.barriers.get_mut(path).expect("it is there");
        let gathered = std::mem::take(&mut barrier.gathered);
        let parties: Vec<_> = gathered.iter().map(|it| (it.party.clone(), it.request_id.clone())).collect();
        barrier.ended.push((barrier.generation, Ended { end, parties: parties.clone(), left: None }));
        if barrier.double && end == GenerationEnd::Tripped {
            barrier.inside = Some(Inside { generation: barrier.generation, present: gathered, lost: 0 });
        }
        if barrier.ended.len() > REMEMBERED {
            let inside = barrier.inside.as_ref().map(|inside| inside.generation);
            let oldest = barrier.ended.iter().position(|(number, _)| Some(*number) != inside);
            barrier.ended.remove(oldest.expect("one is not inside"));
        }
        barrier.active_ms = self.clock_ms;
        barrier.generation = UNKNOWN;
        self.settled.insert(path.clone());
        self.add_told(&parties, caller, end.into());
    }

    /// Ends an arrival, wherever it is. Returns whether there was one.
    pub(crate) fn end(&mut self, path: &Path, party: &str, how: How) -> bool {
        let now_ms = self.clock_ms;
        let Some(barrier) = self.barriers.get_mut(path) else { return false };
        if let Some(at) = barrier.gathered.iter().position(|it| it.party == party) {
            if barrier.on_loss == OnLoss::Break {
                self.end_generation(path, GenerationEnd::Broken, Some(party).filter(|_| how != How::Lost));
            } else {
                barrier.gathered.remove(at);
                barrier.active_ms = now_ms;
                self.settled.insert(path.clone());
            }
            return true;
        }
        let Some(inside) = &mut barrier.inside else { return false };
        let Some(at) = inside.present.iter().position(|it| it.party == party) else { return false };
        let gone = inside.present.remove(at);
        inside.lost += u32::from(how == How::Lost);
        barrier.active_ms = now_ms;
        if inside.present.is_empty() {
            self.end_inside(path);
            self.settle(path, None);
        } else if how == How::Leaves {
            barrier.leaving.extend(gone.request_id);
        }
        true
    }

    fn end_inside(&mut self, path: &Path) {
        let barrier = self.barriers.get_mut(path).expect("it is there");
        let inside = barrier.inside.take().expect("somebody was inside");
        let ended = barrier.ended.iter_mut().find(|(number, _)| *number == inside.generation).expect("it is known");
        ended.1.left = Some(inside.lost);
        barrier.active_ms = self.clock_ms;
        let leaving = std::mem::take(&mut barrier.leaving);
        self.told.extend(leaving.into_iter().map(|id| (id, BarrierOutcome::Left)));
        self.settled.insert(path.clone());
    }

    /// `next` is the generation that would gather.
    pub(crate) fn delete(&mut self, path: &Path, next: u64) {
        let Some(barrier) = self.barriers.get(path).filter(|barrier| !barrier.is_deleted) else { return };
        if barrier.is_idle() {
            return self.remove(path);
        }
        if !barrier.gathered.is_empty() {
            self.end_generation(path, GenerationEnd::Broken, None);
        }
        let barrier = self.barriers.get_mut(path).expect("it is there");
        if let Some(inside) = &mut barrier.inside {
            let present = std::mem::take(&mut inside.present);
            inside.lost += present.len() as u32;
            barrier.leaving.extend(present.into_iter().filter_map(|it| it.request_id));
            self.end_inside(path);
        }
        let barrier = self.barriers.get_mut(path).expect("it is there");
        (barrier.is_deleted, barrier.generation) = (true, next);
        barrier.active_ms = self.clock_ms;
    }

    /// Ends all arrivals of some parties, in order of their ranks and then of path. Returns how many.
    pub(crate) fn end_all<R: Ord>(
        &mut self,
        rank: impl Fn(&str) -> R,
        goes: impl Fn(&Arrival) -> bool,
        how: How,
    ) -> u64 {
        let mut all = BTreeSet::new();
        for (path, barrier) in &self.barriers {
            let inside = barrier.inside.iter().flat_map(|inside| &inside.present);
            let its = barrier.gathered.iter().chain(inside).filter(|it| goes(it));
            all.extend(its.map(|it| (rank(&it.party), path.clone(), it.party.clone())));
        }
        all.into_iter().map(|(_, path, party)| u64::from(self.end(&path, &party, how))).sum()
    }

    /// `None` if there is no barrier, or no such generation.
    pub(crate) fn leave(&mut self, path: &Path, party: &str, generation: u64) -> Option<Told> {
        let barrier = self.known(path, generation)?;
        let is_gathered = generation == barrier.generation && barrier.gathered.iter().any(|it| it.party == party);
        let inside = barrier.inside.as_ref().filter(|inside| inside.generation == generation);
        if is_gathered || inside.is_some_and(|inside| inside.present.iter().any(|it| it.party == party)) {
            self.end(path, party, How::Leaves);
        }
        Some(self.barriers.get(path)?.answer(Some(party), generation, true))
    }

    /// The barrier, if something is known of a generation.
    pub(crate) fn known(&self, path: &Path, generation: u64) -> Option<&Barrier> {
        let barrier = self.barriers.get(path)?;
        let is_known = !barrier.is_deleted || generation < barrier.generation;
        Some(barrier).filter(|_| is_known && generation <= barrier.generation)
    }

    /// When the oldest arrival of a party came.
    pub(crate) fn oldest(&self, party: &str) -> Option<u64> {
        let arrivals = self.barriers.values().flat_map(|barrier| {
            barrier.gathered.iter().chain(barrier.inside.iter().flat_map(|inside| &inside.present))
        });
        arrivals.filter(|it| it.party == party).map(|it| it.since).min()
    }
}
