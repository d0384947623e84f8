//! The course of one call: whom it is sent to, when it is sent again, and how it ends.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use holdfast_core::Rules;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::channel::{CallBody, CallReply, PendingCall};
use crate::leader_cache::{Leader, ReplicaEndpoint, ShardRoute};
use crate::{RetryPolicy, RouteError, RoutingOptions};

/// How often replicas are asked while a leader is doubted but its answer still awaited, or one of them is silent.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Another replica of a group leads some twenty milliseconds after a leader's process ended. Pauses that doubled would leave
/// a gap as long as that behind it.
const BACKOFF_FACTOR: f32 = 1.4;

/// One call on its way.
pub(super) struct RoutedCall<'a> {
    route: &'a ShardRoute,
    options: &'a RoutingOptions,
    body: CallBody,
    retry_policy: RetryPolicy,
    deadline: Instant,
    /// The first rules that have the command.
    min_rules: Rules,
    /// From when on it has been without a leader that could be relied on.
    without_leader_since: Instant,
    /// The latest term in which an attempt may have been done. A command goes to later terms only.
    maybe_done_in: Option<u64>,
    /// A leader has held the answer back: the request is known there, and a repeat finds its place.
    was_deferred: bool,
    /// Cancelled when the caller no longer waits.
    cancelled: CancellationToken,
    /// Cancelled when a leader holds the answer back.
    deferred: Option<CancellationToken>,
    /// What the last attempt met, for people.
    reason: String,
    backoff: ExponentialBackoff,
}

/// What a call ends with.
pub(super) enum CallOutcome {
    /// An encoded reply, and which attempt of its caller it is to.
    Reply(Bytes, u64),
    /// The notices of a session follow.
    Subscribed(PendingCall),
}

/// What to do after a step.
enum NextStep {
    Finish(CallOutcome),
    /// Something new is known.
    RetryNow,
    /// Nothing new: after a pause.
    RetryLater,
    /// The rules forbid to go on.
    Fail,
}

impl<'a> RoutedCall<'a> {
    pub(super) fn new(
        route: &'a ShardRoute,
        options: &'a RoutingOptions,
        body: CallBody,
        retry_policy: RetryPolicy,
        deadline: Instant,
    ) -> Self {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(options.min_backoff)
            .with_max_delay(options.max_backoff)
            .with_factor(BACKOFF_FACTOR)
            .without_max_times()
            .with_jitter()
            .build();
        let reason = "no leader is known".to_owned();
        Self {
            route,
            options,
            body,
            retry_policy,
            deadline,
            min_rules: Rules::ONE,
            without_leader_since: Instant::now(),
            maybe_done_in: None,
            was_deferred: false,
            cancelled: CancellationToken::new(),
            deferred: None,
            reason,
            backoff,
        }
    }

    /// Tells the shard to give the place up when the token is cancelled.
    pub(super) fn with_cancellation(mut self, gone: CancellationToken) -> Self {
        self.cancelled = gone;
        self
    }

    /// Cancels the token when a leader holds the answer back.
    pub(super) fn telling_when_deferred(mut self, deferred: CancellationToken) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// A command that shards know from those rules on only.
    pub(super) fn with_min_rules(mut self, rules: Rules) -> Self {
        self.min_rules = rules;
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
    pub(super) async fn run(&mut self) -> Result<CallOutcome, RouteError> {
        loop {
            if Instant::now() >= self.effective_deadline() || self.cancelled.is_cancelled() {
                return Err(self.failure());
            }
            let step = match self.eligible_leader() {
                Some(leader) => self.try_leader(leader).await,
                None => self.discover_leader().await,
            };
            match step {
                NextStep::Finish(end) => return Ok(end),
                NextStep::Fail => return Err(self.failure()),
                NextStep::RetryNow => {}
                NextStep::RetryLater => self.back_off().await,
            }
        }
    }

    fn is_query(&self) -> bool {
        self.body.is_query()
    }

    /// The leader to send to, when one is known that the call may go to.
    fn eligible_leader(&self) -> Option<Leader> {
        let leader = self.route.leader()?;
        let may_go = self.is_query() || leader.term > self.maybe_done_in.unwrap_or(0);
        may_go.then_some(leader)
    }

    /// When the call ends at the latest, as things stand.
    fn effective_deadline(&self) -> Instant {
        self.deadline.min(self.without_leader_since + self.options.max_without_leader)
    }

    fn failure(&self) -> RouteError {
        let (shard, reason) = (self.route.id.clone(), self.reason.clone());
        if self.maybe_done_in.is_some() || self.was_deferred {
            RouteError::OutcomeUnknown { shard, reason }
        } else {
            RouteError::Unavailable { shard, reason }
        }
    }

    async fn back_off(&mut self) {
        // The iterator has no end; were it to have one, the longest pause would do.
        let pause = self.backoff.next().unwrap_or(self.options.max_backoff);
        tokio::time::sleep_until(self.effective_deadline().min(Instant::now() + pause)).await;
    }

    async fn try_leader(&mut self, leader: Leader) -> NextStep {
        let Some(place) = self.route.endpoint(leader.replica) else {
            self.route.suspect(leader);
            return NextStep::RetryLater;
        };
        if self.min_rules > Rules::ONE && self.min_rules > self.route.rules.get() {
            return self.probe_rules(&place, leader).await;
        }
        // Whichever term it leads in, a leader may answer a query.
        let term = if self.is_query() { 0 } else { leader.term };
        let to = Leader { term, ..leader };
        let mut attempt = place.channel.send(to, self.body.clone(), &self.route.rules, self.deadline);
        let mut outcome = self.await_reply(&mut attempt, leader).await;
        if outcome == CallReply::Deferred {
            if matches!(self.body, CallBody::Subscribe(_)) {
                return NextStep::Finish(CallOutcome::Subscribed(attempt));
            }
            outcome = self.await_deferred(attempt).await;
        }
        self.next_step(leader, outcome)
    }

    /// The shard is not known to go by the rules that the command needs, but may do so by now. Addressed to no term it is
    /// not done, and the answer says by which rules the shard goes.
    async fn probe_rules(&mut self, place: &ReplicaEndpoint, leader: Leader) -> NextStep {
        let until = self.effective_deadline().min(Instant::now() + self.options.probe_timeout);
        let (_, outcome) = self.probe(place, until).await;
        let goes_by = self.route.rules.get();
        if goes_by >= self.min_rules {
            return NextStep::RetryNow;
        }
        if !matches!(outcome, CallReply::NotLeader(_)) {
            self.reason = "its leader does not say by which rules it goes".to_owned();
            self.suspect(leader);
            return NextStep::RetryLater;
        }
        self.reason =
            format!("it goes by rules {goes_by}, and this needs rules {}: end the upgrade first", self.min_rules);
        NextStep::Fail
    }

    fn next_step(&mut self, leader: Leader, outcome: CallReply) -> NextStep {
        let reason = match &outcome {
            CallReply::Reply(..) => "reply",
            CallReply::Deferred | CallReply::Update(_) => "notice",
            CallReply::NotLeader(_) => "not_leader",
            CallReply::NotProposed(_) => "not_proposed",
            CallReply::NotSent(_) => "not_sent",
            CallReply::Unknown(_) => "unknown",
        };
        metrics::counter!("holdfast_routing_route_attempts_total", "outcome" => reason).increment(1);
        match outcome {
            CallReply::Reply(bytes, attempt) => NextStep::Finish(CallOutcome::Reply(bytes, attempt)),
            CallReply::Deferred | CallReply::Update(_) => NextStep::RetryLater,
            CallReply::NotLeader(hint) => self.on_redirect(leader, hint),
            CallReply::NotProposed(reason) => {
                self.reason = reason;
                NextStep::RetryLater
            }
            CallReply::NotSent(reason) => {
                self.reason = reason;
                self.suspect(leader);
                NextStep::RetryLater
            }
            CallReply::Unknown(reason) => {
                self.reason = reason;
                self.suspect(leader);
                self.on_unknown_outcome(leader.term)
            }
        }
    }

    /// An attempt to that leader may have been done.
    fn on_unknown_outcome(&mut self, term: u64) -> NextStep {
        if self.is_query() {
            return NextStep::RetryLater;
        }
        self.maybe_done_in = self.maybe_done_in.max(Some(term));
        if self.retry_policy == RetryPolicy::Never { NextStep::Fail } else { NextStep::RetryLater }
    }

    /// A call that ran out of its own time says nothing about the leader.
    fn suspect(&self, leader: Leader) {
        if Instant::now() < self.deadline {
            self.route.suspect(leader);
        }
    }

    /// The one addressed does not lead, or not in that term.
    fn on_redirect(&mut self, leader: Leader, hint: Option<Leader>) -> NextStep {
        "the leader is changing".clone_into(&mut self.reason);
        self.route.suspect(leader);
        let Some(hint) = hint.filter(|hint| *hint != leader) else { return NextStep::RetryLater };
        self.route.learn(hint);
        if self.route.leader() == Some(hint) { NextStep::RetryNow } else { NextStep::RetryLater }
    }

    /// Waits for the outcome. A leader that takes long is doubted: the replicas are asked who leads, and the attempt is
    /// given up as soon as one leads in a later term, or when the time is over. As long as a quorum confirms the leader,
    /// the call has the patience of its deadline.
    async fn await_reply(&mut self, attempt: &mut PendingCall, leader: Leader) -> CallReply {
        let doubt_at = Instant::now() + self.options.suspect_after;
        tokio::select! {
            outcome = attempt.next_reply() => return outcome,
            () = tokio::time::sleep_until(doubt_at.min(self.effective_deadline())) => {}
        }
        loop {
            // Only a majority gives a call its patience back: a minority may name one leader after the other.
            if let Some(at) = self.route.confirmed_at(leader) {
                self.without_leader_since = self.without_leader_since.max(at);
            }
            if Instant::now() >= self.effective_deadline() {
                return attempt.cancel("in time");
            }
            let newer = self.route.leader().is_some_and(|known| known.term > leader.term);
            if newer {
                return attempt.cancel("before another leader was elected");
            }
            let again_at = self.effective_deadline().min(Instant::now() + PROBE_INTERVAL);
            let asked = tokio::select! {
                outcome = attempt.next_reply() => return outcome,
                asked = self.probe_while_waiting(again_at) => asked,
            };
            if let Some(bytes) = asked {
                return CallReply::Reply(bytes, 0);
            }
        }
    }

    /// Waits for an answer that the leader holds back: it says so itself when it no longer leads or is cut off. What
    /// was held is known to the shard, so that a repeat is a repeat in whatever term; an interruption costs nothing.
    async fn await_deferred(&mut self, mut attempt: PendingCall) -> CallReply {
        self.was_deferred = true;
        if let Some(deferred) = &self.deferred {
            deferred.cancel();
        }
        let outcome = tokio::select! {
            outcome = attempt.next_reply() => outcome,
            () = tokio::time::sleep_until(self.deadline) => attempt.cancel("in time"),
            () = self.cancelled.cancelled() => {
                attempt.abandon();
                let end = Instant::now() + self.options.max_without_leader;
                tokio::time::timeout_at(end, attempt.next_reply()).await.unwrap_or_else(|_| attempt.cancel("in time"))
            }
        };
        // While it was held there was a leader.
        self.without_leader_since = Instant::now();
        match outcome {
            CallReply::Unknown(reason) => CallReply::NotSent(reason),
            other => other,
        }
    }

    /// Nobody is known to lead: asks the replicas, or waits for another call that does.
    async fn discover_leader(&mut self) -> NextStep {
        let before = self.route.leader();
        let Some(_asking) = self.route.try_start_probe() else {
            let at_most =
                self.effective_deadline().saturating_duration_since(Instant::now()).min(self.options.max_backoff);
            self.route.wait_for_change(before, at_most).await;
            return NextStep::RetryNow;
        };
        if let Some(bytes) = self.probe_replicas(false).await {
            return NextStep::Finish(CallOutcome::Reply(bytes, 0));
        }
        if self.route.leader() != before && self.eligible_leader().is_some() {
            NextStep::RetryNow
        } else {
            NextStep::RetryLater
        }
    }

    /// The leader takes long: asks the replicas, unless another call is at it; then waits for what that one finds.
    async fn probe_while_waiting(&self, again_at: Instant) -> Option<Bytes> {
        let before = self.route.leader();
        if let Some(_asking) = self.route.try_start_probe()
            && let Some(bytes) = self.probe_replicas(true).await
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
    async fn probe_replicas(&self, thorough: bool) -> Option<Bytes> {
        let places = self.route.endpoints();
        let until = (Instant::now() + self.options.probe_timeout).min(self.effective_deadline());
        let mut asked: FuturesUnordered<_> = places.iter().map(|place| self.probe(place, until)).collect();
        let mut again = tokio::time::interval_at(Instant::now() + PROBE_INTERVAL, PROBE_INTERVAL);
        let mut answered: Vec<&ReplicaEndpoint> = Vec::new();
        let mut named: Vec<(u64, Leader)> = Vec::new();
        loop {
            let (place, outcome) = tokio::select! {
                biased;
                next = asked.next() => next?,
                _ = again.tick() => {
                    asked.extend(answered.drain(..).map(|place| self.probe(place, until)));
                    continue;
                }
            };
            let replica = place.replica;
            answered.push(place);
            named.retain(|(other, _)| *other != replica);
            match outcome {
                CallReply::Reply(bytes, _) => {
                    self.route.learn(Leader { replica, term: 0 });
                    return Some(bytes);
                }
                CallReply::NotLeader(Some(hint)) => {
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

    async fn probe<'p>(&self, place: &'p ReplicaEndpoint, deadline: Instant) -> (&'p ReplicaEndpoint, CallReply) {
        let to = Leader { replica: place.replica, term: 0 };
        let mut attempt = place.channel.send(to, self.body.to_immediate(), &self.route.rules, deadline);
        let outcome = match tokio::time::timeout_at(deadline, attempt.next_reply()).await {
            Ok(outcome) => outcome,
            Err(_) => attempt.cancel("in time who leads"),
        };
        (place, outcome)
    }
}
