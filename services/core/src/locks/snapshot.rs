//! Snapshots of a locks shard. What can be counted or indexed again is not in them, and nothing of them depends on how
//! the state came to be.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use holdfast_plant::{Plant, is_planted};
use serde::{Deserialize, Serialize};

use super::LocksCore;
use super::attempts::Attempts;
use super::history::History;
use super::hold::{Hold, HoldExtras, HoldTerms};
use super::jobs::JobCursors;
use super::metadata::KeptMetadata;
use super::namespace::Namespace;
use super::owner::{OwnerId, OwnerName};
use super::queue::QueuePosition;
use super::session_end::Ending;
use super::sessions::{GrantedRequest, SessionFacts};
use super::slab::Slab;
use super::sweep::Sweep;
use super::tree::{Node, NodeId, PathTable};
use super::waiting::{BlockedOn, WaitingRequest};
use crate::chunks::ChunkWriter;
use crate::shard::Application;
use crate::shard_common::{CommonItem, ShardCommon};
use crate::types::first_limits;
use crate::{
    AccountId, FencingToken, Incarnation, Limits, Mode, NamespaceRef, Path, Phase, RequestId, Revision, SessionEnd,
    UsageTotals,
};

/// So many names are in one item.
const OLD_IN_ITEM: usize = 256;
/// The same of waits.
const WOKEN_IN_ITEM: usize = 4_096;

/// A piece of a snapshot; written from references, read as values. Variants are only ever added at the end.
#[derive(Serialize, Deserialize)]
pub(super) enum Item<S> {
    State(CommonItem),
    Namespace {
        account: AccountId,
        name: String,
        incarnation: Incarnation,
        #[serde(with = "first_limits")]
        limits: Limits,
        /// The last event that it forgot.
        forgotten: Revision,
    },
    /// Of the namespace before it, like all that follow.
    Session(SessionItem<S>),
    Lock {
        path: Vec<S>,
        revision: Revision,
    },
    /// Of the lock before it, in order of arrival.
    Hold(HoldItem<S>),
    /// A granted request of a session.
    Granted(GrantedItem<S>),
    Wait(WaitItem<S>),
    Event {
        revision: Revision,
        bytes: Vec<u8>,
    },
    /// What was counted in the namespace before it.
    Usage(UsageTotals),
    /// What was counted in namespaces that are gone.
    EndedUsage(AccountId, UsageTotals),
    /// Calls that count on the hold, granted request or wait before it, besides the one that it names. From rules 2 on.
    Attempts {
        /// Rising, all below that one.
        lower: Vec<u64>,
        /// Those that count on a hold as a reader's, when it was upgraded.
        as_reader: Vec<u64>,
    },
    /// Of the namespace right before it, when the first ones do not say all. From rules 2 on.
    Limits(Box<Limits>),
    /// Whose turn it was last to go on with what was begun and is not finished. From rules 2 on.
    Turns(JobCursors),
    /// A session of the namespace before it that has ended and not all that it has. From rules 2 on.
    Ending(Box<EndingItem<S>>),
    /// A granted request of such a session, by its number. From rules 2 on.
    GrantedToEnding(u64, Box<GrantedItem<S>>),
    /// Something long of the namespace before it that was asked for at that revision. From rules 2 on.
    Sweep(Revision, Box<Sweep>),
    /// Some processes that go with what was asked for at that revision, since they are old enough. From rules 2 on.
    Old(Revision, Vec<S>),
    /// Whoever waits in the namespace before it is granted nothing before its next turn. Then these are looked at, each a
    /// wait and whether it is for another mode. From rules 2 on.
    Behind(Vec<(u64, bool)>),
    /// What the wait before it watches. From rules 2 on.
    Watch(WatchItem),
}

/// What keeps a request waiting. Paths and owners are said by its claims, since their numbers differ between replicas.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum WatchItem {
    /// The hold of that token, so many levels above the claim of that index.
    Hold { claim: u32, above: u32, token: FencingToken },
    /// What is held under the claim of that index.
    Below { claim: u32, mode: Mode },
    /// A request, and whether it is for another mode.
    Wait(u64, bool),
}

#[derive(Serialize, Deserialize)]
pub(super) struct EndingItem<S> {
    pub(super) session: SessionItem<S>,
    pub(super) why: SessionEnd,
    pub(super) since_ms: u64,
    /// A wait, and whether it is to change a mode.
    pub(super) after_wait: Option<(u64, bool)>,
    pub(super) after_path: Option<Vec<S>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionItem<S> {
    pub(super) session_id: S,
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) opening: RequestId,
    pub(super) process_id: S,
    pub(super) ttl_ms: u64,
    pub(super) metadata: KeptMetadata,
    pub(super) opened_at_ms: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) enum OwnerItem<S> {
    Process(S),
    Session { number: u64, session_id: S, process_id: S, holder: Option<S> },
}

#[derive(Serialize, Deserialize)]
pub(super) struct HoldItem<S> {
    pub(super) owner: OwnerItem<S>,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) direct: bool,
    pub(super) upgraded: bool,
    pub(super) transition_ms: u32,
    pub(super) token: FencingToken,
    pub(super) locked_at_ms: u64,
    pub(super) deadline_ms: Option<NonZeroU64>,
    pub(super) attempt: u64,
    pub(super) metadata: KeptMetadata,
    pub(super) asked_expires_at_ns: Option<i64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct GrantedItem<S> {
    pub(super) session_id: S,
    pub(super) request_id: S,
    pub(super) holder: Option<S>,
    pub(super) token: FencingToken,
    pub(super) attempt: u64,
    pub(super) claimed: u32,
    pub(super) live: Vec<(Vec<S>, Mode)>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WaitItem<S> {
    pub(super) wait: u64,
    pub(super) upgrade: bool,
    pub(super) owner: OwnerItem<S>,
    pub(super) claims: Vec<(Vec<S>, Mode)>,
    pub(super) terms: HoldTerms,
    pub(super) request_id: Option<S>,
    pub(super) attempt: u64,
    pub(super) ends_at_ms: Option<u64>,
    pub(super) since_ms: u64,
}

/// The state at one entry. It stays as it is while the shard goes on: what is large is shared in pieces, of which the
/// shard copies those that it changes. Taking it costs a count for each piece of 64 paths, owners or events, and for each
/// session and each request that waits.
#[derive(Debug)]
pub(crate) struct FrozenLocks {
    state: ShardCommon,
    ended_usage: BTreeMap<AccountId, UsageTotals>,
    namespaces: Vec<FrozenNamespace>,
    turns: Option<JobCursors>,
}

#[derive(Debug)]
struct FrozenNamespace {
    id: Arc<NamespaceRef>,
    limits: Limits,
    paths: PathTable,
    owners: Slab<OwnerName>,
    sessions: Vec<(Arc<str>, Arc<SessionFacts>)>,
    ending: Vec<FrozenEnding>,
    sweeps: BTreeMap<Revision, Sweep>,
    granted: Slab<GrantedRequest>,
    waits: Vec<(QueuePosition, Arc<WaitingRequest>)>,
    history: History,
    usage: UsageTotals,
    /// Whether it matters what is watched: looks are counted.
    has_slices: bool,
    /// Who is to be looked at, when somebody is.
    behind: Option<Vec<QueuePosition>>,
}

#[derive(Debug)]
struct FrozenEnding {
    session_id: Arc<str>,
    facts: Arc<SessionFacts>,
    why: SessionEnd,
    since_ms: u64,
    after_wait: Option<QueuePosition>,
    after_path: Option<Path>,
}

impl LocksCore {
    pub(crate) fn freeze(&self) -> FrozenLocks {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot).freeze());
        FrozenLocks {
            state: self.state.clone(),
            ended_usage: self.ended_usage.clone(),
            namespaces: namespaces.collect(),
            turns: self.busy.turns(),
        }
    }
}

impl FrozenLocks {
    pub(crate) fn encode(&self) -> Vec<Vec<u8>> {
        let mut writer: ChunkWriter<Item<&str>> = ChunkWriter::new();
        for item in self.state.items(Application::Locks) {
            writer.push(&Item::State(item));
        }
        for (account, usage) in &self.ended_usage {
            writer.push(&Item::EndedUsage(*account, *usage));
        }
        for namespace in &self.namespaces {
            namespace.write(&mut writer);
        }
        if let Some(turns) = &self.turns {
            writer.push(&Item::Turns(turns.clone()));
        }
        writer.finish()
    }
}

impl Namespace {
    fn freeze(&self) -> FrozenNamespace {
        let sessions = self.sessions.iter().map(|(id, session)| (Arc::clone(id), Arc::clone(&session.facts)));
        FrozenNamespace {
            id: Arc::clone(&self.id),
            limits: self.limits.clone(),
            paths: self.tree.paths().clone(),
            owners: self.owners.names().clone(),
            sessions: sessions.collect(),
            ending: self.ending.values().filter(|_| !is_planted(Plant::JobLost)).map(Ending::freeze).collect(),
            sweeps: if is_planted(Plant::JobLost) { BTreeMap::new() } else { self.sweeps.clone() },
            granted: self.granted.clone(),
            waits: self.waits.iter().map(|(place, waiting)| (*place, Arc::clone(waiting))).collect(),
            history: self.history.clone(),
            usage: self.usage,
            has_slices: self.bounds.limits_looks(),
            behind: self.behind.then(|| self.blocked_index.all_to_reevaluate().into_iter().collect()),
        }
    }
}

impl FrozenNamespace {
    fn write<'a>(&'a self, writer: &mut ChunkWriter<Item<&'a str>>) {
        writer.push(&Item::Namespace {
            account: self.id.account,
            name: self.id.name.clone(),
            incarnation: self.id.incarnation,
            limits: self.limits.clone(),
            forgotten: self.history.forgotten(),
        });
        if !self.limits.are_first() {
            writer.push(&Item::Limits(Box::new(self.limits.clone())));
        }
        for (session_id, facts) in &self.sessions {
            writer.push(&Item::Session(session_item(session_id, facts)));
        }
        for ending in &self.ending {
            writer.push(&Item::Ending(Box::new(ending.item())));
        }
        for (began, sweep) in &self.sweeps {
            writer.push(&Item::Sweep(*began, Box::new(sweep.clone())));
        }
        for node in self.held() {
            let lock = self.paths.get(node);
            writer.push(&Item::Lock { path: self.paths.segments(node), revision: lock.revision });
            for hold in lock.holds.as_slice() {
                writer.push(&Item::Hold(self.hold_item(hold)));
                write_attempts(writer, &hold.attempts(), hold.attempts_as_reader());
            }
        }
        let mut granted: Vec<&GrantedRequest> = self.granted.iter().map(|(_, granted)| granted).collect();
        granted.sort_unstable_by_key(|granted| (&granted.session_id, &granted.request_id, self.number_of(granted)));
        for granted in granted {
            let (number, item) = (self.number_of(granted), self.granted_item(granted));
            let is_ending = self.ending.binary_search_by_key(&number, |ending| ending.facts.number).is_ok();
            writer.push(&if is_ending { Item::GrantedToEnding(number, Box::new(item)) } else { Item::Granted(item) });
            write_attempts(writer, &granted.attempts, &[]);
        }
        for (place, waiting) in &self.waits {
            writer.push(&Item::Wait(self.wait_item(*place, waiting)));
            write_attempts(writer, &waiting.attempts, &[]);
            if let Some(watch) = self.watch_item(waiting).filter(|_| self.has_slices) {
                writer.push(&Item::Watch(watch));
            }
        }
        for (revision, bytes) in self.history.iter() {
            writer.push(&Item::Event { revision, bytes: bytes.to_vec() });
        }
        for (began, sweep) in &self.sweeps {
            self.write_old(writer, *began, sweep);
        }
        if let Some(woken) = &self.behind {
            let woken: Vec<_> = woken.iter().map(|place| (place.wait().0, place.is_upgrade())).collect();
            let pieces = woken.chunks(WOKEN_IN_ITEM).map(<[_]>::to_vec);
            // Nobody may be left of them.
            let none = woken.is_empty().then(Vec::new);
            pieces.chain(none).for_each(|woken| writer.push(&Item::Behind(woken)));
        }
        // Last, since what comes before it is counted anew while it is restored.
        if self.usage != UsageTotals::default() {
            writer.push(&Item::Usage(self.usage));
        }
    }

    /// In order of name, and in several pieces, since there may be as many as owners.
    fn write_old<'a>(&'a self, writer: &mut ChunkWriter<Item<&'a str>>, began: Revision, sweep: &Sweep) {
        let old = self.owners.iter().filter(|(id, _)| sweep.is_old(OwnerId(*id)));
        let names = old.filter_map(|(_, name)| if let OwnerName::Process(id) = name { Some(&**id) } else { None });
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        for names in names.chunks(OLD_IN_ITEM) {
            writer.push(&Item::Old(began, names.to_vec()));
        }
    }

    /// What is held, in order of token; the paths of a set, which have the same, in order of path. Numbers of paths
    /// differ between replicas.
    fn held(&self) -> Vec<NodeId> {
        let first = |(node, lock): (NodeId, &Node)| Some((lock.holds.as_slice().first()?.token, node));
        let mut held: Vec<(FencingToken, NodeId)> = self.paths.iter().filter_map(first).collect();
        held.sort_unstable_by(|(token, node), (other_token, other)| {
            let by_path = || self.paths.segments(*node).cmp(&self.paths.segments(*other));
            token.cmp(other_token).then_with(by_path)
        });
        held.into_iter().map(|(_, node)| node).collect()
    }

    fn number_of(&self, granted: &GrantedRequest) -> u64 {
        self.owners.get(granted.owner.0).session().map_or(0, |session| session.number)
    }

    /// Nothing of what is gone: then the request is to be looked at.
    fn watch_item(&self, waiting: &WaitingRequest) -> Option<WatchItem> {
        let mut nodes = waiting.nodes.iter().zip(0_u32..);
        match waiting.blocked_on {
            BlockedOn::Unknown => None,
            BlockedOn::Hold(node, owner) => {
                let token = self.paths.find(node)?.holds.of(owner)?.token;
                let above = |(claimed, claim): (&NodeId, u32)| {
                    let above = self.paths.upward(*claimed).position(|above| above == node)?;
                    Some((claim, u32::try_from(above).ok()?))
                };
                let (claim, above) = nodes.find_map(above)?;
                Some(WatchItem::Hold { claim, above, token })
            }
            BlockedOn::Subtree(node, mode) => {
                let (_, claim) = nodes.find(|(claimed, _)| **claimed == node)?;
                Some(WatchItem::Below { claim, mode })
            }
            BlockedOn::Request(place) => Some(WatchItem::Wait(place.wait().0, place.is_upgrade())),
        }
    }

    fn owner_item(&self, owner: OwnerId) -> OwnerItem<&str> {
        match self.owners.get(owner.0) {
            OwnerName::Process(process_id) => OwnerItem::Process(process_id),
            OwnerName::Session(session) => OwnerItem::Session {
                number: session.number,
                session_id: &session.session_id,
                process_id: &session.process_id,
                holder: session.holder.as_deref(),
            },
        }
    }

    fn hold_item(&self, hold: &Hold) -> HoldItem<&str> {
        let none = HoldExtras::default();
        let rare = hold.rare.as_deref().unwrap_or(&none);
        HoldItem {
            owner: self.owner_item(hold.owner),
            mode: hold.mode,
            phase: hold.phase,
            direct: hold.direct,
            upgraded: hold.upgraded,
            transition_ms: hold.transition_ms,
            token: hold.token,
            locked_at_ms: hold.locked_at_ms,
            deadline_ms: hold.deadline_ms,
            attempt: hold.attempt,
            metadata: rare.metadata.clone(),
            asked_expires_at_ns: rare.asked_expires_at_ns,
        }
    }

    fn granted_item<'a>(&'a self, granted: &'a GrantedRequest) -> GrantedItem<&'a str> {
        let live = granted.live.iter().map(|(node, mode)| (self.paths.segments(*node), *mode));
        let mut live: Vec<_> = live.collect();
        live.sort_unstable();
        let holder = self.owners.get(granted.owner.0).session().and_then(|session| session.holder.as_deref());
        let claimed = u32::try_from(granted.claimed).unwrap_or(u32::MAX);
        GrantedItem {
            session_id: &granted.session_id,
            request_id: &granted.request_id,
            holder,
            token: granted.token,
            attempt: granted.attempts.highest(),
            claimed,
            live,
        }
    }

    fn wait_item<'a>(&'a self, place: QueuePosition, waiting: &'a WaitingRequest) -> WaitItem<&'a str> {
        let claims = waiting.claims.iter().map(|claim| (segments(&claim.path), claim.mode)).collect();
        WaitItem {
            wait: place.wait().0,
            upgrade: place.is_upgrade(),
            owner: self.owner_item(waiting.owner),
            claims,
            terms: waiting.terms.clone(),
            request_id: waiting.request_id.as_deref(),
            attempt: waiting.attempts.highest(),
            ends_at_ms: waiting.ends_at_ms,
            since_ms: waiting.since_ms,
        }
    }
}

impl Ending {
    fn freeze(&self) -> FrozenEnding {
        FrozenEnding {
            session_id: Arc::clone(&self.session_id),
            facts: Arc::clone(&self.session.facts),
            why: self.why,
            since_ms: self.since_ms,
            after_wait: self.after_wait,
            after_path: self.after_path.clone(),
        }
    }
}

impl FrozenEnding {
    fn item(&self) -> EndingItem<&str> {
        EndingItem {
            session: session_item(&self.session_id, &self.facts),
            why: self.why,
            since_ms: self.since_ms,
            after_wait: self.after_wait.map(|place| (place.wait().0, place.is_upgrade())),
            after_path: self.after_path.as_ref().map(segments),
        }
    }
}

fn write_attempts(writer: &mut ChunkWriter<Item<&str>>, attempts: &Attempts, as_reader: &[u64]) {
    if !attempts.lower().is_empty() || !as_reader.is_empty() {
        writer.push(&Item::Attempts { lower: attempts.lower().to_vec(), as_reader: as_reader.to_vec() });
    }
}

fn segments(path: &Path) -> Vec<&str> {
    path.0.iter().map(String::as_str).collect()
}

fn session_item<'a>(session_id: &'a str, facts: &'a SessionFacts) -> SessionItem<&'a str> {
    SessionItem {
        session_id,
        number: facts.number,
        epoch: facts.epoch,
        seq: facts.seq,
        opening: facts.opening,
        process_id: &facts.process_id,
        ttl_ms: facts.ttl_ms,
        metadata: facts.metadata.clone(),
        opened_at_ms: facts.opened_at_ms,
    }
}
