//! Semaphores in a snapshot: each semaphore, then its holds and its queue.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::item::{PermitHold, PermitTerms, PermitWait, QueueRank};
use super::key::{Key, Scope};
use super::{Semaphore, Semaphores};
use crate::chunks::first_after;
use crate::codec::DecodeError;
use crate::locks::{Attempts, EncodedMetadata};
use crate::{FencingToken, Path, Phase, Revision, SessionNumber, WaitId};

/// The semaphores at one entry. They are shared with the state, which copies what it changes: the first change of a
/// semaphore copies four indexes, though not the holds and waits in them. The limits bound what that costs.
#[derive(Debug)]
pub(crate) struct FrozenSemaphores(Vec<(Arc<Path>, Arc<Semaphore>, bool)>);

/// What of some semaphores is written next.
#[derive(Default)]
pub(crate) struct SemaphoreCursor {
    /// The position of the semaphore.
    semaphore: usize,
    part: CursorStage,
}

/// What of a semaphore is written next.
#[derive(Default)]
enum CursorStage {
    #[default]
    Facts,
    /// The hold that follows the one of this token.
    HoldAfter(Option<FencingToken>),
    /// The waiting request that follows the one of this rank.
    WaitAfter(Option<QueueRank>),
}

/// An item of a snapshot. The serialized form is stored: variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub(crate) enum SemaphoreItem {
    /// A semaphore. Its holds and its queue follow.
    Semaphore(FactsItem),
    /// A hold of the preceding semaphore, in order of token.
    Hold(HoldItem),
    /// A waiting request of the preceding semaphore, in order of the queue.
    Wait(WaitItem),
}

#[derive(Serialize, Deserialize)]
pub(crate) struct FactsItem {
    path: Path,
    permits: u64,
    is_configured: bool,
    description: String,
    metadata: EncodedMetadata,
    revision: Revision,
    deleting: Option<Revision>,
    /// Whether the next slice has to settle the queue.
    is_unsettled: bool,
}

#[derive(Serialize, Deserialize)]
enum OwnerItem {
    Process(String),
    Session { number: SessionNumber, session_id: String, process_id: String, holder: Option<String> },
}

#[derive(Serialize, Deserialize)]
pub(crate) struct HoldItem {
    owner: OwnerItem,
    request_id: String,
    weight: u64,
    token: FencingToken,
    locked_at_ms: u64,
    phase: Phase,
    deadline_ms: Option<u64>,
    transition_ms: u32,
    metadata: EncodedMetadata,
    /// In ascending order.
    attempts: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct WaitItem {
    owner: OwnerItem,
    request_id: String,
    weight: u64,
    priority: u8,
    wait: u64,
    terms: PermitTerms,
    /// In ascending order.
    attempts: Vec<u64>,
    ends_at_ms: Option<u64>,
    since_ms: u64,
}

impl SemaphoreItem {
    /// Makes the instants of the shard clock later by a time.
    pub(crate) fn delay(&mut self, by_ms: u64) {
        let at_ms = match self {
            Self::Semaphore(_) => return,
            Self::Hold(hold) => &mut hold.deadline_ms,
            Self::Wait(wait) => &mut wait.ends_at_ms,
        };
        *at_ms = at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
    }
}

impl Semaphores {
    pub(crate) fn freeze(&self) -> FrozenSemaphores {
        let all = self.by_path.iter();
        let all = all.map(|(path, it)| (Arc::clone(path), Arc::clone(it), self.unsettled.contains(path)));
        FrozenSemaphores(all.collect())
    }

    /// Adds an item of a snapshot; `now` is the revision of the shard.
    pub(crate) fn restore(&mut self, item: SemaphoreItem, now: Revision) -> Result<(), DecodeError> {
        match item {
            SemaphoreItem::Semaphore(facts) => self.restore_semaphore(facts, now),
            SemaphoreItem::Hold(hold) => self.restore_hold(hold, now),
            SemaphoreItem::Wait(wait) => self.restore_wait(wait, now),
        }
    }

    fn restore_semaphore(&mut self, facts: FactsItem, now: Revision) -> Result<(), DecodeError> {
        let is_next = self.by_path.last_key_value().is_none_or(|(last, _)| **last < facts.path);
        ensure(is_next && !facts.path.0.is_empty(), "semaphores are out of order")?;
        let is_past = facts.revision <= now && facts.deleting.is_none_or(|began| began <= now);
        ensure(is_past, "a semaphore is from the future")?;
        let path = Arc::new(facts.path);
        let semaphore = Semaphore {
            description: facts.description,
            metadata: facts.metadata,
            deleting: facts.deleting,
            ..Semaphore::new(facts.permits, facts.is_configured, facts.revision)
        };
        if let Some(began) = facts.deleting {
            let is_new = self.deleting.insert(began, Arc::clone(&path)).is_none();
            ensure(is_new, "two deletions began at once")?;
        }
        if facts.is_unsettled {
            self.unsettled.insert(Arc::clone(&path));
        }
        self.insert_semaphore(path, semaphore);
        Ok(())
    }

    fn last_path(&self) -> Result<Arc<Path>, DecodeError> {
        let last = self.by_path.last_key_value().map(|(path, _)| Arc::clone(path));
        last.ok_or(DecodeError::Snapshot("a hold has no semaphore"))
    }

    fn restore_hold(&mut self, item: HoldItem, now: Revision) -> Result<(), DecodeError> {
        let path = self.last_path()?;
        let is_process = matches!(item.owner, OwnerItem::Process(_));
        let (key, process_id) = key_of(item.owner, &item.request_id, &path);
        let ends = item.deadline_ms.is_some();
        ensure(ends == (is_process || item.phase == Phase::Transition), "a hold ends never, or at a wrong time")?;
        let revision = self.by_path.get(&path).map_or(0, |semaphore| semaphore.revision);
        ensure(item.token <= now && item.token <= revision && item.weight > 0, "a hold is from the future")?;
        let is_new = !self.index.contains_key(&key) && self.hold(&path, item.token).is_none();
        ensure(is_new, "a hold comes twice")?;
        self.insert_hold(PermitHold {
            key,
            process_id,
            weight: item.weight.min(crate::MAX_PERMITS),
            token: item.token,
            locked_at_ms: item.locked_at_ms,
            phase: item.phase,
            deadline_ms: item.deadline_ms,
            transition_ms: item.transition_ms,
            metadata: item.metadata,
            attempts: attempts_of(item.attempts)?,
        });
        Ok(())
    }

    fn restore_wait(&mut self, item: WaitItem, now: Revision) -> Result<(), DecodeError> {
        let path = self.last_path()?;
        let is_process = matches!(item.owner, OwnerItem::Process(_));
        ensure(is_process == item.terms.ttl_ms.is_some(), "a request waits for what ends never, or at a wrong time")?;
        let (key, process_id) = key_of(item.owner, &item.request_id, &path);
        let wait = WaitId(item.wait);
        ensure(item.wait <= now && item.weight > 0, "a request is from the future")?;
        let is_new = !self.index.contains_key(&key) && !self.waits.contains_key(&wait);
        ensure(is_new, "a request comes twice")?;
        let waiting = PermitWait {
            key,
            process_id,
            weight: item.weight.min(crate::MAX_PERMITS),
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
    pub(crate) fn finish_restore(&mut self, is_open: impl Fn(SessionNumber) -> bool) -> Result<(), DecodeError> {
        let is_used = |semaphore: &Semaphore| !semaphore.holds.is_empty() || !semaphore.queue.is_empty();
        let all = self.by_path.values();
        ensure(
            all.clone().all(|it| it.is_configured || it.deleting.is_some() || is_used(it)),
            "a semaphore is unused",
        )?;
        let of_open = |hold: &PermitHold| !hold.is_held() || hold.key.session().is_none_or(&is_open);
        let holds = all.clone().flat_map(|semaphore| semaphore.holds.values());
        ensure(holds.into_iter().all(|hold| of_open(hold)), "a hold has no session")?;
        let waits = all.flat_map(|semaphore| semaphore.queue.values());
        ensure(waits.into_iter().all(|wait| wait.key.session().is_none_or(&is_open)), "a request has no session")?;
        for (path, semaphore) in &self.by_path {
            let first = semaphore.queue.first_key_value().filter(|_| semaphore.deleting.is_none());
            if first.is_some_and(|(_, wait)| semaphore.fits(wait.weight)) {
                self.unsettled.insert(Arc::clone(path));
            }
        }
        Ok(())
    }
}

impl FrozenSemaphores {
    /// Returns the item at a place, and moves the place on; `None` at the end.
    pub(crate) fn next_item(&self, cursor: &mut SemaphoreCursor) -> Option<SemaphoreItem> {
        loop {
            let (path, semaphore, is_unsettled) = self.0.get(cursor.semaphore)?;
            match cursor.part {
                CursorStage::Facts => {
                    cursor.part = CursorStage::HoldAfter(None);
                    return Some(SemaphoreItem::Semaphore(facts_item(path, semaphore, *is_unsettled)));
                }
                CursorStage::HoldAfter(last) => {
                    if let Some((token, hold)) = first_after(&semaphore.holds, last) {
                        cursor.part = CursorStage::HoldAfter(Some(*token));
                        return Some(SemaphoreItem::Hold(hold_item(hold)));
                    }
                    cursor.part = CursorStage::WaitAfter(None);
                }
                CursorStage::WaitAfter(last) => {
                    if let Some((rank, wait)) = first_after(&semaphore.queue, last) {
                        cursor.part = CursorStage::WaitAfter(Some(*rank));
                        return Some(SemaphoreItem::Wait(wait_item(*rank, wait)));
                    }
                    *cursor = SemaphoreCursor { semaphore: cursor.semaphore + 1, part: CursorStage::Facts };
                }
            }
        }
    }
}

fn facts_item(path: &Path, semaphore: &Semaphore, is_unsettled: bool) -> FactsItem {
    FactsItem {
        path: path.clone(),
        permits: semaphore.permits,
        is_configured: semaphore.is_configured,
        description: semaphore.description.clone(),
        metadata: semaphore.metadata.clone(),
        revision: semaphore.revision,
        deleting: semaphore.deleting,
        is_unsettled,
    }
}

fn hold_item(hold: &PermitHold) -> HoldItem {
    HoldItem {
        owner: owner_item(&hold.key, &hold.process_id),
        request_id: hold.key.request_id.to_string(),
        weight: hold.weight,
        token: hold.token,
        locked_at_ms: hold.locked_at_ms,
        phase: hold.phase,
        deadline_ms: hold.deadline_ms,
        transition_ms: hold.transition_ms,
        metadata: hold.metadata.clone(),
        attempts: attempts_item(&hold.attempts),
    }
}

fn wait_item(rank: QueueRank, wait: &PermitWait) -> WaitItem {
    WaitItem {
        owner: owner_item(&wait.key, &wait.process_id),
        request_id: wait.key.request_id.to_string(),
        weight: wait.weight,
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

fn key_of(owner: OwnerItem, request_id: &str, path: &Arc<Path>) -> (Arc<Key>, Arc<str>) {
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
    (Arc::new(Key { scope, request_id: request_id.into(), path: Arc::clone(path), holder }), process_id)
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
