//! Requests to release holds, in the model, and what is kept from others when its owner has released it.

use holdfast_core::{
    AskRelease, AskedHold, AskedHolds, AskedView, Claim, Effect, EventKind, Kind, Mode, Owner, Phase, ReleaseRequest,
    ReportedHold, Response,
};

use crate::acquire::CommandResult;
use crate::quota::quota_error;
use crate::state::{Hold, Model, OwnerKey};

/// A request as a hold keeps it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    ask: AskRelease,
    asked_at_ms: u64,
    until_ms: Option<u64>,
    has_texts: bool,
}

impl Ask {
    pub(crate) fn text_bytes(&self) -> usize {
        if self.has_texts { self.ask.by.len() + self.ask.reason.len() } else { 0 }
    }

    fn view(&self) -> ReleaseRequest {
        let text = |text: &String| if self.has_texts { text.clone() } else { String::new() };
        ReleaseRequest {
            by: text(&self.ask.by),
            reason: text(&self.ask.reason),
            within_ms: self.ask.within_ms.or(self.ask.force.then_some(0)),
            asked_at_ms: self.asked_at_ms,
            until_ms: self.until_ms,
            force: self.ask.force,
        }
    }
}

impl Hold {
    /// What is charged for requests to release it.
    pub(crate) fn asked_bytes(&self) -> u64 {
        let texts = self.latest_ask.as_ref().map_or(0, |ask| ask.text_bytes() as u64);
        if self.latest_ask.is_some() || self.forced_at_ms.is_some() { 512 + texts } else { 0 }
    }

    pub(crate) fn release_requested(&self) -> Option<ReleaseRequest> {
        let view = self.latest_ask.as_ref()?.view();
        let (until_ms, force) = (self.forced_at_ms.or(view.until_ms), self.forced_at_ms.is_some());
        Some(ReleaseRequest { until_ms, force, ..view })
    }

    fn force(&mut self, ask: &Ask) {
        let at_ms = ask.until_ms.filter(|_| ask.ask.force);
        self.forced_at_ms = self.forced_at_ms.into_iter().chain(at_ms).min();
    }

    fn to_asked(&self) -> AskedHold {
        AskedHold { path: self.path.clone(), fencing_token: self.token, request_id: None }
    }
}

impl Model {
    pub(crate) fn ask_release(&mut self, ask: &AskRelease) -> CommandResult {
        let claim = Claim { path: ask.path.clone(), mode: Mode::Write };
        let concerns = |hold: &Hold| match ask.force {
            true => hold.path == ask.path,
            false => hold.path.is_prefix_of(&claim.path) || claim.path.is_prefix_of(&hold.path),
        };
        let is_asked = |hold: &Hold| concerns(hold) && !hold.is_kept;
        let nearness = |hold: &Hold| match hold.path.0.len().cmp(&ask.path.0.len()) {
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Greater => 2,
        };
        let mut asked: Vec<usize> = (0..self.holds.len()).filter(|index| is_asked(&self.holds[*index])).collect();
        asked.sort_by_key(|index| {
            let hold = &self.holds[*index];
            (nearness(hold), hold.path.clone(), hold.token)
        });
        let within_ms = ask.within_ms.or(ask.force.then_some(0));
        let until_ms = within_ms.map(|within_ms| self.clock_ms + within_ms);
        let mut kept = Ask { ask: ask.clone(), asked_at_ms: self.wall_ms, until_ms, has_texts: true };
        let after = (512 + kept.text_bytes() as u64) * asked.len() as u64;
        let before: u64 = asked.iter().map(|index| self.holds[*index].asked_bytes()).sum();
        if !self.has_capacity(after.saturating_sub(before)) {
            if !ask.force {
                return Err(quota_error("state"));
            }
            kept.has_texts = false;
        }
        let is_new = |hold: &Hold| hold.latest_ask.as_ref().is_none_or(|it| it.ask.request_id != ask.request_id);
        let new: Vec<usize> = asked.iter().filter(|index| is_new(&self.holds[**index])).copied().collect();
        for index in &new {
            let hold = &mut self.holds[*index];
            hold.force(&kept);
            hold.latest_ask = Some(kept.clone());
        }
        let mut is_any = !new.is_empty();
        for hold in self.holds.iter_mut().filter(|hold| ask.force && hold.is_kept && hold.path == ask.path) {
            hold.force(&kept);
            is_any = true;
        }
        if is_any {
            self.next_revision();
            let nobody = OwnerKey { owner: Owner::Process(String::new()), number: 0 };
            self.event(EventKind::ReleaseRequested { of: Kind::Lock }, &nobody, None, vec![claim]);
        }
        self.notify_asked(&new, &kept);
        let view = AskedView::Lock(self.bounded_view(&ask.path));
        Ok(Response::ReleaseAsked { asked: asked.len() as u64, truncated: false, view })
    }

    fn notify_asked(&mut self, asked: &[usize], ask: &Ask) {
        let open = self.sessions.iter().filter(|session| session.is_open);
        let effects = open.filter_map(|session| {
            let its = asked.iter().map(|index| &self.holds[*index]).filter(|hold| hold.who.number == session.number);
            let holds: Vec<AskedHold> = its.map(Hold::to_asked).collect();
            (!holds.is_empty()).then(|| Effect::ReleaseRequested {
                namespace: self.namespace.clone(),
                session_id: session.id.clone(),
                asked: AskedHolds { kind: Kind::Lock, request: ask.view(), holds },
            })
        });
        let effects: Vec<Effect> = effects.collect();
        self.effects.extend(effects);
    }

    /// Which of the holds that a session's client lists somebody asked for; they fit into every answer here.
    pub(crate) fn asked_of(&self, number: u64, held: &[ReportedHold]) -> Vec<AskedHolds> {
        let mut asked: Vec<AskedHolds> = vec![];
        for it in held {
            let is_it = |hold: &&Hold| {
                let is_its = hold.who.number == number && !hold.is_kept;
                is_its && (&hold.path, hold.mode, hold.token) == (&it.path, it.mode, it.fencing_token)
            };
            let Some(hold) = self.holds.iter().find(is_it) else { continue };
            let Some(request) = hold.release_requested() else { continue };
            match asked.last_mut().filter(|last| last.request == request) {
                Some(last) => last.holds.push(hold.to_asked()),
                None => asked.push(AskedHolds { kind: Kind::Lock, request, holds: vec![hold.to_asked()] }),
            }
        }
        asked
    }

    /// The owner gives a hold up. Whether it is kept from others.
    pub(crate) fn keep_from_others(&mut self, index: usize) -> bool {
        let hold = &mut self.holds[index];
        if hold.kept_until_ms <= self.clock_ms {
            return false;
        }
        if hold.is_kept {
            return true;
        }
        (hold.is_kept, hold.direct, hold.phase) = (true, false, Phase::Transition);
        (hold.deadline_ms, hold.latest_ask) = (Some(hold.kept_until_ms), None);
        (hold.attempts, hold.reader_attempts) = (crate::attempts::Attempts::of(0), None);
        let (who, path) = (hold.who.clone(), hold.path.clone());
        for granted in self.granted.iter_mut().filter(|granted| granted.who == who) {
            granted.live.retain(|other| *other != path);
        }
        self.granted.retain(|granted| !granted.live.is_empty());
        self.end_contradicted_waits();
        true
    }

    /// The owner takes again what is kept of its holds: until when it is kept, at each path.
    pub(crate) fn end_kept(&mut self, who: &OwnerKey, claims: &[Claim]) -> Vec<u64> {
        let mut until = vec![];
        for claim in claims {
            let is_it = |hold: &Hold| hold.is_kept && hold.who == *who && hold.path == claim.path;
            let Some(index) = self.holds.iter().position(is_it) else {
                until.push(0);
                continue;
            };
            self.next_revision();
            let hold = self.holds.remove(index);
            let claim = Claim { path: hold.path.clone(), mode: hold.mode };
            self.event(EventKind::Released, who, Some(hold.token), vec![claim]);
            until.push(hold.kept_until_ms);
        }
        until
    }

    /// Whether its owner has released it, or a sweep is about to.
    pub(crate) fn is_relinquished(&self, hold: &Hold) -> bool {
        hold.is_kept || (hold.phase == Phase::Held && self.swept_since_ms(hold).is_some())
    }

    /// What an owner has at a path, unless it has given that up.
    pub(crate) fn own_of(&self, who: &OwnerKey, path: &holdfast_core::Path) -> Option<&Hold> {
        self.hold_of(who, path).filter(|own| !self.is_relinquished(own))
    }
}
