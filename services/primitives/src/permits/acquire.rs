//! Acquires permits or members: at once, or by waiting. A repeat finds its hold or its wait by owner and request id.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::item::{Lease, PermitHold, PermitTerms, PermitWait, QueueRank};
use super::key::{Key, Name, Requester};
use super::many::{PermitItem, item_of};
use super::source::{Source, Stock};
use super::{HoldOrWait, PermitTable, charge, end};
use crate::ask::Asks;
use crate::attempts::Attempts;
use crate::item_bytes::ItemBytes;
use crate::kit::{Kit, Notice, check_path, quota_exceeded};
use crate::metadata::EncodedMetadata;
use crate::reply_size::{reason_only, refused};
use crate::{
    AcquireOutcome, AcquirePermits, CommandError, Enqueued, EventKind, FencingToken, Kind, MAX_NAME_BYTES, MAX_PERMITS,
    MAX_PRIORITY, Phase, Reason, Refused, Response, Rules, Wait, WaitId, Wanted, codec,
};

impl PermitTable {
    /// Grants permits, or lets the request wait, or refuses it.
    pub fn acquire(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
    ) -> Result<Response, CommandError> {
        check_request(request)?;
        let name = Arc::new(Name::new(request.wanted.kind(), &request.path));
        let key = requester.key(&name, &request.request_id);
        self.end_due_at(kit, &key);
        self.settle(kit);
        let entry = self.index.get(&key).copied();
        if entry.is_none() && !requester.is_new {
            return Ok(Response::Ignored);
        }
        if let Some(entry) = entry {
            self.check_repeat(kit, request, &key, entry)?;
        }
        let outcome = match entry {
            Some(HoldOrWait::Hold(token)) => self.extend(kit, requester, request, (&name, token))?,
            Some(HoldOrWait::Wait(rank)) => self.repeat_wait(kit, requester, request, (&name, rank)),
            None if request.fencing_token.is_some() => refused(reason_only(Reason::NotHeld)),
            None => self.begin(kit, requester, request, key)?,
        };
        Ok(self.acquired(kit, (&*name, &request.wanted), outcome))
    }

    /// Builds the response, with holders unless it was granted. A hold that was extended may have been asked for.
    fn acquired(&self, kit: &Kit<'_>, (name, wanted): (&Name, &Wanted), outcome: AcquireOutcome) -> Response {
        let held = outcome.fencing_token().and_then(|token| self.hold(name, token));
        let members = held.map_or_else(Vec::new, |hold| hold.members().iter().map(ToString::to_string).collect());
        let (shows, view) = (kit.with_views && outcome.fencing_token().is_none(), self.view(kit, name));
        let of = (name, wanted);
        let holders = if shows { self.holders_before(of, codec::size(&view), kit.sight) } else { Vec::new() };
        let release_requested = held.filter(|_| kit.with_views).and_then(|hold| hold.asks.view()).map(Box::new);
        Response::PermitsAcquired { outcome, members, view, holders, release_requested }
    }

    /// Checks a request for something that there is: whether it may still change, and is the same.
    fn check_repeat(
        &self,
        kit: &Kit<'_>,
        request: &AcquirePermits,
        key: &Key,
        entry: HoldOrWait,
    ) -> Result<(), CommandError> {
        let item: PermitItem<'_> = item_of(key, entry);
        let mark = (kit.sight.sweep_of)(&item);
        if mark.is_some_and(|mark| mark.at_once || item.token.is_none()) {
            return Err(CommandError::Busy("what the owner has is being released".to_owned()));
        }
        let wanted = match entry {
            HoldOrWait::Hold(token) => self.hold(&key.name, token).and_then(|hold| Some(&hold.lease.as_ref()?.wanted)),
            HoldOrWait::Wait(rank) => self.wait(&key.name, rank).map(|wait| &wait.wanted),
        };
        let extends_only = request.fencing_token.is_some();
        if wanted.is_some_and(|wanted| !extends_only && is_other_take(wanted, &request.wanted)) {
            let field = if matches!(request.wanted, Wanted::Member(_)) { "member" } else { "count" };
            let text = format!("{field}: the request takes another number of members, or another member");
            return Err(CommandError::InvalidArgument(text));
        }
        self.by_name.get(&key.name).map_or(Ok(()), |source| source.check_figure(&request.wanted))
    }

    /// Extends a hold, and changes its weight. More permits are granted at once or not at all: two holds that grow
    /// would wait for each other.
    fn extend(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        (name, token): (&Arc<Name>, FencingToken),
    ) -> Result<AcquireOutcome, CommandError> {
        let granted = AcquireOutcome::Granted { fencing_token: token };
        let Some(before) = self.hold(name, token).map(|hold| hold.weight) else { return Ok(granted) };
        let is_other = request.fencing_token.is_some_and(|wanted| wanted != token);
        if is_other || self.is_being_deleted(name) {
            return Ok(refused(reason_only(Reason::NotHeld)));
        }
        if !requester.is_new {
            return Ok(granted);
        }
        // A hold of a pool keeps what it has.
        let is_resized = request.fencing_token.is_none() && matches!(request.wanted, Wanted::Permits { .. });
        let weight = if is_resized { request.wanted.weight() } else { before };
        if is_enabled(Mutation::SemDouble) {
            self.change(name, |source| source.in_use += weight);
        }
        let Some(source) = self.by_name.get(name) else { return Ok(granted) };
        if let Some(more) = weight.checked_sub(before).filter(|more| *more > 0) {
            if let Some(refusal) = &requester.refusal {
                return Err(refusal.clone());
            }
            if !source.has_free(more) || !source.queue.is_empty() {
                return Ok(refused(reason_only(source.reason_for_more(&request.wanted, more))));
            }
            return Ok(self.grow(kit, request, name, token));
        }
        self.renew(kit, request, name, token);
        if weight < before {
            self.shrink(kit, name, token, weight);
        }
        Ok(granted)
    }

    /// Gives a hold more permits under a new token.
    fn grow(
        &mut self,
        kit: &mut Kit<'_>,
        request: &AcquirePermits,
        name: &Name,
        token: FencingToken,
    ) -> AcquireOutcome {
        self.renew(kit, request, name, token);
        let Some(mut hold) = self.remove_hold(name, token) else {
            return AcquireOutcome::Granted { fencing_token: token };
        };
        hold.weight = request.wanted.weight();
        hold.locked_at_ms = kit.wall_ms;
        hold.token = self.record_grant(kit, &hold.key, &hold.process_id, hold.weight);
        let fencing_token = hold.token;
        self.insert_hold(hold);
        AcquireOutcome::Granted { fencing_token }
    }

    /// Applies the terms of the newest call to a hold. Without capacity for the new metadata, the old metadata stays.
    fn renew(&mut self, kit: &Kit<'_>, request: &AcquirePermits, name: &Name, token: FencingToken) {
        let terms = PermitTerms::of(request);
        let deadline_ms = terms.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms));
        self.change_hold(name, token, |hold| {
            (hold.phase, hold.deadline_ms) = (Phase::Held, deadline_ms);
            hold.transition_ms = terms.transition_ms;
            let before = hold.bytes();
            let metadata = std::mem::replace(&mut hold.metadata, terms.metadata);
            if kit.check_bytes(hold.bytes().saturating_sub(before)).is_err() {
                hold.metadata = metadata;
            }
            hold.attach(request);
        });
    }

    /// A repeat of a request that waits. It keeps its rank and its priority.
    fn repeat_wait(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        (name, rank): (&Arc<Name>, QueueRank),
    ) -> AcquireOutcome {
        if request.fencing_token.is_some() {
            return refused(reason_only(Reason::NotHeld));
        }
        let waits = is_waiting(request.wait);
        let Some(wait) = self.wait(name, rank) else { return refused(reason_only(Reason::Ended)) };
        let (key, is_newest) = (Arc::clone(&wait.key), request.attempt >= wait.attempts.highest());
        if request.wanted.weight() > wait.wanted.weight() {
            return refused(self.queued(kit, name, rank));
        }
        if requester.is_new {
            let ends_at_ms = ends_at_ms(kit, request.wait);
            self.change_wait(name, rank, |wait| {
                if let Wanted::Permits { .. } = wait.wanted {
                    wait.wanted.clone_from(&request.wanted);
                }
                if !waits || is_newest {
                    wait.set_terms(kit, PermitTerms::of(request));
                }
                if waits {
                    wait.attempts.attach(&Attempts::of(request.attempt), &request.abandoned, Rules::TWO);
                }
                if waits && is_newest {
                    wait.ends_at_ms = ends_at_ms;
                }
            });
            self.unsettle(name);
            self.settle(kit);
        }
        match self.index.get(&key).copied() {
            Some(HoldOrWait::Hold(fencing_token)) => {
                if !waits {
                    // This call relies on the hold too, but was not attached to the wait.
                    self.change_hold(name, fencing_token, |hold| hold.attach(request));
                }
                AcquireOutcome::Granted { fencing_token }
            }
            Some(HoldOrWait::Wait(rank)) if waits => {
                let attempt = self.wait(name, rank).map_or(0, |wait| wait.attempts.highest());
                let not_granted = self.queued(kit, name, rank);
                AcquireOutcome::Enqueued(Box::new(Enqueued { wait: rank.wait, attempt, not_granted }))
            }
            Some(HoldOrWait::Wait(rank)) => refused(self.queued(kit, name, rank)),
            None => refused(reason_only(Reason::Ended)),
        }
    }

    /// Decides a request that is not known yet.
    fn begin(
        &mut self,
        kit: &mut Kit<'_>,
        requester: &Requester,
        request: &AcquirePermits,
        key: Key,
    ) -> Result<AcquireOutcome, CommandError> {
        let known = self.by_name.get_key_value(&key.name);
        let fresh = fresh_source(kit, request);
        // What is being deleted is gone for a request that does not make it: so it was for the repeat of one whose hold
        // the deletion has ended.
        let known = known.filter(|(_, source)| source.deleting.is_none() || fresh.is_some());
        let source = match (known, &fresh) {
            (Some((_, source)), _) => source.as_ref(),
            (None, Some(fresh)) => {
                check_path(kit.limits, &request.path)?;
                fresh
            }
            (None, None) => {
                let (kind, path) = (key.name.kind, request.path.clone());
                return Err(CommandError::PrimitiveNotFound { kind, path });
            }
        };
        if source.deleting.is_some() {
            return Err(CommandError::Busy(format!("the {} is being deleted", key.name.kind.name())));
        }
        source.check_figure(&request.wanted)?;
        if let Some(refusal) = &requester.refusal {
            return Err(refusal.clone());
        }
        self.check_request_id(&key)?;
        if let Some(reason) = source.impossible(&request.wanted) {
            return Ok(refused(reason_only(reason)));
        }
        check_members_of_hold(kit, &request.wanted)?;
        // Who could have been granted before, had the slice sufficed, is granted first.
        let is_settled = !self.unsettled.contains(&key.name);
        let is_granted =
            is_settled && source.fits(&request.wanted) && source.is_first(&request.wanted, request.priority);
        let reason = source.reason(&request.wanted);
        if !is_granted && !is_waiting(request.wait) {
            return Ok(refused(reason_only(reason)));
        }
        let is_new = known.is_none();
        self.check_quotas(kit, &key, requester, request, (source, is_new), !is_granted)?;
        let name = known.map_or_else(|| Arc::clone(&key.name), |(name, _)| Arc::clone(name));
        if let Some(fresh) = fresh.filter(|_| is_new) {
            self.insert_source(Arc::clone(&name), fresh);
        }
        let (key, terms) = (Arc::new(Key { name, ..key }), PermitTerms::of(request));
        let (attempts, process_id) = (Attempts::of(request.attempt), Arc::clone(&requester.process_id));
        if is_granted {
            let fencing_token = self.grant(kit, (key, process_id), request.wanted.clone(), terms, attempts);
            return Ok(AcquireOutcome::Granted { fencing_token });
        }
        let (ends_at_ms, since_ms) = (ends_at_ms(kit, request.wait), kit.wall_ms);
        let (name, wanted) = (Arc::clone(&key.name), request.wanted.clone());
        let wait = PermitWait { key, process_id, wanted, terms, attempts, ends_at_ms, since_ms };
        let rank = QueueRank::new(request.priority, WaitId(kit.next_revision()));
        self.insert_wait(rank, wait);
        kit.notify(Notice::Queued);
        let not_granted = Refused { reason, ..self.queued(kit, &name, rank) };
        Ok(AcquireOutcome::Enqueued(Box::new(Enqueued { wait: rank.wait, attempt: request.attempt, not_granted })))
    }

    /// Grants permits or members that are free.
    pub(super) fn grant(
        &mut self,
        kit: &mut Kit<'_>,
        (key, process_id): (Arc<Key>, Arc<str>),
        wanted: Wanted,
        terms: PermitTerms,
        attempts: Attempts,
    ) -> FencingToken {
        let members = self.by_name.get(&key.name).and_then(|source| source.members());
        let (weight, lease, token) = match members.map(|members| members.choose(&wanted)) {
            None => (wanted.weight(), None, self.record_grant(kit, &key, &process_id, wanted.weight())),
            Some(members) => {
                let its = (None, &members[..]);
                let token = end::record(kit, EventKind::MembersTaken, &key, &process_id, its);
                self.occupy(&key.name, &members, token);
                (members.len() as u64, Some(Lease { members, wanted }), token)
            }
        };
        self.insert_hold(PermitHold {
            key,
            process_id,
            weight,
            lease,
            token,
            locked_at_ms: kit.wall_ms,
            phase: Phase::Held,
            deadline_ms: terms.ttl_ms.map(|ttl_ms| kit.clock_ms().saturating_add(ttl_ms)),
            transition_ms: terms.transition_ms,
            metadata: terms.metadata,
            attempts,
            asks: Asks::default(),
        });
        token
    }

    /// Ids are unique among all requests of a session.
    fn check_request_id(&self, key: &Key) -> Result<(), CommandError> {
        match key.session().and_then(|_| self.named(&key.scope, &key.request_id)) {
            Some(_) => Err(CommandError::RequestIdTaken(key.request_id.to_string())),
            None => Ok(()),
        }
    }

    fn check_quotas(
        &self,
        kit: &Kit<'_>,
        key: &Key,
        requester: &Requester,
        request: &AcquirePermits,
        (source, is_new): (&Source, bool),
        waits: bool,
    ) -> Result<(), CommandError> {
        let limits = kit.limits;
        let within = |count: u64, max: u64, what: &str| {
            let hint = "release permits or members, or have the limit raised";
            if count < max { Ok(()) } else { Err(quota_exceeded(what, max, hint)) }
        };
        let waiting = source.queue.len() as u64;
        let things = source.holds.len() as u64 + waiting;
        if is_new {
            self.check_count(kit, key.name.kind)?;
        }
        within(things, limits.max_holds_per_semaphore, "the number of holds of a semaphore or pool")?;
        if let Some(number) = key.session() {
            let (count, max) = (self.count_of_session(number), limits.max_permit_holds_per_session);
            let what = "the number of holds of semaphores, pools and barriers of a session";
            within(count.saturating_add(requester.things_elsewhere), max, what)?;
        }
        if waits {
            let all = self.waiting().saturating_add(kit.waiting_elsewhere);
            within(all, limits.max_waiting_per_namespace, "the number of waiting requests in a namespace")?;
            let max = limits.max_waiting_per_semaphore;
            within(waiting, max, "the number of requests that wait for a semaphore or pool")?;
        }
        let of_source = if is_new { charge::of_ephemeral(&request.path) } else { ItemBytes::default() };
        let of_request = charge::of_new(key, &requester.process_id, request, waits);
        kit.check_bytes(of_source + of_request)
    }

    /// Returns why a waiting request waits and, if a caller receives that, how many are before it.
    fn queued(&self, kit: &Kit<'_>, name: &Name, rank: QueueRank) -> Refused {
        let position = kit.with_views.then(|| self.queue_position(name, rank, kit.sight));
        Refused { queue_position: position, ..reason_only(Reason::Queued) }
    }
}

/// Returns the semaphore that a request makes if there is none. Pools are always configured.
fn fresh_source(kit: &Kit<'_>, request: &AcquirePermits) -> Option<Source> {
    let Wanted::Permits { permits, .. } = request.wanted else { return None };
    permits.map(|permits| Source::new(Stock::Units { permits, is_configured: false }, kit.revision()))
}

/// Rejects a request for more members than a hold may have, whether they are free or not: it could never be granted.
fn check_members_of_hold(kit: &Kit<'_>, wanted: &Wanted) -> Result<(), CommandError> {
    let max = kit.limits.max_members_per_take;
    if wanted.kind() == Kind::Pool && wanted.weight() > max {
        let hint = "take fewer at once or have the limit raised";
        return Err(quota_exceeded("the number of members in a hold", max, hint));
    }
    Ok(())
}

/// Returns whether a repeat takes other members of a pool. Which one it would prefer does not matter.
fn is_other_take(known: &Wanted, repeated: &Wanted) -> bool {
    match (known, repeated) {
        (Wanted::Permits { .. }, _) => false,
        (Wanted::Members { count, .. }, Wanted::Members { count: repeated, .. }) => count != repeated,
        (known, repeated) => known != repeated,
    }
}

impl PermitTerms {
    fn of(request: &AcquirePermits) -> Self {
        Self {
            ttl_ms: request.ttl_ms,
            transition_ms: u32::try_from(request.transition_ms).unwrap_or(u32::MAX),
            metadata: EncodedMetadata::of(&request.metadata),
        }
    }
}

impl PermitWait {
    /// Applies the terms of a newer call. Without capacity for the new metadata, the old metadata stays.
    fn set_terms(&mut self, kit: &Kit<'_>, terms: PermitTerms) {
        let before = self.bytes();
        let metadata = self.terms.metadata.clone();
        self.terms = terms;
        if kit.check_bytes(self.bytes().saturating_sub(before)).is_err() {
            self.terms.metadata = metadata;
        }
    }
}

fn is_waiting(wait: Wait) -> bool {
    !matches!(wait, Wait::No | Wait::For(0))
}

fn ends_at_ms(kit: &Kit<'_>, wait: Wait) -> Option<u64> {
    if let Wait::For(ms) = wait { Some(kit.clock_ms().saturating_add(ms)) } else { None }
}

/// Validates a request. Frontends validate too; this check guarantees that no hold or wait lasts forever or for no time
/// at all.
fn check_request(request: &AcquirePermits) -> Result<(), CommandError> {
    let is_name = |name: &str| (1..=MAX_NAME_BYTES).contains(&name.len());
    let is_possible = match &request.wanted {
        Wanted::Permits { permits, .. } => permits.is_none_or(|permits| permits <= MAX_PERMITS),
        Wanted::Members { prefer, .. } => prefer.as_deref().is_none_or(is_name),
        Wanted::Member(name) => is_name(name),
    };
    let fits = is_possible
        && (1..=MAX_PERMITS).contains(&request.wanted.weight())
        && request.priority <= MAX_PRIORITY
        && is_name(&request.request_id);
    if !fits {
        let text = format!(
            "a request for permits or members has a number of them from 1 to {MAX_PERMITS}, a priority of 0 to \
             {MAX_PRIORITY}, and an id and members with names of 1 to {MAX_NAME_BYTES} bytes"
        );
        return Err(CommandError::InvalidArgument(text));
    }
    let malformed = |what: &str| Err(CommandError::Malformed(what.into()));
    match (&request.owner, request.ttl_ms) {
        (crate::Owner::Session { .. }, Some(_)) => malformed("a hold of a session lives as long as the session"),
        (crate::Owner::Process(_), None | Some(0)) => malformed("a hold of a process has a time to live"),
        (crate::Owner::Process(_), _) if request.wait == Wait::Unlimited => {
            malformed("a process waits for a limited time")
        }
        (crate::Owner::Process(_), _) if request.message.is_some() => malformed("a message is one of a session"),
        _ => Ok(()),
    }
}
