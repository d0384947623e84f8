//! The course of one call: whom it is sent to, when it is sent again, and how it ends.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use holdfast_core::Rules;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leaders::{Leader, Place, ShardRoute};
use crate::link::{Attempt, Body, Outcome};
use crate::{Repeat, RouteError, RoutingOptions};

/// How often replicas are asked while a leader is doubted but its answer still awaited, or one of them is silent.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Another replica of a group leads some twenty milliseconds after a leader's process ended. Pauses that doubled would leave
/// a gap as long as that behind it.
const PAUSES_GROW_BY: f32 = 1.4;

/// One call on its way.
pub(super) struct Course<'a> {
    route: &'a ShardRoute,
    options: &'a RoutingOptions,
    body: Body,
    repeat: Repeat,
    deadline: Instant,
    /// The first rules that have the command.
    needs: Rules,
    /// From when on it has been without a leader that could be relied on.
    without_leader_since: Instant,
    /// The latest term in which an attempt may have been done. A command goes to later terms only.
    maybe_done_in: Option<u64>,
    /// A leader has held the answer back: the request is known there, and a repeat finds its place.
    was_held: bool,
    /// Cancelled when the caller no longer waits.
    gone: CancellationToken,
    /// Cancelled when a leader holds the answer back.
    deferred: Option<CancellationToken>,
    /// What the last attempt met, for people.
    reason: String,
    pauses: ExponentialBackoff,
}

/// What a call ends with.
pub(super) enum End {
    /// An encoded reply, and which attempt of its caller it is to.
    Reply(Bytes, u64),
    /// The notices of a session follow.
    Following(Attempt),
}

/// What to do after a step.
enum Step {
    Ended(End),
    /// Something new is known.
    Now,
    /// Nothing new: after a pause.
    Later,
    /// The rules forbid to go on.
    GiveUp,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        route: &'a ShardRoute,
        options: &'a RoutingOptions,
        body: Body,
        repeat: Repeat,
        deadline: Instant,
    ) -> Self {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(options.min_pause)
            .with_max_delay(options.max_pause)
            .with_factor(PAUSES_GROW_BY)
            .without_max_times()
            .with_jitter()
            .build();
        let reason = "no leader is known".to_owned();
        Self {
            route,
            options,
            body,
            repeat,
            deadline,
            needs: Rules::ONE,
            without_leader_since: Instant::now(),
            maybe_done_in: None,
            was_held: false,
            gone: CancellationToken::new(),
            deferred: None,
            reason,
            pauses,
        }
    }

    /// Tells the shard to give the place up when the token is cancelled.
    pub(super) fn until_gone(mut self, gone: CancellationToken) -> Self {
        self.gone = gone;
        self
    }

    /// Cancels the token when a leader holds the answer back.
    pub(super) fn telling_when_deferred(mut self, deferred: CancellationToken) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// A command that shards know from those rules on only.
    pub(super) fn needing(mut self, rules: Rules) -> Self {
        self.needs = rules;
        self
    }

    pub(super) fn shard_id(&self) -> &str {
        &self.route.id
    }

    /// Whether an attempt before the last may have been done.
    pub(super) fn maybe_done_before(&self) -> bool {
        self.maybe_done_in.is_some()
    }

    /// Runs until there is a reply, or until the rules or the time forbid to go on.
    pub(super) async fn run(&mut self) -> Result<End, RouteError> {
        loop {
            if Instant::now() >= self.end() || self.gone.is_cancelled() {
                return Err(self.give_up());
            }
            let step = match self.target() {
                Some(leader) => self.try_leader(leader).await,
                None => self.look_for_leader().await,
            };
            match step {
                Step::Ended(end) => return Ok(end),
                Step::GiveUp => return Err(self.give_up()),
                Step::Now => {}
                Step::Later => self.pause().await,
            }
        }
    }

    fn is_query(&self) -> bool {
        self.body.is_query()
    }

    /// The leader to send to, when one is known that the call may go to.
    fn target(&self) -> Option<Leader> {
        let leader = self.route.leader()?;
        let may_go = self.is_query() || leader.term > self.maybe_done_in.unwrap_or(0);
        may_go.then_some(leader)
    }

    /// When the call ends at the latest, as things stand.
    fn end(&self) -> Instant {
        self.deadline.min(self.without_leader_since + self.options.max_without_leader)
    }

    fn give_up(&self) -> RouteError {
        let (shard, reason) = (self.route.id.clone(), self.reason.clone());
        if self.maybe_done_in.is_some() || self.was_held {
            RouteError::OutcomeUnknown { shard, reason }
        } else {
            RouteError::Unavailable { shard, reason }
        }
    }

    async fn pause(&mut self) {
        // The iterator has no end; were it to have one, the longest pause would do.
        let pause = self.pauses.next().unwrap_or(self.options.max_pause);
        tokio::time::sleep_until(self.end().min(Instant::now() + pause)).await;
    }

    async fn try_leader(&mut self, leader: Leader) -> Step {
        let Some(place) = self.route.place(leader.replica) else {
            self.route.doubt(leader);
            return Step::Later;
        };
        if self.needs > Rules::ONE && self.needs > self.route.rules.get() {
            return self.ask_rules(&place, leader).await;
        }
        // Whichever term it leads in, a leader may answer a query.
        let term = if self.is_query() { 0 } else { leader.term };
        let to = Leader { term, ..leader };
        let mut attempt = place.link.send(to, self.body.clone(), &self.route.rules, self.deadline);
        let mut outcome = self.watch(&mut attempt, leader).await;
        if outcome == Outcome::Held {
            if matches!(self.body, Body::Follow(_)) {
                return Step::Ended(End::Following(attempt));
            }
            outcome = self.held(attempt).await;
        }
        self.after(leader, outcome)
    }

    /// The shard is not known to go by the rules that the command needs, but may do so by now. Addressed to no term it is
    /// not done, and the answer says by which rules the shard goes.
    async fn ask_rules(&mut self, place: &Place, leader: Leader) -> Step {
        let until = self.end().min(Instant::now() + self.options.probe_timeout);
        let (_, outcome) = self.ask(place, until).await;
        let goes_by = self.route.rules.get();
        if goes_by >= self.needs {
            return Step::Now;
        }
        if !matches!(outcome, Outcome::NotLeader(_)) {
            self.reason = "its leader does not say by which rules it goes".to_owned();
            self.doubt(leader);
            return Step::Later;
        }
        self.reason = format!("it goes by rules {goes_by}, and this needs rules {}: end the upgrade first", self.needs);
        Step::GiveUp
    }

    fn after(&mut self, leader: Leader, outcome: Outcome) -> Step {
        let reason = match &outcome {
            Outcome::Reply(..) => "reply",
            Outcome::Held | Outcome::Notice(_) => "notice",
            Outcome::NotLeader(_) => "not_leader",
            Outcome::NotProposed(_) => "not_proposed",
            Outcome::NotSent(_) => "not_sent",
            Outcome::Unknown(_) => "unknown",
        };
        metrics::counter!("holdfast_gateway_route_attempts_total", "outcome" => reason).increment(1);
        match outcome {
            Outcome::Reply(bytes, attempt) => Step::Ended(End::Reply(bytes, attempt)),
            Outcome::Held | Outcome::Notice(_) => Step::Later,
            Outcome::NotLeader(hint) => self.redirected(leader, hint),
            Outcome::NotProposed(reason) => {
                self.reason = reason;
                Step::Later
            }
            Outcome::NotSent(reason) => {
                self.reason = reason;
                self.doubt(leader);
                Step::Later
            }
            Outcome::Unknown(reason) => {
                self.reason = reason;
                self.doubt(leader);
                self.unknown_in(leader.term)
            }
        }
    }

    /// An attempt to that leader may have been done.
    fn unknown_in(&mut self, term: u64) -> Step {
        if self.is_query() {
            return Step::Later;
        }
        self.maybe_done_in = self.maybe_done_in.max(Some(term));
        if self.repeat == Repeat::Never { Step::GiveUp } else { Step::Later }
    }

    /// A call that ran out of its own time says nothing about the leader.
    fn doubt(&self, leader: Leader) {
        if Instant::now() < self.deadline {
            self.route.doubt(leader);
        }
    }

    /// The one addressed does not lead, or not in that term.
    fn redirected(&mut self, leader: Leader, hint: Option<Leader>) -> Step {
        "the leader is changing".clone_into(&mut self.reason);
        self.route.doubt(leader);
        let Some(hint) = hint.filter(|hint| *hint != leader) else { return Step::Later };
        self.route.learn(hint);
        if self.route.leader() == Some(hint) { Step::Now } else { Step::Later }
    }

    /// Waits for the outcome. A leader that takes long is doubted: the replicas are asked who leads, and the attempt is
    /// given up as soon as one leads in a later term, or when the time is over. As long as a quorum confirms the leader,
    /// the call has the patience of its deadline.
    async fn watch(&mut self, attempt: &mut Attempt, leader: Leader) -> Outcome {
        let doubt_at = Instant::now() + self.options.doubt_after;
        tokio::select! {
            outcome = attempt.outcome() => return outcome,
            () = tokio::time::sleep_until(doubt_at.min(self.end())) => {}
        }
        loop {
            // Only a majority gives a call its patience back: a minority may name one leader after the other.
            if let Some(at) = self.route.confirmed_at(leader) {
                self.without_leader_since = self.without_leader_since.max(at);
            }
            if Instant::now() >= self.end() {
                return attempt.give_up("in time");
            }
            let newer = self.route.leader().is_some_and(|known| known.term > leader.term);
            if newer {
                return attempt.give_up("before another leader was elected");
            }
            let again_at = self.end().min(Instant::now() + ASK_AGAIN);
            let asked = tokio::select! {
                outcome = attempt.outcome() => return outcome,
                asked = self.ask_meanwhile(again_at) => asked,
            };
            if let Some(bytes) = asked {
                return Outcome::Reply(bytes, 0);
            }
        }
    }

    /// Waits for an answer that the leader holds back: it says so itself when it no longer leads or is cut off. What
    /// was held is known to the shard, so that a repeat is a repeat in whatever term; an interruption costs nothing.
    async fn held(&mut self, mut attempt: Attempt) -> Outcome {
        self.was_held = true;
        if let Some(deferred) = &self.deferred {
            deferred.cancel();
        }
        let outcome = tokio::select! {
            outcome = attempt.outcome() => outcome,
            () = tokio::time::sleep_until(self.deadline) => attempt.give_up("in time"),
            () = self.gone.cancelled() => {
                attempt.abandon();
                let end = Instant::now() + self.options.max_without_leader;
                tokio::time::timeout_at(end, attempt.outcome()).await.unwrap_or_else(|_| attempt.give_up("in time"))
            }
        };
        // While it was held there was a leader.
        self.without_leader_since = Instant::now();
        match outcome {
            Outcome::Unknown(reason) => Outcome::NotSent(reason),
            other => other,
        }
    }

    /// Nobody is known to lead: asks the replicas, or waits for another call that does.
    async fn look_for_leader(&mut self) -> Step {
        let before = self.route.leader();
        let Some(_asking) = self.route.try_ask() else {
            let at_most = self.end().saturating_duration_since(Instant::now()).min(self.options.max_pause);
            self.route.wait_for_change(before, at_most).await;
            return Step::Now;
        };
        if let Some(bytes) = self.ask_all(false).await {
            return Step::Ended(End::Reply(bytes, 0));
        }
        if self.route.leader() != before && self.target().is_some() { Step::Now } else { Step::Later }
    }

    /// The leader takes long: asks the replicas, unless another call is at it; then waits for what that one finds.
    async fn ask_meanwhile(&self, again_at: Instant) -> Option<Bytes> {
        let before = self.route.leader();
        if let Some(_asking) = self.route.try_ask()
            && let Some(bytes) = self.ask_all(true).await
        {
            return Some(bytes);
        }
        self.route.wait_for_change(before, again_at.saturating_duration_since(Instant::now())).await;
        None
    }

    /// Sends the call to every replica, addressed to no term: a command is then never done, and answered with who
    /// leads; a query is answered by the one that leads. Ends when a quorum agrees; with `thorough` only when the
    /// leader itself is among them, which shows that the shard is being served. While one is silent those that answered
    /// are asked again: it may be the leader that is gone, and they elect another one meanwhile.
    async fn ask_all(&self, thorough: bool) -> Option<Bytes> {
        let places = self.route.places();
        let until = (Instant::now() + self.options.probe_timeout).min(self.end());
        let mut asked: FuturesUnordered<_> = places.iter().map(|place| self.ask(place, until)).collect();
        let mut again = tokio::time::interval_at(Instant::now() + ASK_AGAIN, ASK_AGAIN);
        let mut answered: Vec<&Place> = Vec::new();
        let mut named: Vec<(u64, Leader)> = Vec::new();
        loop {
            let (place, outcome) = tokio::select! {
                biased;
                next = asked.next() => next?,
                _ = again.tick() => {
                    asked.extend(answered.drain(..).map(|place| self.ask(place, until)));
                    continue;
                }
            };
            let replica = place.replica;
            answered.push(place);
            named.retain(|(other, _)| *other != replica);
            match outcome {
                Outcome::Reply(bytes, _) => {
                    self.route.learn(Leader { replica, term: 0 });
                    return Some(bytes);
                }
                Outcome::NotLeader(Some(hint)) => {
                    self.route.learn(hint);
                    named.push((replica, hint));
                    let agree = named.iter().filter(|(_, other)| *other == hint).count() >= self.route.quorum();
                    let says_so_itself = named.contains(&(hint.replica, hint));
                    if agree && says_so_itself {
                        self.route.confirm(hint);
                    }
                    if agree && (says_so_itself || !thorough) {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }

    async fn ask<'p>(&self, place: &'p Place, deadline: Instant) -> (&'p Place, Outcome) {
        let to = Leader { replica: place.replica, term: 0 };
        let mut attempt = place.link.send(to, self.body.at_once(), &self.route.rules, deadline);
        let outcome = match tokio::time::timeout_at(deadline, attempt.outcome()).await {
            Ok(outcome) => outcome,
            Err(_) => attempt.give_up("in time who leads"),
        };
        (place, outcome)
    }
}
