//! Asks owners to release their holds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use holdfast_primitives::ask::{ASKED, AskRecord, asked_charge};
use holdfast_primitives::kit::TableEvent;

use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{
    AskRelease, AskedHold, AskedHolds, AskedView, CommandError, EventKind, Kind, LockView, MAX_ASKED, Mode, Path,
    Response, SessionNumber,
};

/// Paths below the path of a request that are searched for holds. With the holds that are searched, and what it costs
/// to keep a request with [`MAX_ASKED`] of them, that is less than a slice.
const PATHS_SEARCHED: usize = 500;
/// Maximum number of holds that are searched for unreleased ones.
const HOLDS_SEARCHED: usize = 1_500;

/// The holds that a request concerns.
struct Concerned {
    holds: Vec<(NodeId, OwnerId)>,
    /// Whether there may be more.
    is_truncated: bool,
}

impl NamespaceTxn<'_> {
    /// Asks the owners of a path and, without force, the owners of the holds that conflict with a WRITE there.
    pub(super) fn ask_release(&mut self, ask: &AskRelease) -> Result<Response, CommandError> {
        if ask.kind != Kind::Lock {
            return self.ask_release_of_permits(ask);
        }
        let Concerned { holds, is_truncated } = self.ns.concerned_by(ask);
        let asked = holds.len() as u64;
        let record = self.record_of(ask, &holds)?;
        let is_new = |(node, owner): &(NodeId, OwnerId)| {
            self.ns.hold(*node, *owner).is_some_and(|hold| !hold.asks().is_some_and(|asks| asks.has(ask.request_id)))
        };
        let new: Vec<(NodeId, OwnerId)> = holds.iter().filter(|hold| is_new(hold)).copied().collect();
        // The units of the hold and of its deadline.
        self.ns.spend(2 * new.len());
        for (node, owner) in &new {
            self.change_hold(*node, *owner, |hold| hold.change_asks(|asks| asks.add(&record)));
        }
        let is_any_forced = ask.force && self.force_kept(&ask.path, &record);
        if is_any_forced || !new.is_empty() {
            self.record_ask(Kind::Lock, &ask.path);
            self.notify_asked(&record, &new);
        }
        let view = match self.with_views {
            true => self.ns.bounded_view(&ask.path, self.common.revision),
            false => LockView::unlocked(&ask.path, 0),
        };
        let view = AskedView::Lock(view);
        Ok(Response::ReleaseAsked { asked, truncated: is_truncated, view })
    }

    /// Returns the record of a request. Without room for it in as many holds, one with force is kept without its texts.
    fn record_of(&self, ask: &AskRelease, holds: &[(NodeId, OwnerId)]) -> Result<Arc<AskRecord>, CommandError> {
        let record = AskRecord::of(ask, self.common.clock_ms, self.wall_ms);
        let before = holds.iter().filter_map(|(node, owner)| self.ns.hold(*node, *owner));
        let before: u64 = before.map(|hold| asked_charge(hold.asks())).sum();
        let after = (ASKED + record.text_bytes() as u64) * holds.len() as u64;
        Ok(Arc::new(match self.check_capacity(|_| after.saturating_sub(before)) {
            Ok(()) => record,
            Err(_) if ask.force => record.without_texts(),
            Err(error) => return Err(error),
        }))
    }

    /// Lets a request with force end kept holds too. Their owners are not asked, because they have released these
    /// holds. Returns true if there is a kept hold.
    fn force_kept(&mut self, path: &Path, record: &AskRecord) -> bool {
        let Some(node) = self.ns.tree.find(path) else { return false };
        let holds = self.ns.tree.get(node).holds.as_slice().iter().take(MAX_ASKED);
        let kept: Vec<OwnerId> = holds.filter(|hold| hold.is_kept()).map(|hold| hold.owner).collect();
        for owner in &kept {
            self.ns.spend(2);
            self.change_hold(node, *owner, |hold| hold.change_asks(|asks| asks.bring_forward(record)));
        }
        !kept.is_empty()
    }

    /// Tells each session once which of its holds are asked for.
    fn notify_asked(&mut self, record: &AskRecord, asked: &[(NodeId, OwnerId)]) {
        if is_enabled(Mutation::AskUntold) {
            return;
        }
        let mut by_session: BTreeMap<SessionNumber, (Arc<str>, Vec<AskedHold>)> = BTreeMap::new();
        for (node, owner) in asked {
            let Some(session) = self.ns.owners.name(*owner).session() else { continue };
            let is_open = self.ns.sessions.get(&session.session_id).is_some_and(|it| it.facts.number == session.number);
            if let Some(hold) = self.ns.hold(*node, *owner).filter(|_| is_open) {
                let of_session = by_session.entry(session.number);
                let (_, holds) = of_session.or_insert_with(|| (Arc::clone(&session.session_id), Vec::new()));
                holds.push(self.ns.asked_hold(*node, hold));
            }
        }
        for (session_id, holds) in by_session.into_values() {
            let asked = AskedHolds { kind: Kind::Lock, request: record.view(), holds };
            self.effects.release_requested(&self.ns.id, session_id, asked);
        }
    }

    /// Records that owners were asked.
    fn record_ask(&mut self, of: Kind, path: &Path) {
        let (revision, kind) = (self.common.next_revision(), EventKind::ReleaseRequested { of });
        let path = path.clone();
        self.record_table_event(&TableEvent { revision, kind, path, owner: None, token: None, members: Vec::new() });
    }

    /// Asks the holders of a semaphore or of a pool, or that of a member.
    fn ask_release_of_permits(&mut self, ask: &AskRelease) -> Result<Response, CommandError> {
        self.with_permits(|all, kit| all.ask_release(kit, ask))
    }
}

impl Namespace {
    /// Returns the unreleased holds: first the holds of the path, then the holds above and below it.
    fn concerned_by(&self, ask: &AskRelease) -> Concerned {
        let spot = self.tree.lookup(&ask.path);
        if ask.force {
            let there = spot.node().map_or(&[][..], |node| self.tree.get(node).holds.as_slice());
            self.spend(there.len().min(MAX_ASKED));
            let here = there.iter().take(MAX_ASKED).filter(|hold| !hold.is_kept());
            let holds = spot.node().into_iter().flat_map(|node| here.clone().map(move |hold| (node, hold.owner)));
            return Concerned { holds: holds.collect(), is_truncated: there.len() > MAX_ASKED };
        }
        let (mut holds, mut seen) = (Vec::new(), 0);
        let searched = self.visit_conflicts((NO_OWNER, Mode::Write, &spot), PATHS_SEARCHED, |node, hold| {
            if holds.len() == MAX_ASKED || seen == HOLDS_SEARCHED {
                return ControlFlow::Break(());
            }
            seen += 1;
            if !hold.is_kept() {
                holds.push((node, hold.owner));
            }
            ControlFlow::Continue(())
        });
        Concerned { holds, is_truncated: searched != ControlFlow::Continue(true) }
    }

    pub(super) fn asked_hold(&self, node: NodeId, hold: &Hold) -> AskedHold {
        AskedHold { path: self.tree.path_of(node), fencing_token: hold.token, request_id: None }
    }
}
