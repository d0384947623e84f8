//! Routes one call: selects the replica, decides whether a retry is safe, and reports the outcome.

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBackoff;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use holdfast_cluster::Application;
use holdfast_proto::internal::Update;
use holdfast_types::Rules;
use holdfast_types::limit::Reached;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::call_body::{CallAddress, CallBody};
use crate::call_load::{CallKind, LoadKey};
use crate::channel::{CallReply, PendingCall};
use crate::leader_cache::{GroupRoute, Leader, ReplicaEndpoint};
use crate::router::Router;
use crate::{RetryPolicy, RouteError, RoutingOptions};

/// How often the router probes replicas while it suspects a leader whose response is pending, or while a replica does
/// not respond.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How much longer than other pauses the one is after which a call that may wait looks for room again: all waits of a
/// leader that failed come at once.
const CAPACITY_BACKOFF_FACTOR: u32 = 10;

/// The shard that a call is for, and the route to its group.
pub(super) struct Destination {
    pub(super) route: Arc<GroupRoute>,
    pub(super) application: Application,
    /// A key of the shard.
    pub(super) key: u32,
    /// What its calls count for.
    pub(super) load: LoadKey,
}

impl Destination {
    /// Sets what kind of call it is for.
    pub(super) fn with_kind(mut self, kind: CallKind) -> Self {
        self.load.kind = kind;
        self
    }
}

/// One call in progress.
pub(super) struct RoutedCall<'a> {
    router: &'a Router,
    route: Arc<GroupRoute>,
    /// The shard: the one of the application that owns the key.
    shard: (Application, u32),
    load: LoadKey,
    options: &'a RoutingOptions,
    body: CallBody,
    retry_policy: RetryPolicy,
    deadline: Instant,
    /// The lowest rules that include the command.
    min_rules: Rules,
    /// Since when the call has had no confirmed leader.
    without_leader_since: Instant,
    /// The latest term in which an attempt may have been applied. A command is then sent to later terms only.
    maybe_done_in: Option<u64>,
    /// The term of the leader that was called last.
    pub(super) called_in: u64,
    /// A leader has deferred the reply: the shard knows the request, and a retry finds it in the queue.
    was_deferred: bool,
    /// Cancelled when the caller cancels; `None` if it just drops the call.
    cancelled: Option<CancellationToken>,
    /// Cancelled when a leader defers the reply.
    deferred: Option<CancellationToken>,
    /// The result of the last attempt, human-readable.
    reason: Cow<'static, str>,
    /// The limit that the last attempt has reached.
    limit: Option<Reached>,
    /// Made for the first pause, since few calls have one.
    backoff: Option<Box<ExponentialBackoff>>,
}

/// The outcome of a call.
pub(super) enum CallOutcome {
    /// An encoded reply, and the attempt that it answers.
    Reply(Bytes, u64),
    /// The first update of a subscription, and the call whose replies are the others.
    Subscribed(Update, PendingCall),
}

/// What to do after a step.
#[expect(
    clippy::large_enum_variant,
    reason = "a value lives for one step; a box would cost an allocation for each call"
)]
enum NextStep {
    Finish(CallOutcome),
    /// New information is available.
    RetryNow,
    /// No new information: retry after a backoff.
    RetryLater,
    /// There is no room for the call: retry after a longer one.
    RetryWithRoom,
    /// The retry policy forbids a retry.
    Fail,
}

impl<'a> RoutedCall<'a> {
    pub(super) fn new(
        router: &'a Router,
        to: Destination,
        body: CallBody,
        retry_policy: RetryPolicy,
        deadline: Instant,
    ) -> Self {
        let Destination { route, application, key, load } = to;
        let options = router.options();
        Self {
            router,
            route,
            shard: (application, key),
            load,
            options,
            body,
            retry_policy,
            deadline,
            min_rules: Rules::ONE,
            without_leader_since: Instant::now(),
            maybe_done_in: None,
            called_in: 0,
            was_deferred: false,
            cancelled: None,
            deferred: None,
            reason: "no leader is known".into(),
            limit: None,
            backoff: None,
        }
    }

    /// Cancels the queued request at the shard when the token is cancelled.
    pub(super) fn with_cancellation(mut self, gone: CancellationToken) -> Self {
        self.cancelled = Some(gone);
        self
    }

    /// Cancels the token when a leader defers the reply.
    pub(super) fn with_deferred_signal(mut self, deferred: CancellationToken) -> Self {
        self.deferred = Some(deferred);
        self
    }

    /// Sets the lowest rules that include the command.
    pub(super) fn with_min_rules(mut self, rules: Rules) -> Self {
        self.min_rules = rules;
        self
    }

    /// Returns the id of the shard, for error texts.
    pub(super) fn shard_id(&self) -> String {
        let (application, key) = self.shard;
        self.router.map().shard_for(application, key).id.clone()
    }

    /// Returns true if an attempt before the last may have been applied.
    pub(super) fn maybe_done_before(&self) -> bool {
        self.maybe_done_in.is_some()
    }

    /// Runs until there is a reply, or until the retry policy or the deadline ends the call. What few calls do is boxed,
    /// so that the others have no room for it.
    pub(super) async fn run(&mut self) -> Result<CallOutcome, RouteError> {
        // It was made just now.
        let mut now = self.without_leader_since;
        loop {
            let is_cancelled = self.cancelled.as_ref().is_some_and(CancellationToken::is_cancelled);
            if is_cancelled || now >= self.effective_deadline() {
                return Err(self.failure());
            }
            let step = match self.eligible_leader() {
                Some(leader) => self.try_leader(leader, now).await,
                None => Box::pin(self.discover_leader()).await,
            };
            match step {
                NextStep::Finish(end) => return Ok(end),
                NextStep::Fail => return Err(self.failure()),
                NextStep::RetryNow => {}
                NextStep::RetryLater => self.back_off(1).await,
                NextStep::RetryWithRoom => self.back_off(CAPACITY_BACKOFF_FACTOR).await,
            }
            now = Instant::now();
        }
    }

    fn is_query(&self) -> bool {
        self.body.is_query()
    }

    /// Returns the known leader, if the call may be sent to it.
    fn eligible_leader(&self) -> Option<Leader> {
        let leader = self.route.leader()?;
        let may_go = self.is_query() || leader.term > self.maybe_done_in.unwrap_or(0);
        may_go.then_some(leader)
    }

    fn address(&self, leader: Leader) -> CallAddress {
        CallAddress { leader, shard: Some(self.shard), load: self.load }
    }

    /// Returns the deadline of the call in its current state.
    fn effective_deadline(&self) -> Instant {
        self.deadline.min(self.without_leader_since + self.options.max_without_leader)
    }

    fn failure(&self) -> RouteError {
        let (shard, reason) = (self.shard_id(), self.reason.clone().into_owned());
        if self.maybe_done_in.is_some() || (self.was_deferred && !self.is_query()) {
            RouteError::OutcomeUnknown { shard, reason }
        } else if let Some(limit) = self.limit {
            RouteError::Limited { shard, limit }
        } else {
            RouteError::Unavailable { shard, reason }
        }
    }

    async fn back_off(&mut self, factor: u32) {
        let options = self.options;
        let backoff = self.backoff.get_or_insert_with(|| Box::new(options.backoff()));
        // The iterator is endless; if it ended, the longest backoff would apply.
        let pause = backoff.next().unwrap_or(options.max_backoff) * factor;
        tokio::time::sleep_until(self.effective_deadline().min(Instant::now() + pause)).await;
    }

    async fn try_leader(&mut self, leader: Leader, now: Instant) -> NextStep {
        let Some(place) = self.route.endpoint(leader.replica) else {
            self.route.suspect(leader);
            return NextStep::RetryLater;
        };
        if self.min_rules > Rules::ONE && self.min_rules > self.route.rules.get() {
            return Box::pin(self.probe_rules(&place, leader)).await;
        }
        // A leader of any term may answer a query.
        let term = if self.is_query() { 0 } else { leader.term };
        let to = self.address(Leader { term, ..leader });
        let mut attempt = place.channel.send(to, self.body.clone(), &self.route.rules, self.deadline);
        let mut outcome = self.await_reply(&mut attempt, leader, now).await;
        match outcome {
            CallReply::Update(update) => return NextStep::Finish(CallOutcome::Subscribed(update, attempt)),
            CallReply::Deferred => outcome = self.await_deferred(&mut attempt).await,
            _ => {}
        }
        self.next_step(leader, outcome)
    }

    /// The group is not known to use the rules that the command needs, but may by now. A command without a term is not
    /// applied, and the response of whoever knows a leader contains the group's rules.
    async fn probe_rules(&mut self, place: &ReplicaEndpoint, leader: Leader) -> NextStep {
        let until = self.effective_deadline().min(Instant::now() + self.options.probe_timeout);
        let (_, outcome) = self.probe(place, until).await;
        let goes_by = self.route.rules.get();
        if goes_by >= self.min_rules {
            return NextStep::RetryNow;
        }
        if !matches!(outcome, CallReply::NotLeader(Some(_))) {
            self.reason = "its leader does not say by which rules it goes".into();
            self.suspect(leader);
            return NextStep::RetryLater;
        }
        let reason =
            format!("it goes by rules {goes_by}, and this needs rules {}: end the upgrade first", self.min_rules);
        self.reason = reason.into();
        NextStep::Fail
    }

    fn next_step(&mut self, leader: Leader, outcome: CallReply) -> NextStep {
        self.router.count_attempt(&outcome);
        (self.limit, self.called_in) = (None, leader.term);
        match outcome {
            CallReply::Reply(bytes, attempt) => NextStep::Finish(CallOutcome::Reply(bytes, attempt)),
            CallReply::Deferred | CallReply::Update(_) | CallReply::Lagged => NextStep::RetryLater,
            CallReply::NotLeader(hint) => self.on_redirect(leader, hint),
            CallReply::NotProposed(reason) => {
                self.limit = Reached::of_text(&reason);
                self.reason = reason.into();
                NextStep::RetryLater
            }
            CallReply::NotSent(reason) => {
                self.reason = reason.into();
                self.suspect(leader);
                NextStep::RetryLater
            }
            CallReply::Limited(limit) => self.on_limit(limit),
            CallReply::Unknown(reason) => {
                self.reason = reason.into();
                self.suspect(leader);
                self.on_unknown_outcome(leader.term)
            }
        }
    }

    /// The call was not sent, which says nothing about the leader.
    fn on_limit(&mut self, limit: Reached) -> NextStep {
        self.reason = limit.to_string().into();
        self.limit = Some(limit);
        if self.body.is_deferrable() {
            // Many come at once after a failover. A request keeps its place in the queue, however long others take.
            self.without_leader_since = Instant::now();
            NextStep::RetryWithRoom
        } else if self.maybe_done_in.is_some() {
            // Only another attempt tells whether it was done.
            NextStep::RetryLater
        } else {
            NextStep::Fail
        }
    }

    /// Records that an attempt at that leader may have been applied.
    fn on_unknown_outcome(&mut self, term: u64) -> NextStep {
        if self.is_query() {
            return NextStep::RetryLater;
        }
        self.maybe_done_in = self.maybe_done_in.max(Some(term));
        if self.retry_policy == RetryPolicy::Never { NextStep::Fail } else { NextStep::RetryLater }
    }

    /// Suspects the leader, unless the call ran out of its own time, which says nothing about the leader.
    fn suspect(&self, leader: Leader) {
        if Instant::now() < self.deadline {
            self.route.suspect(leader);
        }
    }

    /// The addressed replica does not lead, or not in this term.
    fn on_redirect(&mut self, leader: Leader, hint: Option<Leader>) -> NextStep {
        self.reason = "the leader is changing".into();
        self.route.suspect(leader);
        let Some(hint) = hint.filter(|hint| *hint != leader) else { return NextStep::RetryLater };
        self.route.learn(hint);
        if self.route.leader() == Some(hint) { NextStep::RetryNow } else { NextStep::RetryLater }
    }

    /// Waits for the outcome. After `suspect_after` it probes the replicas, and cancels the attempt once one leads in a
    /// later term or the time is over. While a quorum confirms the leader, the call may wait until its deadline.
    async fn await_reply(&mut self, attempt: &mut PendingCall, leader: Leader, called_at: Instant) -> CallReply {
        let doubt_at = called_at + self.options.suspect_after;
        tokio::select! {
            outcome = attempt.next_reply() => return outcome,
            () = tokio::time::sleep_until(doubt_at.min(self.effective_deadline())) => {}
        }
        loop {
            // Only a majority extends the call's time: a minority may name one leader after the other.
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
                asked = Box::pin(self.probe_while_waiting(again_at)) => asked,
            };
            if let Some(bytes) = asked {
                return CallReply::Reply(bytes, 0);
            }
        }
    }

    /// Waits for a deferred reply: the leader reports when it no longer leads or is cut off. The shard knows a deferred
    /// request, so a retry is recognized in any term, and an interruption costs nothing.
    async fn await_deferred(&mut self, attempt: &mut PendingCall) -> CallReply {
        self.was_deferred = true;
        if let Some(deferred) = &self.deferred {
            deferred.cancel();
        }
        let outcome = tokio::select! {
            outcome = attempt.next_reply() => outcome,
            () = tokio::time::sleep_until(self.deadline) => attempt.cancel("in time"),
            () = when_cancelled(self.cancelled.as_ref()) => {
                attempt.abandon();
                let end = Instant::now() + self.options.max_without_leader;
                tokio::time::timeout_at(end, attempt.next_reply()).await.unwrap_or_else(|_| attempt.cancel("in time"))
            }
        };
        // A leader existed while the reply was deferred.
        self.without_leader_since = Instant::now();
        match outcome {
            CallReply::Unknown(reason) => CallReply::NotSent(reason),
            other => other,
        }
    }

    /// No leader is known: probes the replicas, or waits for another call that does.
    async fn discover_leader(&mut self) -> NextStep {
        self.limit = None;
        let before = self.route.leader();
        let Some(_asking) = self.route.try_start_probe(2 * self.options.probe_timeout) else {
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

    /// Probes the replicas while the leader is slow, unless another call does; then waits for that call's result.
    async fn probe_while_waiting(&self, again_at: Instant) -> Option<Bytes> {
        let before = self.route.leader();
        if let Some(_asking) = self.route.try_start_probe(2 * self.options.probe_timeout)
            && let Some(bytes) = self.probe_replicas(true).await
        {
            return Some(bytes);
        }
        self.route.wait_for_change(before, again_at.saturating_duration_since(Instant::now())).await;
        None
    }

    /// Sends the call to every replica without a term. A command is then never applied, and the response names the
    /// leader; the leader answers a query. Ends when a quorum agrees. With `thorough`, the leader itself must be among
    /// them, which proves that the group is served. While a replica does not respond, the others are probed again: it
    /// may be the failed leader, and they may elect another one meanwhile.
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
                CallReply::Update(_) => {
                    self.route.learn(Leader { replica, term: 0 });
                    return None;
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
        // Who leads is asked when calls of the shard stand still, so this call counts for none of them.
        let to = CallAddress { load: LoadKey::URGENT, ..self.address(Leader { replica: place.replica, term: 0 }) };
        let mut attempt = place.channel.send(to, self.body.to_immediate(), &self.route.rules, deadline);
        let outcome = match tokio::time::timeout_at(deadline, attempt.next_reply()).await {
            Ok(outcome) => outcome,
            Err(_) => attempt.cancel("in time who leads"),
        };
        (place, outcome)
    }
}

async fn when_cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => pending().await,
    }
}
