//! Semaphores and pools in a snapshot: each of them, then its members, its holds and its queue.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PermitTable;
use super::item::{Lease, PermitHold, PermitTerms, PermitWait, QueueRank};
use super::key::{Key, Name, Scope};
use super::members::{Member, Members};
use super::source::{Source, Stock};
use crate::ask::{Asks, AsksItem};
use crate::attempts::Attempts;
use crate::chunks::first_after;
use crate::codec::DecodeError;
use crate::metadata::EncodedMetadata;
use crate::{FencingToken, Kind, Path, Phase, Revision, SessionNumber, WaitId, Wanted};

/// The semaphores and pools at one entry. They are shared with the state, which copies what it changes: the first
/// change of one copies its indexes, though not the members, holds and waits in them. The limits bound what that costs.
#[derive(Debug)]
pub struct FrozenPermits(Vec<(Arc<Name>, Arc<Source>, bool)>);

/// What of some semaphores and pools is written next.
#[derive(Default)]
pub struct SourceCursor {
    /// The position of the semaphore or pool.
    source: usize,
    part: CursorStage,
}

/// What of a semaphore or a pool is written next.
#[derive(Default)]
enum CursorStage {
    #[default]
    Facts,
    /// The member that follows the one of this name.
    MemberAfter(Option<Arc<str>>),
    /// The hold that follows the one of this token.
    HoldAfter(Option<FencingToken>),
    /// The waiting request that follows the one of this rank.
    WaitAfter(Option<QueueRank>),
}

/// An item of a snapshot. The serialized form is stored: variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub enum SourceItem {
    /// A semaphore or a pool. Its members, its holds and its queue follow.
    Source(FactsItem),
    /// A hold of the preceding one, in order of token.
    Hold(HoldItem),
    /// A waiting request of the preceding one, in order of the queue.
    Wait(WaitItem),
    /// A member of the preceding pool, in order of name.
    Member(MemberItem),
}

/// What is stored of a semaphore or a pool itself.
#[derive(Serialize, Deserialize)]
pub struct FactsItem {
    path: Path,
    stock: StockItem,
    description: String,
    metadata: EncodedMetadata,
    revision: Revision,
    deleting: Option<Revision>,
    /// Whether the next slice has to settle the queue.
    is_unsettled: bool,
}

#[derive(Serialize, Deserialize)]
enum StockItem {
    Units { permits: u64, is_configured: bool },
    Members { cooldown_ms: u64 },
}

/// A member of a pool.
#[derive(Serialize, Deserialize)]
pub struct MemberItem {
    name: String,
    is_disabled: bool,
    is_leaving: bool,
    metadata: EncodedMetadata,
    free_since: Revision,
    resting_until_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum OwnerItem {
    Process(String),
    Session { number: SessionNumber, session_id: String, process_id: String, holder: Option<String> },
}

/// A hold.
#[derive(Serialize, Deserialize)]
pub struct HoldItem {
    owner: OwnerItem,
    request_id: String,
    weight: u64,
    /// Of a pool only: the members, in order of name, and what was requested.
    lease: Option<(Vec<String>, Wanted)>,
    token: FencingToken,
    locked_at_ms: u64,
    phase: Phase,
    deadline_ms: Option<u64>,
    transition_ms: u32,
    metadata: EncodedMetadata,
    /// In ascending order.
    attempts: Vec<u64>,
    asks: AsksItem,
}

/// A wait.
#[derive(Serialize, Deserialize)]
pub struct WaitItem {
    owner: OwnerItem,
    request_id: String,
    wanted: Wanted,
    priority: u8,
    wait: u64,
    terms: PermitTerms,
    /// In ascending order.
    attempts: Vec<u64>,
    ends_at_ms: Option<u64>,
    since_ms: u64,
}

impl SourceItem {
    /// Makes the instants of the shard clock later by a time.
    pub fn delay(&mut self, by_ms: u64) {
        let at_ms = match self {
            Self::Source(_) => return,
            Self::Member(member) => &mut member.resting_until_ms,
            Self::Hold(hold) => {
                hold.asks.delay(by_ms);
                &mut hold.deadline_ms
            }
            Self::Wait(wait) => &mut wait.ends_at_ms,
        };
        *at_ms = at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
    }
}

impl PermitTable {
    /// Returns the table as it is now, for a snapshot.
    pub fn freeze(&self) -> FrozenPermits {
        let all = self.by_name.iter();
        let all = all.map(|(name, it)| (Arc::clone(name), Arc::clone(it), self.unsettled.contains(name)));
        FrozenPermits(all.collect())
    }

    /// Adds an item of a snapshot; `now` is the revision of the shard.
    pub fn restore(&mut self, item: SourceItem, now: Revision) -> Result<(), DecodeError> {
        match item {
            SourceItem::Source(facts) => self.restore_source(facts, now),
            SourceItem::Member(member) => self.restore_member(member, now),
            SourceItem::Hold(hold) => self.restore_hold(hold, now),
            SourceItem::Wait(wait) => self.restore_wait(wait, now),
        }
    }

    fn restore_source(&mut self, facts: FactsItem, now: Revision) -> Result<(), DecodeError> {
        let (kind, stock) = match facts.stock {
            StockItem::Units { permits, is_configured } => (Kind::Semaphore, Stock::Units { permits, is_configured }),
            StockItem::Members { cooldown_ms } => (Kind::Pool, Stock::Members(Members::new(cooldown_ms))),
        };
        let name = Arc::new(Name { kind, path: facts.path });
        let is_next = self.by_name.last_key_value().is_none_or(|(last, _)| *last < name);
        ensure(is_next && !name.path.0.is_empty(), "semaphores or pools are out of order")?;
        let is_past = facts.revision <= now && facts.deleting.is_none_or(|began| began <= now);
        ensure(is_past, "a semaphore or a pool is from the future")?;
        let source = Source {
            description: facts.description,
            metadata: facts.metadata,
            deleting: facts.deleting,
            ..Source::new(stock, facts.revision)
        };
        if let Some(began) = facts.deleting {
            let is_new = self.deleting.insert(began, Arc::clone(&name)).is_none();
            ensure(is_new, "two deletions began at once")?;
        }
        if facts.is_unsettled {
            self.unsettled.insert(Arc::clone(&name));
        }
        self.insert_source(name, source);
        Ok(())
    }

    fn restore_member(&mut self, item: MemberItem, now: Revision) -> Result<(), DecodeError> {
        let name = self.last_name()?;
        let member: Arc<str> = item.name.into();
        let members = self.by_name.get(&name).and_then(|source| source.members());
        let is_next = members.is_some_and(|members| members.iter().next_back().is_none_or(|(last, _)| *last < member));
        ensure(is_next && item.free_since <= now, "members are out of order, or from the future")?;
        let mut restored = Member::new(item.is_disabled, item.metadata, item.free_since);
        restored.is_leaving = item.is_leaving;
        self.change_members(&name, |members| members.insert(&member, restored));
        self.change_member(&name, &member, |member| member.resting_until_ms = item.resting_until_ms);
        Ok(())
    }

    fn last_name(&self) -> Result<Arc<Name>, DecodeError> {
        let last = self.by_name.last_key_value().map(|(name, _)| Arc::clone(name));
        last.ok_or(DecodeError::Snapshot("a hold or a member belongs to nothing"))
    }

    /// Marks the members of a restored hold as held.
    fn restore_lease(
        &mut self,
        name: &Arc<Name>,
        item: Option<(Vec<String>, Wanted)>,
        token: FencingToken,
    ) -> Result<Option<Lease>, DecodeError> {
        let members = self.by_name.get(name).and_then(|source| source.members());
        ensure(members.is_some() == item.is_some(), "a hold is of another kind")?;
        let Some((names, wanted)) = item else { return Ok(None) };
        let is_free = |name: &String| members.is_some_and(|all| all.get(name).is_some_and(|it| it.hold.is_none()));
        let rises = names.iter().zip(names.iter().skip(1)).all(|(one, next)| one < next);
        ensure(!names.is_empty() && rises && names.iter().all(is_free), "a member is held twice, or is none")?;
        let names: Vec<Arc<str>> =
            names.iter().filter_map(|name| members.and_then(|members| members.name_of(name))).collect();
        self.occupy(name, &names, token);
        Ok(Some(Lease { members: names, wanted }))
    }

    fn restore_hold(&mut self, item: HoldItem, now: Revision) -> Result<(), DecodeError> {
        let name = self.last_name()?;
        let is_process = matches!(item.owner, OwnerItem::Process(_));
        let (key, process_id) = key_of(item.owner, &item.request_id, &name);
        let ends = item.deadline_ms.is_some();
        ensure(ends == (is_process || item.phase == Phase::Transition), "a hold ends never, or at a wrong time")?;
        let revision = self.by_name.get(&name).map_or(0, |source| source.revision);
        ensure(item.token <= now && item.token <= revision && item.weight > 0, "a hold is from the future")?;
        let is_new = !self.index.contains_key(&key) && self.hold(&name, item.token).is_none();
        ensure(is_new, "a hold comes twice")?;
        let lease = self.restore_lease(&name, item.lease, item.token)?;
        let weight = lease.as_ref().map_or(item.weight, |lease| lease.members.len() as u64);
        let asks = Asks::restored(item.asks, &mut self.last_ask);
        self.insert_hold(PermitHold {
            key,
            process_id,
            weight: weight.min(crate::MAX_PERMITS),
            lease,
            token: item.token,
            locked_at_ms: item.locked_at_ms,
            phase: item.phase,
            deadline_ms: item.deadline_ms,
            transition_ms: item.transition_ms,
            metadata: item.metadata,
            attempts: attempts_of(item.attempts)?,
            asks,
        });
        Ok(())
    }

    fn restore_wait(&mut self, item: WaitItem, now: Revision) -> Result<(), DecodeError> {
        let name = self.last_name()?;
        let is_process = matches!(item.owner, OwnerItem::Process(_));
        ensure(is_process == item.terms.ttl_ms.is_some(), "a request waits for what ends never, or at a wrong time")?;
        let (key, process_id) = key_of(item.owner, &item.request_id, &name);
        let wait = WaitId(item.wait);
        let is_possible = item.wanted.kind() == name.kind && (1..=crate::MAX_PERMITS).contains(&item.wanted.weight());
        ensure(item.wait <= now && is_possible, "a request is from the future, or for nothing")?;
        let is_new = !self.index.contains_key(&key) && !self.waits.contains_key(&wait);
        ensure(is_new, "a request comes twice")?;
        let waiting = PermitWait {
            key,
            process_id,
            wanted: item.wanted,
            terms: item.terms,
            attempts: attempts_of(item.attempts)?,
            ends_at_ms: item.ends_at_ms,
            since_ms: item.since_ms,
        };
        self.insert_wait(QueueRank::new(item.priority, wait), waiting);
        Ok(())
    }

    /// Checks conditions that require everything, and has queues settled whose first fits. `is_open` tells whether a
    /// session exists.
    pub fn finish_restore(&mut self, is_open: impl Fn(SessionNumber) -> bool) -> Result<(), DecodeError> {
        let is_used = |source: &Source| !source.holds.is_empty() || !source.queue.is_empty();
        let all = self.by_name.values();
        ensure(
            all.clone().all(|it| it.is_configured() || it.deleting.is_some() || is_used(it)),
            "a semaphore is unused",
        )?;
        let of_open = |hold: &PermitHold| !hold.is_held() || hold.key.session().is_none_or(&is_open);
        let holds = all.clone().flat_map(|source| source.holds.values());
        ensure(holds.into_iter().all(|hold| of_open(hold)), "a hold has no session")?;
        let waits = all.clone().flat_map(|source| source.queue.values());
        ensure(waits.into_iter().all(|wait| wait.key.session().is_none_or(&is_open)), "a request has no session")?;
        let members = all.filter_map(|source| source.members()).flat_map(Members::iter);
        ensure(members.into_iter().all(|(_, it)| !it.is_leaving || it.hold.is_some()), "a free member leaves")?;
        self.last_ask = None;
        for (name, source) in &self.by_name {
            if source.is_unsettled() {
                self.unsettled.insert(Arc::clone(name));
            }
        }
        Ok(())
    }
}

impl FrozenPermits {
    /// Returns the item at a place, and moves the place on; `None` at the end.
    pub fn next_item(&self, cursor: &mut SourceCursor) -> Option<SourceItem> {
        loop {
            let (name, source, is_unsettled) = self.0.get(cursor.source)?;
            match &cursor.part {
                CursorStage::Facts => {
                    cursor.part = CursorStage::MemberAfter(None);
                    return Some(SourceItem::Source(facts_item(name, source, *is_unsettled)));
                }
                CursorStage::MemberAfter(last) => {
                    let next = source.members().and_then(|members| members.after(last.as_deref()).next());
                    if let Some((member, facts)) = next {
                        cursor.part = CursorStage::MemberAfter(Some(Arc::clone(member)));
                        return Some(SourceItem::Member(member_item(member, facts)));
                    }
                    cursor.part = CursorStage::HoldAfter(None);
                }
                CursorStage::HoldAfter(last) => {
                    if let Some((token, hold)) = first_after(&source.holds, *last) {
                        cursor.part = CursorStage::HoldAfter(Some(*token));
                        return Some(SourceItem::Hold(hold_item(hold)));
                    }
                    cursor.part = CursorStage::WaitAfter(None);
                }
                CursorStage::WaitAfter(last) => {
                    if let Some((rank, wait)) = first_after(&source.queue, *last) {
                        cursor.part = CursorStage::WaitAfter(Some(*rank));
                        return Some(SourceItem::Wait(wait_item(*rank, wait)));
                    }
                    *cursor = SourceCursor { source: cursor.source + 1, part: CursorStage::Facts };
                }
            }
        }
    }
}

fn facts_item(name: &Name, source: &Source, is_unsettled: bool) -> FactsItem {
    let stock = match &source.stock {
        Stock::Units { permits, is_configured } => {
            StockItem::Units { permits: *permits, is_configured: *is_configured }
        }
        Stock::Members(members) => StockItem::Members { cooldown_ms: members.cooldown_ms },
    };
    FactsItem {
        path: name.path.clone(),
        stock,
        description: source.description.clone(),
        metadata: source.metadata.clone(),
        revision: source.revision,
        deleting: source.deleting,
        is_unsettled,
    }
}

fn member_item(name: &str, member: &Member) -> MemberItem {
    MemberItem {
        name: name.to_owned(),
        is_disabled: member.is_disabled,
        is_leaving: member.is_leaving,
        metadata: member.metadata.clone(),
        free_since: member.free_since,
        resting_until_ms: member.resting_until_ms,
    }
}

fn hold_item(hold: &PermitHold) -> HoldItem {
    HoldItem {
        owner: owner_item(&hold.key, &hold.process_id),
        request_id: hold.key.request_id.to_string(),
        weight: hold.weight,
        lease: hold
            .lease
            .as_ref()
            .map(|lease| (lease.members.iter().map(ToString::to_string).collect(), lease.wanted.clone())),
        token: hold.token,
        locked_at_ms: hold.locked_at_ms,
        phase: hold.phase,
        deadline_ms: hold.deadline_ms,
        transition_ms: hold.transition_ms,
        metadata: hold.metadata.clone(),
        attempts: attempts_item(&hold.attempts),
        asks: hold.asks.item(),
    }
}

fn wait_item(rank: QueueRank, wait: &PermitWait) -> WaitItem {
    WaitItem {
        owner: owner_item(&wait.key, &wait.process_id),
        request_id: wait.key.request_id.to_string(),
        wanted: wait.wanted.clone(),
        priority: rank.priority(),
        wait: rank.wait.0,
        terms: wait.terms.clone(),
        attempts: attempts_item(&wait.attempts),
        ends_at_ms: wait.ends_at_ms,
        since_ms: wait.since_ms,
    }
}

fn owner_item(key: &Key, process_id: &str) -> OwnerItem {
    match &key.scope {
        Scope::Process(process_id) => OwnerItem::Process(process_id.to_string()),
        Scope::Session { number, session_id } => OwnerItem::Session {
            number: *number,
            session_id: session_id.to_string(),
            process_id: process_id.to_owned(),
            holder: key.holder.as_deref().map(str::to_owned),
        },
    }
}

fn key_of(owner: OwnerItem, request_id: &str, name: &Arc<Name>) -> (Arc<Key>, Arc<str>) {
    let (scope, process_id, holder): (Scope, Arc<str>, _) = match owner {
        OwnerItem::Process(process_id) => {
            let process_id: Arc<str> = process_id.into();
            (Scope::Process(Arc::clone(&process_id)), process_id, None)
        }
        OwnerItem::Session { number, session_id, process_id, holder } => {
            (Scope::Session { number, session_id: session_id.into() }, process_id.into(), holder)
        }
    };
    let holder = holder.map(Into::into);
    (Arc::new(Key { scope, request_id: request_id.into(), name: Arc::clone(name), holder }), process_id)
}

fn attempts_item(attempts: &Attempts) -> Vec<u64> {
    attempts.lower().iter().copied().chain([attempts.highest()]).collect()
}

fn attempts_of(mut rising: Vec<u64>) -> Result<Attempts, DecodeError> {
    let highest = rising.pop();
    let attempts = highest.and_then(|highest| Attempts::restored(highest, rising));
    attempts.ok_or(DecodeError::Snapshot("attempts are out of order"))
}

fn ensure(fits: bool, otherwise: &'static str) -> Result<(), DecodeError> {
    if fits { Ok(()) } else { Err(DecodeError::Snapshot(otherwise)) }
}
