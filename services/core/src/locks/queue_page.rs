//! Pages of the list of waiting requests. Each row says what the queue keeps of a request: the one blocker that it
//! waits for now. Nothing is evaluated, so a page costs at most a slice, however the requests depend on one another.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use holdfast_primitives::page::PageBudget;

use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::{ClaimQueue, QueuePosition};
use super::tree::NodeId;
use super::waiting::{BlockedOn, WaitingRequest};
use crate::{Blocker, Mode, QueuedRequestView, Reason, Refused, Response, WaitId, codec};

/// Visits for one page. Beyond them it ends, but has at least one row.
const VISITS_PER_PAGE: usize = 4_096;
/// Paths that are searched below a claim for a hold to report.
const PATHS_SEARCHED: usize = 16;

impl Namespace {
    /// Returns a page of waiting requests in order of arrival.
    pub(super) fn page_of_queue(&self, after: Option<WaitId>, limit: u32) -> Response {
        let (mut budget, mut rows) = (PageBudget::of(limit), QueueRows::of(self));
        let mut waits = Vec::new();
        for position in self.in_order_of_arrival(after) {
            if budget.is_full() || rows.visits >= VISITS_PER_PAGE {
                return Response::Queue { waits, more: true };
            }
            let row = rows.view(position);
            if !budget.try_take(codec::size(&row)) {
                return Response::Queue { waits, more: true };
            }
            waits.push(row);
        }
        Response::Queue { waits, more: false }
    }
}

/// What a waiting request waits for.
struct KeptBlocker {
    /// The number of the claim that it blocks.
    index: usize,
    reason: Reason,
    blocker: Option<Blocker>,
}

impl KeptBlocker {
    /// The blocker has just ended, or is not recorded yet.
    const UNKNOWN: Self = Self { index: 0, reason: Reason::Queued, blocker: None };
}

/// The rows of a page.
struct QueueRows<'a> {
    namespace: &'a Namespace,
    visits: usize,
    /// How many requests with a claim on a path precede a position, as counted last.
    counted: BTreeMap<NodeId, (QueuePosition, u64)>,
}

impl<'a> QueueRows<'a> {
    fn of(namespace: &'a Namespace) -> Self {
        Self { namespace, visits: 0, counted: BTreeMap::new() }
    }

    fn view(&mut self, position: QueuePosition) -> QueuedRequestView {
        let namespace = self.namespace;
        let waiting = namespace.waiting(position);
        self.spend(1 + waiting.claims.len());
        let KeptBlocker { index, reason, blocker } = self.kept_blocker(position, waiting);
        let queue_position = waiting.nodes.get(index).map(|node| self.count_before(position, *node));
        let blockers = blocker.into_iter().collect();
        QueuedRequestView {
            wait: namespace.wait_view(position),
            process_id: namespace.owners.name(waiting.owner).process_id().to_owned(),
            since_ms: waiting.since_ms,
            not_granted: Refused { reason, blockers, queue_position, cycle: Vec::new() },
        }
    }

    fn spend(&mut self, visits: usize) {
        self.visits = self.visits.saturating_add(visits);
        self.namespace.spend(visits);
    }

    fn kept_blocker(&mut self, position: QueuePosition, waiting: &WaitingRequest) -> KeptBlocker {
        let blocked_on = waiting.blocked_on;
        if self.namespace.blocked_index.must_reevaluate(blocked_on, position) {
            return KeptBlocker::UNKNOWN;
        }
        let found = match blocked_on {
            BlockedOn::Unknown => None,
            BlockedOn::Hold(node, owner) => self.hold(waiting, node, owner),
            BlockedOn::Subtree(node, mode) => self.hold_below(waiting, node, mode),
            BlockedOn::Request(other) => self.request(waiting, other),
        };
        found.unwrap_or(KeptBlocker::UNKNOWN)
    }

    /// A hold at the path of a claim or at an ancestor of it.
    fn hold(&mut self, waiting: &WaitingRequest, node: NodeId, owner: OwnerId) -> Option<KeptBlocker> {
        let namespace = self.namespace;
        let hold = namespace.hold(node, owner)?;
        let claims = waiting.claims.iter().zip(&waiting.nodes);
        let conflicting = claims.map(|(claim, claimed)| {
            self.visits += 1;
            let conflicts = hold.mode == Mode::Write || claim.mode == Mode::Write || owner == waiting.owner;
            (conflicts && namespace.tree.self_and_ancestors(*claimed).any(|above| above == node)).then_some(*claimed)
        });
        let (index, claimed) = conflicting.enumerate().find_map(|(index, claimed)| Some((index, claimed?)))?;
        if owner == waiting.owner {
            return Some(KeptBlocker { index, reason: Reason::NotHeld, blocker: None });
        }
        let reason = match (namespace.is_current(node, hold), claimed == node) {
            (false, _) => Reason::Transition,
            (true, true) => Reason::Held,
            (true, false) => Reason::Ancestor,
        };
        let (path, holder) = (namespace.tree.path_of(node), namespace.holder_view(node, hold));
        Some(KeptBlocker { index, reason, blocker: Some(Blocker { path, waiting: false, holder }) })
    }

    /// Holds below the path of a claim. One is reported if few paths have to be searched for it.
    fn hold_below(&mut self, waiting: &WaitingRequest, node: NodeId, mode: Mode) -> Option<KeptBlocker> {
        let namespace = self.namespace;
        let index = waiting.nodes.iter().position(|claimed| *claimed == node)?;
        let is_held = namespace.subtree_conflict(node, waiting.owner, mode)?;
        self.spend(PATHS_SEARCHED);
        let mut blocker = None;
        let search = (waiting.owner, mode, &namespace.tree.lookup_node(node));
        let _ = namespace.visit_conflicts(search, PATHS_SEARCHED, |found, hold| {
            if namespace.tree.self_and_ancestors(node).any(|above| above == found) {
                return ControlFlow::Continue(());
            }
            let (path, holder) = (namespace.tree.path_of(found), namespace.holder_view(found, hold));
            blocker = Some(Blocker { path, waiting: false, holder });
            ControlFlow::Break(())
        });
        let reason = if is_held { Reason::Descendant } else { Reason::Transition };
        Some(KeptBlocker { index, reason, blocker })
    }

    /// Another request that goes first.
    fn request(&mut self, waiting: &WaitingRequest, other: QueuePosition) -> Option<KeptBlocker> {
        let namespace = self.namespace;
        let its_claims = namespace.waits.get(&other)?.claims.len();
        waiting.claims.iter().enumerate().find_map(|(index, claim)| {
            self.spend(its_claims.div_ceil(8));
            let blocker = namespace.waiting_blocker(other, claim)?;
            Some(KeptBlocker { index, reason: Reason::Queued, blocker: Some(blocker) })
        })
    }

    /// Returns how many requests with a claim on the path precede the position, up to the maximum that is reported.
    /// Rows come in order of arrival, so each counts on from the one before it.
    fn count_before(&mut self, position: QueuePosition, node: NodeId) -> u64 {
        let Some(queue) = self.namespace.tree.queue(node) else { return 0 };
        let known = self.counted.get(&node).copied().filter(|(from, _)| *from <= position);
        let (from, before) = known.unwrap_or((QueuePosition::FIRST, 0));
        let max = self.namespace.bounds.max_queue_position;
        let left = usize::try_from(max.saturating_sub(before)).unwrap_or(usize::MAX);
        let count =
            |line: &ClaimQueue| line.at_or_after(from).take_while(|entry| entry.position < position).take(left).count();
        let passed = count(&queue.own.reads) + count(&queue.own.writes);
        self.spend(passed);
        let total = before.saturating_add(passed as u64).min(max);
        if self.counted.get(&node).is_none_or(|(from, _)| *from < position) {
            self.counted.insert(node, (position, total));
        }
        total
    }
}
