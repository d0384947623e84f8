//! What views of locks are made of, detached from the state: it is taken under the state's lock, where texts are shared
//! or short, and the views are made of it outside.

use holdfast_primitives::ask::Asks;
use holdfast_primitives::metadata::EncodedMetadata;
use holdfast_primitives::page;
use holdfast_primitives::reply_size::ByteBudget;

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId, OwnerName};
use super::tree::NodeId;
use crate::{FencingToken, HolderView, LockState, LockView, Metadata, Mode, Path, Phase, Response, Revision};

/// A hold and its owner, to be viewed.
pub(super) struct HolderRef<'a> {
    owner: &'a OwnerName,
    metadata: Option<&'a EncodedMetadata>,
    asks: Option<&'a Asks>,
    facts: HolderFacts,
}

/// What a view of a holder has besides texts.
#[derive(Clone, Copy, Debug)]
struct HolderFacts {
    mode: Mode,
    token: FencingToken,
    locked_at_ms: u64,
    deadline_ms: Option<u64>,
    requested_expires_at_ns: Option<i64>,
    phase: Phase,
}

/// As [`HolderRef`], detached from the state.
#[derive(Debug)]
struct DetachedHolder {
    owner: OwnerName,
    metadata: Option<EncodedMetadata>,
    asks: Option<Asks>,
    facts: HolderFacts,
}

impl<'a> HolderRef<'a> {
    pub(super) fn view(&self) -> HolderView {
        let HolderFacts { mode, token, locked_at_ms, deadline_ms, requested_expires_at_ns, phase } = self.facts;
        HolderView {
            owner: self.owner.to_owner(),
            process_id: self.owner.process_id().to_owned(),
            mode,
            fencing_token: token,
            locked_at_ms,
            deadline_ms,
            requested_expires_at_ns,
            phase,
            metadata: self.metadata.map(EncodedMetadata::get).unwrap_or_default(),
            release_requested: self.asks.and_then(Asks::view).map(Box::new),
        }
    }

    /// Returns the least that its view takes, in bytes if encoded.
    fn min_bytes(&self) -> usize {
        self.metadata.map_or(0, EncodedMetadata::len)
    }

    /// Returns it without what a view of a writer leaves out that is too large.
    fn without_texts(&self) -> HolderRef<'a> {
        HolderRef { owner: self.owner, metadata: None, asks: None, facts: self.facts }
    }

    fn detach(self) -> DetachedHolder {
        let (owner, facts) = (self.owner.clone(), self.facts);
        DetachedHolder { owner, metadata: self.metadata.cloned(), asks: self.asks.cloned(), facts }
    }
}

impl DetachedHolder {
    fn borrowed(&self) -> HolderRef<'_> {
        let Self { owner, metadata, asks, facts } = self;
        HolderRef { owner, metadata: metadata.as_ref(), asks: asks.as_ref(), facts: *facts }
    }
}

/// A lock, detached from the state.
#[derive(Debug)]
pub(crate) struct DetachedLock {
    /// Without holders.
    view: LockView,
    holders: Vec<DetachedHolder>,
}

impl DetachedLock {
    /// Makes the view, with as many readers as fit.
    pub(super) fn view(self, left: &mut ByteBudget) -> LockView {
        filled(self.view, self.holders.iter().map(DetachedHolder::borrowed), left)
    }

    /// Returns how many visits it took.
    pub(super) fn visits(&self) -> usize {
        self.holders.len().max(1)
    }
}

/// A page of locks, detached from the state.
#[derive(Debug)]
pub(crate) struct DetachedLocks {
    pub(super) locks: Vec<DetachedLock>,
    /// The path after which more may follow.
    pub(super) next: Option<Path>,
    pub(super) limit: u32,
}

impl DetachedLocks {
    pub(super) fn response(self) -> Response {
        let view = |lock: DetachedLock| lock.view(&mut ByteBudget::new(usize::MAX));
        let (locks, is_cut) = page::collect(self.locks.into_iter(), self.limit, view);
        let next = if is_cut { locks.last().map(|lock| lock.path.clone()) } else { self.next };
        Response::Locks { locks, next }
    }
}

/// Adds holders to a view without them, as far as they fit: a writer without its metadata if that is too large.
/// Metadata that can't fit is not decoded: a response about many locks would do so for each of them.
pub(super) fn filled<'a>(
    mut view: LockView,
    mut holders: impl Iterator<Item = HolderRef<'a>>,
    left: &mut ByteBudget,
) -> LockView {
    match view.state {
        LockState::Unlocked => {}
        LockState::WriteLocked => {
            view.write_lock_holder = holders.next().map(|holder| {
                let may_fit = left.has(holder.min_bytes());
                let mut writer = if may_fit { holder.view() } else { holder.without_texts().view() };
                if !may_fit || !left.try_take(&writer) {
                    (writer.metadata, writer.release_requested) = (Metadata::default(), None);
                }
                writer
            });
        }
        LockState::ReadLocked => {
            for holder in holders {
                if !left.has(holder.min_bytes()) {
                    break;
                }
                let reader = holder.view();
                if !left.try_take(&reader) {
                    break;
                }
                view.read_lock_holders.push(reader);
            }
        }
    }
    view
}

impl Namespace {
    /// Returns the view of a lock without holders, and the holders to show: the writer, or the first readers, with
    /// `own` as the last of them if it came later. `revision` is the shard's.
    pub(super) fn unfilled_view(
        &self,
        path: &Path,
        own: OwnerId,
        max_readers: usize,
        revision: Revision,
    ) -> (LockView, impl Iterator<Item = HolderRef<'_>>) {
        let mut view = LockView::unlocked(path, revision);
        let node = self.tree.find(path);
        let lock = node.map(|node| self.tree.get(node));
        let holds: &[Hold] = match lock {
            Some(lock) => lock.holds.as_slice(),
            None => &[],
        };
        if let Some(node) = node {
            view.waiting = self.tree.queue(node).map_or(0, |queue| queue.own.len() as u64);
        }
        let mut shown = 0;
        if let (Some(lock), Some(first)) = (lock, holds.first()) {
            view.locked_at_ms = Some(first.locked_at_ms);
            view.holders_total = holds.len() as u64;
            view.revision = lock.revision;
            (view.state, shown) = match first.mode {
                Mode::Write => (LockState::WriteLocked, 1),
                Mode::Read => (LockState::ReadLocked, max_readers),
            };
        }
        let mut shown = holds.get(..shown).unwrap_or(holds);
        let own = lock.and_then(|lock| lock.holds.of(own));
        let late = own.filter(|own| shown.last().is_some_and(|last| last.token < own.token));
        if let (Some(_), Some((_, earlier))) = (late, shown.split_last()) {
            shown = earlier;
        }
        (view, shown.iter().chain(late).filter_map(move |hold| Some(self.holder_ref(node?, hold))))
    }

    /// Takes what a view of a lock with at most `max_readers` readers is made of.
    pub(super) fn detached(&self, path: &Path, max_readers: usize, revision: Revision) -> DetachedLock {
        let (view, holders) = self.unfilled_view(path, NO_OWNER, max_readers, revision);
        DetachedLock { view, holders: holders.map(HolderRef::detach).collect() }
    }

    pub(super) fn holder_ref<'a>(&'a self, node: NodeId, hold: &'a Hold) -> HolderRef<'a> {
        let rare = hold.extras.as_deref();
        let (phase, deadline_ms) = self.phase_of(node, hold);
        let facts = HolderFacts {
            mode: hold.mode,
            token: hold.token,
            locked_at_ms: hold.locked_at_ms,
            deadline_ms,
            requested_expires_at_ns: rare.and_then(|rare| rare.requested_expires_at_ns),
            phase,
        };
        let metadata = rare.map(|rare| &rare.metadata);
        HolderRef { owner: self.owners.name(hold.owner), metadata, asks: hold.asks(), facts }
    }
}
